# ruff: noqa: ARG002 - not every formatter's gap depends on the texts
"""Formatters turn messages into the text that a model reads."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

from eval_dagster.config.models import SystemRole
from eval_dagster.errors import ModelError
from eval_dagster.models.base import ModelHandle
from eval_dagster.records import Message, Role
from eval_dagster.tasks.base import Formatter
from eval_dagster.versions.hashes import code_version, stable_hash


class _TextFormatter:
    """A formatter that depends on its code alone, and for images on the model's mark of an image."""

    def __init__(self, handle: ModelHandle | None = None) -> None:
        """`handle` is the model, needed for images only."""
        self._handle = handle

    def _marked(self, messages: Sequence[Message], images: int) -> Sequence[Message]:
        if not images:
            return messages
        if self._handle is None:
            raise ModelError("A prompt with images needs a model that takes them.")
        last = max(index for index, message in enumerate(messages) if message.role is Role.USER)
        marked = Message(Role.USER, self._handle.image_mark() * images + messages[last].content)
        return [*messages[:last], marked, *messages[last + 1 :]]

    def version(self) -> str:
        """Hash of the formatter's code."""
        return code_version(type(self))


class ConcatFormatter(_TextFormatter):
    """Plain text: a blank line between turns, but none between a question and its answer.

    Where question and answer have no white space between them, a space is added after a colon ("Answer:" and "Berlin"), and a line break
    otherwise ("What is the capital of Germany?" and "Answer: Berlin").
    """

    name = "plain"
    has_special_tokens = False

    def format(self, messages: Sequence[Message], *, images: int = 0) -> str:
        """Return the turns as one text, with nothing after the last."""
        if not messages:
            return ""
        messages = self._marked(messages, images)
        parts = [messages[0].content]
        for before, after in pairwise(messages):
            is_answer = before.role is Role.USER and after.role is Role.ASSISTANT
            parts += [self.answer_gap(before.content, after.content) if is_answer else "\n\n", after.content]
        return "".join(parts)

    def answer_gap(self, question: str, answer: str) -> str:
        """Return a space after a colon, else a line break; nothing if one of the two has white space."""
        if not question or not answer or question[-1].isspace() or answer[0].isspace():
            return ""
        return " " if question.endswith(":") else "\n"


class IdentityFormatter(_TextFormatter):
    """The messages' contents, one after the other, untouched."""

    name = "identity"
    has_special_tokens = False

    def format(self, messages: Sequence[Message], *, images: int = 0) -> str:
        """Return the contents and nothing else."""
        return "".join(message.content for message in self._marked(messages, images))

    def answer_gap(self, question: str, answer: str) -> str:
        """Return nothing."""
        return ""


class Llama3Formatter(_TextFormatter):
    """The prompt format of Llama 3: a header before each turn, an end mark after it, white space around contents dropped."""

    name = "llama3"
    has_special_tokens = True

    def format(self, messages: Sequence[Message], *, images: int = 0) -> str:
        """Return the turns, then the assistant's open turn: the cue if there is one, else its header alone."""
        *closed, last = self._marked(messages, images)
        if last.role is not Role.ASSISTANT:
            closed, last = [*closed, last], Message(Role.ASSISTANT, "")
        turns = [f"{self._header(message)}{message.content.strip()}<|eot_id|>" for message in closed]
        return "".join(["<|begin_of_text|>", *turns, self._header(last), last.content.lstrip()])

    def answer_gap(self, question: str, answer: str) -> str:
        """Return nothing: the header is between the two."""
        return ""

    def _header(self, message: Message) -> str:
        return f"<|start_header_id|>{message.role}<|end_header_id|>\n\n"


_PROBE = "A system message."
_PROBE_TOOL = "look_for_it"
_PROBE_DEFINITION = json.dumps(
    {"type": "function", "function": {"name": _PROBE_TOOL, "description": "", "parameters": {"type": "object", "properties": {}}}}
)


def system_merged(messages: Sequence[Message]) -> list[Message]:
    """The conversation without system messages: the next user turn begins with their texts and a blank line."""
    turns: list[Message] = []
    waiting: list[str] = []
    for turn in messages:
        if turn.role == Role.SYSTEM:
            waiting.append(turn.content)
        elif turn.role == Role.USER and waiting:
            turns.append(Message(turn.role, "\n\n".join([*waiting, turn.content])))
            waiting = []
        else:
            turns.append(turn)
    if waiting:  # before a cue, which stays the last turn
        place = len(turns) - 1 if turns and turns[-1].role == Role.ASSISTANT else len(turns)
        turns.insert(place, Message(Role.USER, "\n\n".join(waiting)))
    return turns


