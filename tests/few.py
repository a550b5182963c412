"""Tests of many cases, of which a few are in each run and all in `make test-long`."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet


def few(
    names: str, cases: Iterable[Any], *, kept: int | Sequence[Any], ids: Sequence[str] | Callable[[Any], str] | None = None
) -> pytest.MarkDecorator:
    """Parametrize a test. The others of its cases are marked as `long`.

    Args:
        names: Names of the parameters, as pytest takes them.
        cases: A value for each case, or a tuple of values if there are several names; or what `pytest.param` makes.
        kept: The cases that stay in each run, or how many of the first.
        ids: As pytest takes them.
    """
    every = list(cases)
    stay = every[:kept] if isinstance(kept, int) else kept
    marked = []
    for case in every:
        more = [] if case in stay else [pytest.mark.long]
        if isinstance(case, ParameterSet):
            marked.append(pytest.param(*case.values, marks=[*case.marks, *more], id=case.id))
        else:
            marked.append(pytest.param(*(case if "," in names else (case,)), marks=more))
    return pytest.mark.parametrize(names, marked, ids=ids)
