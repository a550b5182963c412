"""Cuts a completion at its first stop sequence."""

from collections.abc import Sequence


def cut_at_stop(text: str, stop_sequences: Sequence[str]) -> tuple[str, bool]:
    """The text before the first stop sequence, and whether there is one."""
    ends = [end for end in (text.find(stop) for stop in stop_sequences if stop) if end >= 0]
    return (text[: min(ends)], True) if ends else (text, False)
