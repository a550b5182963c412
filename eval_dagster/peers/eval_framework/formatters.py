"""Prompts as the package `template_formatting` writes them: messages are joined without white space of our own."""

from collections.abc import Sequence

from eval_dagster.records import Message, Role, TaskSample
from eval_dagster.tasks.base import Formatter

_GAPS = {"plain": "\n\n", "identity": ""}
"""Formats of plain text -> the text after a system message and after an answer."""
_DEFAULT_SYSTEM = "You are a helpful AI assistant"
"""Replaces an empty system message in the format of Llama 3."""


def prompt_text(messages: Sequence[Message], formatter: Formatter) -> str:
    """The messages as eval-framework writes them in the model's format; in the format `chat` as the model's template does."""
    if formatter.name in _GAPS:
        return _plain(messages, _GAPS[formatter.name])
    return _llama3(messages) if formatter.name == "llama3" else formatter.format(messages)


def _plain(messages: Sequence[Message], gap: str) -> str:
    """Plain text. The last message has no outer white space, unless it is the system's."""
    text = ""
    for position, message in enumerate(messages, start=1):
        if position == len(messages) and message.role is not Role.SYSTEM:
            text += message.content.strip()
        else:
            text += message.content + ("" if message.role is Role.USER else gap)
    return text


def _llama3(messages: Sequence[Message]) -> str:
    """The prompt format of Llama 3. No content has outer white space; an answer at the end is continued."""
    text = "<|begin_of_text|>"
    for position, message in enumerate(messages, start=1):
        content = message.content.strip()
        if message.role is Role.SYSTEM:
            text += f"{_header(Role.SYSTEM)}{content or _DEFAULT_SYSTEM}<|eot_id|>"
        elif message.role is Role.USER:
            text += f"{_header(Role.USER)}{content}<|eot_id|>{_header(Role.ASSISTANT)}"
        else:
            text += content if position == len(messages) else f"{content}<|eot_id|>"
    return text


def _header(role: Role) -> str:
    return f"<|start_header_id|>{role.value}<|end_header_id|>\n\n"


def lost_space(made: TaskSample, formatter: Formatter) -> str:
    """The space before the choices that formatters of plain text remove from the question's end; empty if a choice brings its own."""
    choices = made.possible_completions or ()
    is_lost = bool(choices) and made.messages[-1].content.endswith(" ") and not any(choice[:1].isspace() for choice in choices)
    return " " if is_lost and not formatter.has_special_tokens else ""
