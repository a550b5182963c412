"""Suggestions for mistyped words."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` for the choice closest to a word, whatever its case, or `""` if none is close."""
    by_folded = {choice.casefold(): choice for choice in choices}
    close = get_close_matches(word.casefold(), by_folded, n=1)
    return f"; did you mean {by_folded[close[0]]!r}?" if close else ""
