"""The interface that turns a conversation into the text that a model reads."""

from collections.abc import Sequence
from typing import Protocol

from eval_dagster.records import Message


class Formatter(Protocol):
    """Turns a conversation into one prompt. A last assistant message is a cue: it stays open, and the model continues it."""

    name: str
    """The same as in `prompt_format` of evals.yaml."""
    has_special_tokens: bool
    """Whether the prompt contains the special tokens, so that a tokenizer must not add any."""

    def format(self, messages: Sequence[Message], *, images: int = 0) -> str:
        """Return the prompt, with the marks of `images` images before the text of the last user turn.

        Raises:
            ModelError: The model takes no images, or refuses these messages.
        """
        ...

    def answer_gap(self, question: str, answer: str) -> str:
        """Return the text between a user turn and an answer if neither has white space there."""
        ...

    def version(self) -> str:
        """Hash of everything that can change a prompt."""
        ...


def join_cue(cue: str, answer: str) -> str:
    """Cue and answer, once each, with one space between them if neither has white space there."""
    if not cue or not answer or answer.startswith(cue):
        return answer or cue
    if cue[-1].isspace() or answer[0].isspace():
        return cue + answer
    return f"{cue} {answer}"
