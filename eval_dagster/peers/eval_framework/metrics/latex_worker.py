"""Computer algebra on LaTeX by sympy. `eval_dagster.peers.eval_framework.metrics.latex` starts this script, and nothing imports it.

One JSON request a line comes in, one JSON answer a line goes out.
"""

import json
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from typing import Any

from sympy import S, SympifyError, factor, simplify
from sympy.parsing.latex import _parse_latex_antlr as grammar
from sympy.parsing.latex.errors import LaTeXParsingError

MEMORY_BYTES = 2**32
TOLERANCE = 1e-12
SECONDS = 10
"""For each step."""


def main() -> None:
    """Answer requests until there are no more."""
    # The parser of sympy asks for antlr 4.11. Its tables have the format of 4.10 and later, which 4.13 reads.
    grammar.version = lambda _: "4.11"
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGALRM, _expired)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            with redirect_stdout(StringIO()):  # the parser prints the versions of antlr
                found = _is_zero(request["difference"], request["seconds"]) if "difference" in request else _is_any_equal(**request)
        except Exception:  # what cannot be read or computed is not equal
            found = False
        print(json.dumps(bool(found)), flush=True)  # noqa: T201 - the answer


def _expired(*_: Any) -> None:
    raise TimeoutError


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    signal.alarm(int(seconds))
    try:
        yield
    finally:
        signal.alarm(0)


def _is_zero(texts: list[str], seconds: float) -> bool:
    with _limit(seconds):
        first, second = map(grammar.parse_latex, texts)
        return bool(simplify(first - second) == 0)


def _is_any_equal(answers: list[str], truths: list[str]) -> bool:
    """Whether one of the answers is one of the correct expressions."""
    wanted = [_truth(truth) for truth in truths]
    try:
        found = [_guarded(grammar.parse_latex, answer) for answer in answers]
    except (LaTeXParsingError, SympifyError, TypeError):
        return False
    wanted = [_guarded(_simplified, each) for each in wanted]
    found = [_guarded(_simplified, each) for each in found]
    return any(abs(_simplified(answer - truth)) < TOLERANCE for answer in found for truth in wanted)


def _truth(text: str) -> Any:
    try:
        with _limit(SECONDS):
            return grammar.parse_latex(text)
    except Exception:  # a text that is no expression equals none
        return S.NaN


def _guarded(compute: Callable[[Any], Any], value: Any) -> Any:
    try:
        return compute(value)
    except RecursionError:
        return S.NaN


def _simplified(expression: Any) -> Any:
    try:
        with _limit(SECONDS):
            return simplify(factor(expression))
    except (SympifyError, TimeoutError):
        return S.NaN


if __name__ == "__main__":
    main()
