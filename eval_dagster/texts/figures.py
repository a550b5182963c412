"""Figures and suggestions as text, the same in the terminal, the pages, Dagster's UI and MLflow."""

from collections.abc import Iterable
from difflib import get_close_matches

from rich.filesize import decimal


def number(value: float | None, sign: str = "") -> str:
    """A score or a difference; a dash if missing."""
    return "–" if value is None else f"{value:{sign}.3f}"


def interval(low: float | None, high: float | None, sign: str = "") -> str:
    """A confidence interval; a dash if missing."""
    return "–" if low is None or high is None else f"{low:{sign}.3f} to {high:{sign}.3f}"


def p_value(value: float | None) -> str:
    """A p-value; a dash if missing."""
    if value is None:
        return "–"
    return "< 0.0001" if value < 0.0001 else f"{value:.2g}"


def p_equals(value: float | None) -> str:
    """A p-value after its sign: `= 0.03`, or `< 0.0001`."""
    text = p_value(value)
    return text if text.startswith("<") else f"= {text}"


def counted(count: int, noun: str) -> str:
    """A number of things, in words."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def dollars(cost: float) -> str:
    """A cost, with as many digits as a small one needs."""
    return f"${cost:,.2f}" if cost >= 100 else f"${cost:.4f}" if cost >= 0.01 or not cost else f"${cost:.6f}"


def file_size(n_bytes: float) -> str:
    """A number of bytes in units of 1,000."""
    return decimal(int(n_bytes))


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` for the choice closest to a word, whatever its case, or `""` if none is close."""
    by_folded = {choice.casefold(): choice for choice in choices}
    close = get_close_matches(word.casefold(), by_folded, n=1)
    return f"; did you mean {by_folded[close[0]]!r}?" if close else ""
