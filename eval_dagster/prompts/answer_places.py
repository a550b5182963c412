"""Finds if an answer stands in a question. Both are folded: `eval_dagster.prompts.parts.folded`."""

import re
from collections.abc import Iterator

_AROUND = 3
"""Characters before, or after, an answer that are compared."""
_LONGEST_ANSWER = 200
"""Characters. Longer texts are no answers that a prompt gives away by chance."""
Place = tuple[str, str]
"""The characters before and after an answer; one of them can be empty."""
_START, _END = "\x02", "\x03"
"""Stand before the first and after the last character of a question."""


def stands_in(question: str, answer: str) -> bool:
    """Whether an answer stands in a question, as a word."""
    return next(_found_in(question, answer), None) is not None


def stands_at(place: Place, question: str, answer: str) -> bool:
    """Whether an answer stands at a place of a question."""
    return place in places_of(question, answer)


def places_of(question: str, answer: str) -> Iterator[Place]:
    """Each place of an answer in a question; both are folded. A sign before and one after it are a place as well: `[...]`."""
    text = _START + question + _END
    for found in _found_in(text, answer):
        start, end = found.span()
        before, after = text[max(start - _AROUND, 0) : start], text[end : end + _AROUND]
        yield before, ""
        yield "", after
        if not (before[-1:].isalnum() or before[-1:].isspace() or after[:1].isalnum() or after[:1].isspace()):
            yield before[-1:], after[:1]


def shown_place(before: str, after: str) -> str:
    """A place in words."""
    if (before, after) in ((_START, ""), ("", _END)):
        return f"each time at its {'start' if before else 'end'}"
    before, after = before.lstrip(_START), after.rstrip(_END)
    if before and after:
        return f"each time between {before!r} and {after!r}"
    return f"each time after {before!r}" if before else f"each time before {after!r}"


def _found_in(text: str, answer: str) -> Iterator[re.Match[str]]:
    """Each place at which an answer stands as a word. An underscore ends a word, and so does a digit after letters: `team_1`, `team1`."""
    if not answer or len(answer) > _LONGEST_ANSWER:
        return iter(())
    not_after = r"[^\W\d_]" if len(answer) > 1 and answer[-1].isalpha() else r"[^\W_]"
    return re.finditer(rf"(?<![^\W_]){re.escape(answer)}(?!{not_after})", text)
