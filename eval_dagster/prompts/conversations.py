"""Requests for the next message of a conversation, within an episode."""

import json
from collections.abc import Sequence
from dataclasses import replace

from eval_dagster.errors import DataError
from eval_dagster.prompts.formatters import ChatTemplateFormatter, ConversationFormatter
from eval_dagster.prompts.rendering import AskedRow, Rendering, new_request
from eval_dagster.records import Grammar, Message, Request, Role, Sample, TaskSample, Turn
from eval_dagster.tasks.samples import TaskRow


def conversation_request(
    rendering: Rendering,
    messages: Sequence[Message],
    *,
    tools: Sequence[str] = (),
    tool_choice: str = "",
    is_scripted: bool = False,
    max_tokens: int | None = None,
    temperature: float | None = None,
    stop_sequences: Sequence[str] | None = None,
    grammar: Grammar | None = None,
    repetition: int = 0,
) -> Request:
    """The request for the next message of a conversation.

    Args:
        rendering: The task, the format and the settings.
        messages: The whole conversation so far.
        tools: Definitions of the tools that the model may call, as JSON.
        tool_choice: `required`, `none`, or the name of the tool to be called; empty: as the model likes.
        is_scripted: Whether a function answers, which sees the tools in the request.
        max_tokens: Most tokens of the answer; the task's own number if not given.
        temperature: The task's temperature; what the model sets in evals.yaml counts more.
        stop_sequences: The task's own if not given.
        grammar: The form of the answer.
        repetition: Tells equal sampled requests of a conversation apart.

    Raises:
        DataError: The model cannot be told of tools, or there is nothing to choose.
    """
    formatter, sent = rendering.formatter, messages
    is_sent = isinstance(formatter, ConversationFormatter)
    if isinstance(formatter, ChatTemplateFormatter) and formatter.takes_tools:
        rendering = replace(rendering, formatter=formatter.offering(tools))
    elif tools and not (is_sent or is_scripted):
        raise DataError(f"task {rendering.task.NAME}: {_NO_TOOLS}")
    elif not is_sent:
        sent = without_turns(messages)
    if tool_choice:
        _require_choice(tool_choice, tools, grammar)
    if tool_choice not in ("", "none") and not (is_sent or is_scripted):
        grammar = _grammar_of_calls(tools, tool_choice)
    row = Sample(sample_id="", content_id="", subject="", split="", row_index=0, row={})
    asked = AskedRow(rendering=rendering, sample=row, row=TaskRow(row), fewshot_set=None)
    made = TaskSample(
        messages=sent,
        ground_truth=None,
        max_tokens=max_tokens,
        temperature=temperature,
        stop_sequences=stop_sequences,
        grammar=grammar,
        num_samples=1,
    )
    settings = asked.settings(made)
    if settings.temperature > 0:
        settings = replace(settings, seed=settings.seed + repetition)
    return new_request(
        prompt=asked.joined(made, ("answer",))[0],
        has_special_tokens=rendering.formatter.has_special_tokens,
        generation=settings,
        messages=asked.sent(made),
        tools=tuple(tools),
        tool_choice=tool_choice,
    )


def reads_calls(rendering: Rendering, request: Request) -> bool:
    """Whether calls of tools are in the text of an answer: the model is told of tools by its own template, not by a server."""
    return bool(request.tools) and request.tool_choice != "none" and isinstance(rendering.formatter, ChatTemplateFormatter)


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


def without_turns(messages: Sequence[Message]) -> list[Message]:
    """A conversation for a model that reads one text: calls of tools are lines of their own, and their results are the user's turns."""
    return [_without_calls(each) if isinstance(each, Turn) else each for each in messages]


def _without_calls(turn: Turn) -> Message:
    if turn.role is Role.TOOL:
        return Message(Role.USER, turn.content)
    if not turn.tool_calls:
        return turn
    calls = [f"{call.name}({call.arguments_text})" for call in turn.tool_calls]
    return Message(turn.role, "\n".join([turn.content, *calls] if turn.content else calls))
