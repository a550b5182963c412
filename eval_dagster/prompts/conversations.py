"""Requests for the next message of a conversation, within an episode."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from json.encoder import encode_basestring as json_text
from typing import Any

from eval_dagster.errors import DataError
from eval_dagster.prompts.formatters import ChatTemplateFormatter, ConcatFormatter, ConversationFormatter, IdentityFormatter
from eval_dagster.prompts.rendering import AskedRow, Rendering, identity_of, joined_after, new_request, turns_json
from eval_dagster.records import GenerationSettings, Grammar, Message, Request, Role, Sample, TaskSample, Turn
from eval_dagster.tasks.base import Formatter
from eval_dagster.tasks.samples import TaskRow
from eval_dagster.versions.hashes import canonical_json, text_hash


@dataclass(frozen=True, kw_only=True)
class _Written:
    """A conversation as its last request has it."""

    messages: tuple[Message, ...]
    text: str
    sent: tuple[Message, ...] | None
    turns: str | None
    """The JSON of what is sent."""
    last: Message
    """The last message as the formatter takes it."""


class _Frame:
    """Requests that differ in their prompts and messages alone. What they share is written once."""

    def __init__(self, **shared: Any) -> None:
        """`shared` are the fields of a `Request` without id, prompt and messages."""
        self._shared = shared
        self._parts: list[str] = []

    def request(self, prompt: str, messages: tuple[Message, ...] | None, turns: str | None) -> Request:
        """A request with its id. `turns` is the `turns_json` of its messages, or null if its prompt is sent."""
        if not prompt:  # which does not count in the id
            return new_request(prompt=prompt, messages=messages, **self._shared)
        made = Request(request_id="", prompt=prompt, messages=messages, **self._shared)
        if not self._parts:
            marked = identity_of(made) | dict.fromkeys(("prompt",) if messages is None else ("messages", "prompt"))
            # In a text of JSON the quotes are escaped, so that each mark stands in one place.
            self._parts = re.split(r'(?<="messages":)null|(?<="prompt":)null', canonical_json(marked))
        before, *between, after = self._parts
        sent = f"{before}[{turns}]{between[0]}" if between else before
        object.__setattr__(made, "request_id", text_hash(f"{sent}{json_text(prompt)}{after}"))  # nobody has seen it yet
        return made


class Conversations:
    """Makes the requests to a model for the next messages of conversations."""

    def __init__(self, rendering: Rendering, *, is_scripted: bool = False) -> None:
        """`rendering` has the task, the format and the settings. `is_scripted`: a function answers, which sees the tools in the request."""
        self._rendering, self._is_scripted = rendering, is_scripted
        formatter = rendering.formatter
        self._is_sent = isinstance(formatter, ConversationFormatter)
        self._row = Sample(sample_id="", content_id="", subject="", split="", row_index=0, row={})
        self._offering: dict[tuple[str, ...], Formatter] = {}
        """The formatters of conversations with tools. Each finds out once what the template has."""
        self._settings: dict[tuple[object, ...], GenerationSettings] = {}
        """By what a request sets. Nearly all requests of a task set the same."""
        self._frames: dict[tuple[object, ...], _Frame] = {}
        # Each message's part of the text depends on it and the one before alone, so that a conversation that goes on is not written anew.
        self._grows = isinstance(formatter, ConcatFormatter | IdentityFormatter) or (
            isinstance(formatter, ConversationFormatter) and not formatter.merges_system([Message(Role.SYSTEM, "")])
        )
        self._written: dict[str, _Written] = {}

    def request(
        self,
        messages: Sequence[Message],
        *,
        conversation: str = "",
        tools: tuple[str, ...] = (),
        tool_choice: str = "",
        max_tokens: int | None = None,
        temperature: float | None = None,
        stop_sequences: tuple[str, ...] | None = None,
        grammar: Grammar | None = None,
        repetition: int = 0,
    ) -> Request:
        """The request for the next message of a conversation.

        Args:
            messages: The whole conversation so far.
            conversation: Its name. What a request shares with the one before of this name is written once.
            tools: Definitions of the tools that the model may call, as JSON.
            tool_choice: `required`, `none`, or the name of the tool to be called; empty: as the model likes.
            max_tokens: Most tokens of the answer; the task's own number if not given.
            temperature: The task's temperature; what the model sets in evals.yaml counts more.
            stop_sequences: The task's own if not given.
            grammar: The form of the answer.
            repetition: Tells equal sampled requests of a conversation apart.

        Raises:
            DataError: The model cannot be told of tools, or there is nothing to choose or to say.
        """
        if not messages:
            raise DataError("a model is asked without a message; expected one at least")
        formatter = self._rendering.formatter
        if tool_choice:
            _require_choice(tool_choice, tools, grammar)
        if tool_choice == "none" and not (self._is_sent or self._is_scripted):
            tools, tool_choice = (), ""  # what a model is not told of, it does not call
        if isinstance(formatter, ChatTemplateFormatter) and formatter.takes_tools:
            if tools not in self._offering:
                self._offering[tools] = formatter.offering(tools)
            formatter = self._offering[tools]
        elif tools and not (self._is_sent or self._is_scripted):
            raise DataError(f"task {self._rendering.task.NAME}: {_NO_TOOLS}")
        if tool_choice not in ("", "none") and not (self._is_sent or self._is_scripted):
            grammar = _grammar_of_calls(tools, tool_choice)
        key = (max_tokens, temperature, stop_sequences, grammar)
        settings = self._settings.get(key)
        if settings is None:
            made = TaskSample(
                messages=messages,
                ground_truth=None,
                max_tokens=max_tokens,
                temperature=temperature,
                stop_sequences=stop_sequences,
                grammar=grammar,
                num_samples=1,
            )
            asked = AskedRow(rendering=self._rendering, sample=self._row, row=TaskRow(self._row), fewshot_set=None)
            settings = self._settings[key] = asked.settings(made)
        is_repetition = settings.temperature > 0 and repetition > 0
        if is_repetition:
            settings = replace(settings, seed=settings.seed + repetition)
        written = self._write(formatter, tuple(messages), conversation)
        special = formatter.has_special_tokens
        alike = (key, special, tools, tool_choice)
        frame = None if is_repetition else self._frames.get(alike)
        if frame is None:
            frame = _Frame(has_special_tokens=special, generation=settings, tools=tools, tool_choice=tool_choice)
            if not is_repetition:  # nearly each of which has a seed of its own
                self._frames[alike] = frame
        return frame.request(joined_after(written.text, written.last, formatter, ("answer",))[0], written.sent, written.turns)

    def end(self, conversation: str) -> None:
        """Forget a conversation that has ended."""
        self._written.pop(conversation, None)

    def _write(self, formatter: Formatter, messages: tuple[Message, ...], conversation: str) -> _Written:
        """A conversation as text, and as it is sent."""
        before = self._written.get(conversation)
        new: Sequence[Message] = messages
        if before is not None and messages[: len(before.messages)] == before.messages:
            new = messages[len(before.messages) :]
            shown = [before.last, *self._shown(formatter, new)]
            text = before.text + formatter.format(shown)[len(formatter.format(shown[:1])) :]
        else:
            shown = self._shown(formatter, messages)
            before, text = None, formatter.format(shown)
        sent, turns = None, None
        if isinstance(formatter, ConversationFormatter):
            sent = formatter.sent(new)
            turns = turns_json(sent)
            if before is not None and before.sent is not None:
                turns = f"{before.turns},{turns}" if turns else before.turns
                sent = (*before.sent, *sent)
        written = _Written(messages=messages, text=text, sent=sent, turns=turns, last=shown[-1])
        if self._grows and conversation:
            self._written[conversation] = written
        return written

    def _shown(self, formatter: Formatter, messages: Iterable[Message]) -> list[Message]:
        """Messages as the formatter takes them. One that makes a text alone is told of calls and results as texts."""
        if self._is_sent or (isinstance(formatter, ChatTemplateFormatter) and formatter.takes_tools):
            return list(messages)
        return [each.told if isinstance(each, Turn) else each for each in messages]

    def reads_calls(self, request: Request) -> bool:
        """Whether calls of tools are in the text of an answer: the model is told of tools by its own template, not by a server."""
        is_rendered = isinstance(self._rendering.formatter, ChatTemplateFormatter)
        return bool(request.tools) and is_rendered


_NO_TOOLS = (
    "this model cannot be told of tools; expected prompt_format: chat with a chat template that shows tools, a server that takes messages, "
    "or a scripted model"
)


def _require_choice(tool_choice: str, tools: Sequence[str], grammar: Grammar | None) -> None:
    names = [json.loads(tool)["function"]["name"] for tool in tools]
    if tool_choice not in ("none", *(["required"] if names else []), *names):
        raise DataError(
            f"tool_choice is {tool_choice!r}; expected required, none or one of the tools: {', '.join(names) or 'there are none'}"
        )
    if grammar is not None and tool_choice != "none":
        raise DataError(f"tool_choice is {tool_choice!r}, and the task has a grammar of its answers; expected one of the two")


def _grammar_of_calls(tools: Sequence[str], tool_choice: str) -> Grammar:
    """The form of one call as JSON, of any tool or of the one that must be called."""
    choices, shared = [], dict[str, object]()
    for function in (json.loads(tool)["function"] for tool in tools):
        name = function["name"]
        if tool_choice in ("required", name):
            text = json.dumps(function.get("parameters") or {"type": "object"}).replace('"#/$defs/', f'"#/$defs/{name}.')
            parameters = json.loads(text)
            shared |= {f"{name}.{key}": value for key, value in parameters.pop("$defs", {}).items()}
            fields = {"name": {"const": name}, "arguments": parameters}
            choices.append({"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False})
    return Grammar(kind="json_schema", value=json.dumps({"anyOf": choices, "$defs": shared} if shared else {"anyOf": choices}))
