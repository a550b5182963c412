"""The formatters of the package `template_formatting`: they join messages without adding white space of their own."""

from collections.abc import Sequence
from typing import ClassVar

from eval_dagster.errors import ModelError
from eval_dagster.records import Message, Role, TaskSample
from eval_dagster.tasks.base import Formatter


class BaseFormatter:
    """Turns messages into one text. If the last message is the assistant's, the model continues it."""

    def format(self, messages: Sequence[Message], output_mode: str = "string") -> str:
        """Return the text.

        Raises:
            ModelError: Another output than one text is wanted.
        """
        if output_mode != "string":
            raise ModelError(f"the output mode is {output_mode!r}; expected 'string', the only one for evaluation")
        last = len(messages) - 1
        return self._begin() + "".join(self._turn(message, position == last) for position, message in enumerate(messages))

    def _begin(self) -> str:
        return ""

    def _turn(self, message: Message, is_last: bool) -> str:
        raise NotImplementedError


class _PlainFormatter(BaseFormatter):
    gap: ClassVar[str]
    """The text after a system message and after an answer."""

    def _turn(self, message: Message, is_last: bool) -> str:
        if message.role is Role.SYSTEM:
            return message.content + self.gap
        if is_last:
            return message.content.strip()
        return message.content + (self.gap if message.role is Role.ASSISTANT else "")


class ConcatFormatter(_PlainFormatter):
    """Plain text: a blank line after a system message and after an answer. The last message has no outer white space."""

    gap = "\n\n"


class IdentityFormatter(_PlainFormatter):
    """The contents one after the other. The last message has no outer white space."""

    gap = ""


class Llama3Formatter(BaseFormatter):
    """The prompt format of Llama 3. No content has outer white space."""

    system_prompt = "You are a helpful AI assistant"
    """Replaces an empty system message."""

    def _begin(self) -> str:
        return "<|begin_of_text|>"

    def _turn(self, message: Message, is_last: bool) -> str:
        text = message.content.strip()
        if message.role is Role.SYSTEM:
            return f"{self._header(Role.SYSTEM)}{text or self.system_prompt}<|eot_id|>"
        if message.role is Role.USER:
            return f"{self._header(Role.USER)}{text}<|eot_id|>{self._header(Role.ASSISTANT)}"
        return text if is_last else f"{text}<|eot_id|>"

    def _header(self, role: Role) -> str:
        return f"<|start_header_id|>{role.value}<|end_header_id|>\n\n"


_BY_NAME: dict[str, type[BaseFormatter]] = {"plain": ConcatFormatter, "identity": IdentityFormatter, "llama3": Llama3Formatter}


def prompt_text(messages: Sequence[Message], formatter: Formatter) -> str:
    """The messages as eval-framework writes them in the model's format; in the format `chat` as the model's template does."""
    if formatter.name in _BY_NAME:
        return _BY_NAME[formatter.name]().format(messages)
    return formatter.format(messages)


def lost_space(made: TaskSample, formatter: Formatter) -> str:
    """The space before the choices that formatters of plain text remove from the question's end; empty if a choice brings its own."""
    choices = made.possible_completions or ()
    is_lost = bool(choices) and made.messages[-1].content.endswith(" ") and not any(choice[:1].isspace() for choice in choices)
    return " " if is_lost and not formatter.has_special_tokens else ""
