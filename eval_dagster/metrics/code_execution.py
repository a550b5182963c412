"""Metrics of programs: the generated text is run in the sandbox against the tests of its task.

Nothing runs unless the project allows it: `sandbox.allow_code_execution: true` in evals.yaml.
"""

from typing import ClassVar

from eval_dagster.metrics.base import CompletionMetric
from eval_dagster.metrics.fields import find_field, require_field
from eval_dagster.records import Completion
from eval_dagster.sandbox import run_python


class CodeExecutionPassAtOne(CompletionMetric):
    """Whether the program passes the task's tests: pass@1 of one text (Chen et al. 2021, arXiv:2107.03374).

    The program is `code_prefix`, the text, `test`, and a call of `check` with `entry_point` where that is given: fields of the task's
    context, or of the row. For HumanEval the prompt is the prefix. It passes if it comes to its last line: an exception, an early exit
    of whatever status, too much time, memory or output, and whatever the sandbox forbids make it fail.

    pass@k of several texts is `pass_at_k(CodeExecutionPassAtOne, k)`.
    """

    NAME = "pass@1"
    IS_PROPORTION = True
    EXECUTES_CODE = True
    COMPANIONS = ("eval_dagster.sandbox_launcher",)
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
        result = run_python(program_of(response), timeout_s=self.TIMEOUT_S, memory_bytes=self.MEMORY_BYTES, name="program")
        return float(result.completed)


def program_of(response: Completion) -> str:
    """What is run for a response.

    Raises:
        DataError: The task gives no tests.
    """
    parts = [f"{find_field(response, 'code_prefix') or ''}{response.completion_text}", require_field(response, "test", "code that tests")]
    if entry_point := find_field(response, "entry_point"):
        parts.append(f"check({entry_point})")
    return "\n\n".join(str(part) for part in parts) + "\n"
