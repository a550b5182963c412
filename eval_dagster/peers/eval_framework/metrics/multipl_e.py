"""The metric of MultiPL-E: programs in several languages, which run in the sandbox."""

import json

from eval_dagster.errors import DataError
from eval_dagster.metrics.base import MetricResult
from eval_dagster.peers.eval_framework.code import COMPANIONS, ProgramTimeoutError
from eval_dagster.peers.eval_framework.compilers import LANGUAGES, PATH, build_of
from eval_dagster.peers.eval_framework.contexts import BaseMetricContext, extract_context_metric
from eval_dagster.peers.eval_framework.metrics.base import BaseMetric, result
from eval_dagster.peers.eval_framework.responses import Completion
from eval_dagster.sandbox import Limits, Program, run_python

_LIMITS = Limits(timeout_s=60.0, memory_bytes=2**33)
"""The engines of JavaScript and Java reserve far more address space than they use."""
_TIMED = ("cpp", "js")
"""Languages in which a program that takes too much time is an error. In the others, eval-framework ends it by a command, as a wrong one."""
_RUNNER = """
import os, subprocess, sys
os.chdir("/tmp")
with open({file!r}, "w") as file:
    file.write({text!r})
for command in {commands!r}:
    ended = subprocess.run(command, env={{"PATH": {path!r}, "HOME": "/tmp"}}, stdin=subprocess.DEVNULL)
    if ended.returncode:
        sys.exit(1)
"""


class MultiPLEMetricContext(BaseMetricContext):
    """The beginning of a program, its tests, and their language."""

    prompt: str
    tests: str
    language: str


class MultiPLECodeAssertion(BaseMetric[Completion]):
    """Whether a program with its tests ends without an error."""

    NAME = "MultiPL-E Code Assertion"
    IS_PROPORTION = True
    EXECUTES_CODE = True
    COMPANIONS = COMPANIONS

    def calculate(self, response: Completion) -> list[MetricResult]:
        """Return 1 or 0.

        Raises:
            RequirementError: The machine has no compiler or interpreter of the language.
            DataError: The language is not known.
            ProgramTimeoutError: A program in C++ or JavaScript takes more than a minute. In other languages it is wrong.
        """
        context = extract_context_metric(response, MultiPLEMetricContext)
        if context.language not in LANGUAGES:
            raise DataError(f"the language is {context.language!r}; expected one of {', '.join(LANGUAGES)}")
        build = build_of(context.language)
        whole = f"{context.prompt}{response.completion}\n{context.tests}"
        runner = _RUNNER.format(file=f"code.{context.language}", text=whole, commands=build.commands, path=PATH)
        ended = run_python(Program(code=runner), _LIMITS, build.toolchain)
        if ended.ended_by == "timeout" and context.language in _TIMED:
            raise ProgramTimeoutError(f"the program took more than {_LIMITS.timeout_s:g} s")
        return [result(self, ended.completed, code_execution_trace=json.dumps([ended.stdout, ended.stderr]))]
