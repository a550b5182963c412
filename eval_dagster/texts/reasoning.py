"""Separates a model's reasoning from its answer."""

from typing import NamedTuple

DEFAULT_TAGS = ("<think>", "</think>")


class SplitText(NamedTuple):
    """A generated text in two parts, without the white space between them."""

    reasoning: str | None
    """Null if the text has none."""
    answer: str
    """Empty if the text ends inside its reasoning."""
    is_cut: bool = False
    """Whether the text ends before its reasoning does, at the most tokens or at a stop sequence."""


def split_reasoning(text: str, *, prompt: str = "", tags: tuple[str, str] = DEFAULT_TAGS) -> SplitText:
    """Split a generated text into its reasoning and its answer.

    The opening tag may be at the end of the prompt, as in some chat templates, or be missing: then the text has the closing tag alone.

    Args:
        text: The text as generated.
        prompt: The prompt before it.
        tags: The opening and the closing tag of the reasoning.
    """
    opening, closing = tags
    is_open = prompt.rstrip().endswith(opening)
    if not is_open and opening not in text and closing not in text:
        return SplitText(None, text)
    _, opened, after = text.partition(opening)
    opened_text = after if opened and not is_open else text
    reasoning, closed, answer = opened_text.rpartition(closing)
    if not closed or opening in answer:
        reasoning, answer = opened_text, ""
    return SplitText(reasoning.strip(), answer.lstrip(), is_cut=not answer.strip() and not text.rstrip().endswith(closing))
