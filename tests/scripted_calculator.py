"""A scripted model that knows its sums, but for an error that a test chooses."""

from pathlib import Path

_SOURCE = """
import re


def answer(request):
    if request.choices is not None:
        return [float(-len(choice)) for choice in request.choices]
    a, sign, b = re.search(r"(\\d+) (.) (\\d+)\\?\\nA:$", request.prompt).groups()
    right = {{"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}}[sign]
    return f" {{right + int({error})}}"
"""


def write_calculator(folder: Path, *, error: str = "0") -> None:
    """Write `calculator.py`, which is there whole or not at all: others may be reading it.

    Args:
        folder: That of evals.yaml, where a model's `function` is `calculator.py:answer`.
        error: What is added to the right answer: an expression of `right`, whose truth counts as 1.
    """
    temporary = folder / "calculator.tmp"
    temporary.write_text(_SOURCE.format(error=error))
    temporary.replace(folder / "calculator.py")
