"""Metrics of programs: the generated text runs in the sandbox, and the tests of its task run beside it.

Nothing runs unless the project allows it: `sandbox.allow_code_execution: true` in evals.yaml.
"""

from typing import ClassVar

from eval_dagster.metrics.base import CompletionMetric, context_field, find_field, require_field
from eval_dagster.metrics.explanations import explain
from eval_dagster.records import Completion
from eval_dagster.sandbox import Limits, Program, SandboxResult, run_python


class CodeExecutionPassAtOne(CompletionMetric):
    """Whether the program passes the task's tests: pass@1 of one text (Chen et al. 2021, arXiv:2107.03374).

    The program is `code_prefix` and the text. The tests are `test`, and a call of `check` with `entry_point` if that is given: fields of
    the task's context, or of the row. If the tests call a function of the program that has the name of a built-in one, `tested_name` is
    that name. For HumanEval the prompt is the prefix. A program passes if its tests reach their last line. It fails
    after an exception, an early exit of any status, too much time, memory or output, and any action that the sandbox forbids.

    The tests run in a process of their own and call the functions of the program. So the program can neither change nor read them.

    pass@k of several texts is `pass_at_k(CodeExecutionPassAtOne, k)`.
    """

    NAME = "pass@1"
    IS_PROPORTION = True
    EXECUTES_CODE = True
    COMPANIONS = ("eval_dagster.sandbox.launcher", "eval_dagster.sandbox.program", "eval_dagster.sandbox.tester")
    TIMEOUT_S: ClassVar[float] = 10.0
    """Seconds that a program may compute or sleep, from the start of its interpreter on."""
    MEMORY_BYTES: ClassVar[int] = 2**30
    """Most address space of each of its processes."""

    def calculate(self, response: Completion) -> float:
        """Return 1 or 0.

        Raises:
            RequirementError: The project does not allow execution, or the machine cannot isolate it.
            DataError: The task gives no tests.
            MachineError: The sandbox failed.
        """
        entry = find_field(response, "entry_point") or context_field(response, "tested_name")
        program = Program(
            code=program_of(response),
            name="program",
            tests=checks_of(response),
            given=str(find_field(response, "code_prefix") or ""),
            entry=None if not entry else str(entry),
        )
        result = run_python(program, Limits(timeout_s=self.TIMEOUT_S, memory_bytes=self.MEMORY_BYTES))
        explain("program_output", _ending(result))
        return float(result.completed)


def _ending(result: SandboxResult) -> str:
    """How a program ended, and what it wrote."""
    end = {"exit": "exited before the tests came to their last line", "timeout": "took too much time"}
    ended = "passed the tests" if result.completed else end.get(result.ended_by, f"exceeded its limit of {result.ended_by}")
    return "\n".join(filter(None, (f"The program {ended}.", result.stdout.strip(), result.stderr.strip())))


def program_of(response: Completion) -> str:
    """The program of a response."""
    return f"{find_field(response, 'code_prefix') or ''}{response.completion_text}\n"


def checks_of(response: Completion) -> str:
    """The code that tests the program of a response.

    Raises:
        DataError: The task gives no tests.
    """
    tests = str(require_field(response, "test", "code that tests"))
    entry_point = find_field(response, "entry_point")
    return f"{tests}\n\ncheck({entry_point})\n" if entry_point else f"{tests}\n"
