"""Metrics of programs, which run in the sandbox."""

from collections.abc import Callable
from typing import Any, Self

from eval_dagster.metrics.base import MetricResult
from eval_dagster.peers.eval_framework.code import (
    COMPANIONS,
    CallableSerializer,
    ExecutionResult,
    ProgramTimeoutError,
    execute_python_code_with_tests,
    run_python_code,
)
from eval_dagster.peers.eval_framework.contexts import BaseMetricContext, extract_context_metric
from eval_dagster.peers.eval_framework.metrics.base import BaseMetric, result
from eval_dagster.peers.eval_framework.responses import Completion


class CodeCompletionAssertion(BaseMetric[Completion]):
    """Whether the last word that a program writes is True."""

    NAME = "Code Completion Accuracy"
    IS_PROPORTION = True
    EXECUTES_CODE = True
    COMPANIONS = COMPANIONS

    def calculate(self, response: Completion) -> list[MetricResult]:
        """Return 1 or 0; 0 for a program that takes more than a minute."""
        try:
            output = run_python_code(response.completion)
        except ProgramTimeoutError as problem:
            return [result(self, 0.0, code_execution_trace=str(problem))]
        return [result(self, output.split()[-1:] == ["True"], code_execution_trace=output)]


class CodeExecutionBaseContext(BaseMetricContext):
    """The tests of a program, and its environment."""

    run_env: str
    code_prompt: str
    test_code: str
    benchmark_timeout: int = 60
    package_downloads: dict[str, str | None]


class CodeExecutionPassAtOneContext(CodeExecutionBaseContext):
    """The same with the names of two functions."""

    snippet_merge_fn: str
    output_parse_fn: str


class RealtimeCodeExectionContext(CodeExecutionBaseContext):
    """The same with the two functions."""

    snippet_merge_fn: Callable[[str, str], str]
    output_parse_fn: Callable[[str], ExecutionResult]

    @classmethod
    def from_context(cls, context: CodeExecutionPassAtOneContext) -> Self:
        """Find the functions by their names."""
        functions = {name: CallableSerializer.decode(getattr(context, name)) for name in ("snippet_merge_fn", "output_parse_fn")}
        return cls(**{**context.model_dump(), **functions})


class CodeExecutionPassAtOne(BaseMetric[Completion]):
    """Whether a program passes its tests."""

    NAME = "code-execution-pass@1"
    IS_PROPORTION = True
    EXECUTES_CODE = True
    COMPANIONS = COMPANIONS

    def __init__(self) -> None:
        self.k = 1
        self.serializer = CallableSerializer()

    def calculate(self, response: Completion) -> list[MetricResult]:
        """Return 1 or 0; 0 for a program that takes too much time."""
        given: Any = extract_context_metric(response, CodeExecutionPassAtOneContext)
        passed, output = self._count_correct_samples(response.completion, RealtimeCodeExectionContext.from_context(given))
        return [result(self, estimate_pass_at_k(1, passed, self.k), code_execution_trace=output)]

    def _count_correct_samples(self, completion: str, context: RealtimeCodeExectionContext) -> tuple[int, str]:
        try:
            found = execute_python_code_with_tests(
                code=completion,
                test_code=context.test_code,
                package_mapping=context.package_downloads,
                merge_code_fn=context.snippet_merge_fn,
                image=context.run_env,
                timeout=context.benchmark_timeout,
                parse_output_fn=context.output_parse_fn,
                dockerfile=None,
            )
        except ProgramTimeoutError as problem:
            return 0, str(problem)
        return int(found.success), found.output


class CodeExecutionPassAtOneWithCodebench(CodeExecutionPassAtOne):
    """The same. eval-framework runs it in a container with all packages, which the sandbox does not have."""

    NAME = "code-execution-pass@1-codebench"


def estimate_pass_at_k(n: int, c: int, k: int) -> float:
    """The probability that one of `k` texts out of `n` is among the `c` correct ones (Chen et al. 2021, arXiv:2107.03374)."""
    failed = 1.0
    for drawn in range(k):
        failed *= max(n - c - drawn, 0) / (n - drawn) if n > drawn else 0.0
    return 1.0 - failed
