"""Requests for the next message of a conversation, within an episode."""

from collections.abc import Sequence
from dataclasses import replace

from eval_dagster.errors import DataError
from eval_dagster.prompts.formatters import ConversationFormatter
from eval_dagster.prompts.rendering import AskedRow, Rendering, new_request
from eval_dagster.records import Grammar, Message, Request, Role, Sample, TaskSample, Turn
from eval_dagster.tasks.samples import TaskRow


def conversation_request(
    rendering: Rendering,
    messages: Sequence[Message],
    *,
    tools: Sequence[str] = (),
    takes_tools: bool = True,
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
        takes_tools: Whether the model can be told of tools.
        max_tokens: Most tokens of the answer; the task's own number if not given.
        temperature: The task's temperature; what the model sets in evals.yaml counts more.
        stop_sequences: The task's own if not given.
        grammar: The form of the answer.
        repetition: Tells equal sampled requests of a conversation apart.

    Raises:
        DataError: The model takes no tools.
    """
    if tools and not takes_tools:
        raise DataError(
            f"task {rendering.task.NAME}: this model cannot be told of tools; expected a scripted model, or one behind a server with "
            "prompt_format: chat"
        )
    row = Sample(sample_id="", content_id="", subject="", split="", row_index=0, row={})
    asked = AskedRow(rendering=rendering, sample=row, row=TaskRow(row), fewshot_set=None)
    made = TaskSample(
        messages=messages if isinstance(rendering.formatter, ConversationFormatter) else without_turns(messages),
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
    )


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
