"""What of a chat model's answer is the program."""

import pytest

from eval_dagster.task_defs.code_blocks import code_block
from eval_dagster.task_defs.humaneval import HumanEvalInstruct
from eval_dagster.task_defs.mbpp import MBPPInstruct

BODY = "    return x + 1\n"
WHOLE = "def f(x):\n    return x + 1\n"


@pytest.mark.parametrize(
    ("text", "program"),
    [
        (BODY, BODY),
        (f"{BODY}```\n\nIt adds one:\n```python\nprint(f(1))\n```", BODY),
        (f"\n{BODY}\nprint(f(1))\n", f"\n{BODY}"),
        (f"{BODY}\ndef g():\n    pass\n", BODY),
        (f"```python\n{WHOLE}```\nIt adds one.", WHOLE),
        (f"Here it is:\n\n```\n{WHOLE}```\n\n```python\nprint(f(1))\n```", WHOLE),
        (f"  ```python\n{WHOLE}  ```", WHOLE),
        (f" Sure:\n```py\n{WHOLE}", WHOLE),
        (WHOLE, WHOLE),
        ("", ""),
    ],
)
def test_a_function_is_continued_or_written_anew(text: str, program: str) -> None:
    assert HumanEvalInstruct().post_process_generated_completion(text) == program


@pytest.mark.parametrize(
    ("text", "program"),
    [
        (f"{WHOLE}```", WHOLE),
        (f"{WHOLE}```\nIt adds one:\n```python\nprint(f(1))\n```", WHOLE),
        (f"Sure:\n```python\n{WHOLE}```", WHOLE),
        (f"```python\n{WHOLE}", WHOLE),
        (WHOLE, WHOLE),
    ],
)
def test_a_program_ends_at_its_fence(text: str, program: str) -> None:
    assert MBPPInstruct().post_process_generated_completion(text).strip() == program.strip()


def test_a_text_without_a_fence_is_the_program() -> None:
    assert code_block("x = 1") == "x = 1"
    assert code_block("```\n\n```\n```python\nx = 1\n```") == "x = 1\n"
