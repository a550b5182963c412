"""Separates a model's reasoning from its answer."""

DEFAULT_TAGS = ("<think>", "</think>")


def split_reasoning(text: str, *, prompt: str = "", tags: tuple[str, str] = DEFAULT_TAGS) -> tuple[str | None, str]:
    """Split a generated text into its reasoning (None where it has none) and its answer, the white space between them dropped.

    A text that ends inside its reasoning has no answer: the answer is empty. The reasoning may have been opened by the end of the
    prompt, as some chat templates do, or without being shown, so that the text holds the closing tag alone.

    Args:
        text: The text as generated.
        prompt: What stood before it.
        tags: What opens and what closes the reasoning.
    """
    opening, closing = tags
    is_open = prompt.rstrip().endswith(opening)
    if not is_open and opening not in text and closing not in text:
        return None, text
    _, opened, after = text.partition(opening)
    reasoning, closed, answer = (after if opened and not is_open else text).rpartition(closing)
    if not closed or opening in answer:
        return (after if opened and not is_open else text).strip(), ""
    return reasoning.strip(), answer.lstrip()


def is_cut_in_reasoning(text: str, *, prompt: str = "", tags: tuple[str, str] = DEFAULT_TAGS) -> bool:
    """Whether a generated text ends before its reasoning does, at the most tokens or at a stop sequence."""
    reasoning, answer = split_reasoning(text, prompt=prompt, tags=tags)
    return reasoning is not None and not answer and not text.rstrip().endswith(tags[1])