class ChatTemplateFormatter:
    """The template of the model's own tokenizer."""

    name = "chat"
    has_special_tokens = True

    def __init__(self, handle: ModelHandle, system_role: SystemRole = "auto", tools: Sequence[str] = ()) -> None:
        """`tools` are the definitions of those that the model may call, as JSON."""
        self._handle = handle
        self._system_role = system_role
        self._tools: Mapping[str, Sequence[str]] = {"tools": tuple(tools)} if tools else {}

    def offering(self, tools: Sequence[str]) -> "ChatTemplateFormatter":
        """The formatter of conversations in which the model may call tools."""
        return type(self)(self._handle, self._system_role, tools)

    @cached_property
    def takes_tools(self) -> bool:
        """Whether the template shows tools to the model. Many leave them out without a word."""
        try:
            return _PROBE_TOOL in self._handle.apply_chat_template([Message(Role.USER, "?")], tools=(_PROBE_DEFINITION,))
        except (ModelError, TypeError):  # a backend of another package may know no tools
            return False

    @cached_property
    def has_system_role(self) -> bool:
        """Whether the template writes system messages. Some refuse them, and some leave them out without a word."""
        try:
            return _PROBE in self._handle.apply_chat_template([Message(Role.SYSTEM, _PROBE), Message(Role.USER, "?")])
        except ModelError:
            return False

    def merges_system(self, messages: Sequence[Message]) -> bool:
        """Whether the system message of a conversation becomes the beginning of the user's first turn."""
        if not any(turn.role == Role.SYSTEM for turn in messages) or self._system_role == "require":
            return False
        return self._system_role == "merge" or not self.has_system_role

    def _rendered(self, messages: Sequence[Message], images: int) -> str:
        if self.merges_system(messages):
            return self._handle.apply_chat_template(system_merged(messages), images=images, **self._tools)
        text = self._handle.apply_chat_template(messages, images=images, **self._tools)
        if self._system_role == "require" and any(turn.role == Role.SYSTEM for turn in messages) and not self.has_system_role:
            raise ModelError(
                "The chat template leaves the system message out. Set `system_role: merge` for this model in evals.yaml, so that the first "
                "user turn begins with it."
            )
        return text

    def format(self, messages: Sequence[Message], *, images: int = 0) -> str:
        """Return the prompt by the model's template.

        White space before an answer is removed: it separates plain text, and a template has marks instead.
        """
        turns = [replace(turn, content=turn.content.lstrip()) if turn.role is Role.ASSISTANT else turn for turn in messages]
        return self._rendered(turns, images)

    def answer_gap(self, question: str, answer: str) -> str:
        """Return nothing: the template's marks are between the two."""
        return ""

    def version(self) -> str:
        """Hash of the formatter's code, of the model's template, and of the way to write system messages."""
        return stable_hash([code_version(type(self)), self._handle.template_version(), self._system_role])


class VerbatimChatFormatter(ChatTemplateFormatter):
    """The template of the model's own tokenizer, with the white space before an answer: the benchmarks of other packages choose it."""

    def format(self, messages: Sequence[Message], *, images: int = 0) -> str:
        """Return the prompt by the model's template."""
        return self._rendered(messages, images)


class ConversationFormatter:
    """The messages themselves, for a server that applies the template. The text that shows them is not sent."""

    name = "chat"
    has_special_tokens = False

    def __init__(self, system_role: SystemRole = "auto") -> None:
        self._system_role = system_role

    def merges_system(self, messages: Sequence[Message]) -> bool:
        """Whether the system message of a conversation becomes the beginning of the user's first turn."""
        return self._system_role == "merge" and any(turn.role == Role.SYSTEM for turn in messages)

    def sent(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """The messages that are sent. White space before an answer separates plain text, and is left out."""
        turns = system_merged(messages) if self.merges_system(messages) else messages
        return tuple(
            replace(turn, content=turn.content.lstrip()) if turn.role is Role.ASSISTANT and turn.content[:1].isspace() else turn
            for turn in turns
        )

    def format(self, messages: Sequence[Message], *, images: int = 0) -> str:
        """Return the turns, each after its role in brackets, and a mark for each image before the text of the last user turn."""
        messages = system_merged(messages) if self.merges_system(messages) else messages
        last = max((index for index, turn in enumerate(messages) if turn.role is Role.USER), default=-1)
        marks = ["<image>" * images if index == last else "" for index in range(len(messages))]
        return "\n\n".join(f"[{turn.role}]\n{mark}{turn.content}" for turn, mark in zip(messages, marks, strict=True))

    def answer_gap(self, question: str, answer: str) -> str:
        """Return nothing: the answer is a message of its own."""
        return ""

    def version(self) -> str:
        """Hash of the formatter's code, and of the way to write system messages."""
        return stable_hash([code_version(type(self)), self._system_role])


def verbatim(formatter: Formatter) -> Formatter:
    """The formatter that leaves the texts of messages as they are, if there is one."""
    return VerbatimChatFormatter(formatter._handle, formatter._system_role) if isinstance(formatter, ChatTemplateFormatter) else formatter


def formatter_for(prompt_format: str, handle: ModelHandle, system_role: SystemRole = "auto") -> Formatter:
    """Return the formatter of a model's `prompt_format`: plain, chat, llama3 or identity. `system_role` is for conversations."""
    if prompt_format == ChatTemplateFormatter.name:
        if handle.takes_messages():
            return ConversationFormatter(system_role)
        return ChatTemplateFormatter(handle, system_role)
    formatters: dict[str, type[ConcatFormatter | Llama3Formatter | IdentityFormatter]] = {
        each.name: each for each in (ConcatFormatter, Llama3Formatter, IdentityFormatter)
    }
    return formatters[prompt_format](handle)
