"""Reads mathematics by the package math-verify. `eval_dagster.metrics.math_equal` starts this script, and nothing imports it.

One JSON request a line comes in, one JSON answer a line goes out. The kernel ends the process when a request takes too long: what
math-verify does may be one endless step of the computer algebra, which no Python code could break off. The signal names the limit:
SIGPROF that of processor time, which is the request's own; SIGALRM that of wall time, which depends on the machine's load, too.
"""

import json
import logging
import re
import resource
import signal
import sys
from typing import Any

from math_verify import parse, verify

MEMORY_BYTES = 2**32
START_S = 300
PATIENCE = 60
"""Wall time that a request may take, in multiples of its processor time."""
# The environment of a matrix begins no formula.
_DELIMITER = re.compile(
    r"\$|\\boxed|(?<!\\)\\[(\[]|\\begin\{(?:align|alignat|displaymath|eqnarray|equation|flalign|gather|math|multline)\*?\}"
)
_ROW_SPACE = re.compile(r"(?<=\\\\)\[[\d.]+\s*(?:pt|em|ex|mm|cm)\]")
_COMMAND = re.compile(r"\\[A-Za-z]+(?:\{[^{}]*\})?")
_WORD = re.compile(r"[^\W\d_]{3,}")


def main() -> None:
    """Answer requests until there are no more."""
    logging.disable()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    parsed("$1+1$")  # what is slow the first time
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(json.dumps("ready"), flush=True)  # noqa: T201 - the answer
    for line in sys.stdin:
        request = json.loads(line)
        limit(request["timeout_s"])
        found = answer(request)
        limit(0)
        print(json.dumps(found), flush=True)  # noqa: T201 - the answer


def limit(seconds: float) -> None:
    """Limit the processor time from here on, and the wall time more generously; 0 lifts both limits."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE * seconds)


def answer(request: dict[str, Any]) -> str | bool | None:
    """Whether the text equals the gold answer. Without a gold answer, the expression of the text in the notation of sympy."""
    try:
        if "gold" in request:
            return bool(verify(parsed(formula(request["gold"])), parsed(request["text"]), timeout_seconds=None))
        found = parsed(formula(request["text"]) if request.get("is_gold") else request["text"])
        return str(found[0]) if found else None
    except (MemoryError, RecursionError):
        return False if "gold" in request else None


def parsed(text: str) -> list[Any]:
    """The last expression of a text, and its original form; empty where it has none."""
    text = _ROW_SPACE.sub("", text)
    return list(parse(formula(text) if is_formula(text) else text, parsing_timeout=None))


def formula(text: str) -> str:
    """The text as LaTeX between delimiters, on one line, since single dollars cannot span lines."""
    return text if _DELIMITER.search(text) else f"${' '.join(text.split())}$"


def is_formula(text: str) -> bool:
    r"""Whether a text is a formula and nothing else: `3\sqrt{2}` would else be read as 3."""
    return bool(text.strip()) and "\n" not in text.strip() and not _WORD.search(_COMMAND.sub(" ", text))


if __name__ == "__main__":
    signal.setitimer(signal.ITIMER_REAL, START_S)
    main()
