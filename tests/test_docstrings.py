"""Docstrings are plain English: without the turns that make readers stop, in proportions that well-kept projects stay below."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import eval_dagster

PACKAGE = Path(eval_dagster.__file__).parent
MOST = {
    r"\bwhere (?:there|it|that|they|one|a|an|the|no|none)\b": 1.5,
    r"\b(?:is|are|was) no (?!longer|more)\w": 0.15,
    r"\b(?:that|those) of\b": 0.06,
}
"""The most matches in 1,000 words, near those of httpx, litestar and datasette. Write `if` or `without`, `is not a`, and the noun."""
MOST_OPENINGS = 3.0
"""The most docstrings of 1,000 that begin with What, Where or Of. Begin with a verb or a noun."""


@cache
def _docstrings() -> dict[str, str]:
    """The docstrings of modules, classes and functions, on one line each, by their places."""
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (text := ast.get_docstring(node)):
                found[f"{file.relative_to(PACKAGE)}:{getattr(node, 'lineno', 1)}"] = " ".join(text.split())
    return found


@pytest.mark.long
@pytest.mark.parametrize("pattern", MOST)
def test_turns_are_rare(pattern: str) -> None:
    found = [f"{place} {text}" for place, text in _docstrings().items() if re.search(pattern, text)]
    matches = sum(len(re.findall(pattern, text)) for text in _docstrings().values())
    words = sum(len(text.split()) for text in _docstrings().values())
    assert words > 50_000
    assert 1000 * matches / words <= MOST[pattern], "\n".join(found)


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    found = [f"{place} {text}" for place, text in _docstrings().items() if re.match(r"(?:What|Where|Of)\b", text)]
    assert 1000 * len(found) / len(_docstrings()) <= MOST_OPENINGS, "\n".join(found)
