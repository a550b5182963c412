"""Messages rendered by a model's own chat template."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from eval_dagster.errors import ModelError
from eval_dagster.records import Message, Role, ToolCall, Turn


def render(owner: Any, messages: Sequence[Message], *, in_parts: bool, images: int = 0, tools: Sequence[str] = ()) -> str:
    """Render messages by the template of a tokenizer or a processor. A last assistant message is left open, to be continued.

    With `in_parts` each content is a list of images and texts, as templates of vision-language models expect. The images stand before the
    text of the last user turn. `tools` are the definitions of those that the model may call, as JSON.

    Raises `ModelError` without a user turn for images, or if the template refuses these messages.
    """
    is_open = bool(messages) and messages[-1].role is Role.ASSISTANT
    options: dict[str, object] = {"continue_final_message": is_open, "add_generation_prompt": not is_open}
    if tools:
        options["tools"] = [json.loads(tool) for tool in tools]

    def rendered(turns: Sequence[Message]) -> str:
        conversation = _conversation(turns, in_parts=in_parts)
        if images:
            _add_images(conversation, images)
        return str(owner.apply_chat_template(conversation, tokenize=False, **options))

    readable = _readable(messages)
    try:
        try:
            return rendered(readable)
        except Exception:
            # Some templates, such as those of Llama 3, take one call at a time.
            if len(split := _one_by_one(readable)) == len(readable):
                raise
            return rendered(split)
    except ModelError:
        raise
    except Exception as error:
        roles = ", ".join(message.role.value for message in messages)
        raise ModelError(
            f"its chat template refuses a conversation of the turns [{roles}] ({type(error).__name__}: {error}). "
            "Set `prompt_format: plain`, or give the task turns that the template knows."
        ) from error


def _conversation(messages: Sequence[Message], *, in_parts: bool) -> list[dict[str, object]]:
    """Messages in the form that templates take."""
    names = {call.call_id: call.name for message in messages if isinstance(message, Turn) for call in message.tool_calls}
    return [
        {"role": turn.role.value, "content": _content(turn, in_parts), **(_of_tools(turn, names) if isinstance(turn, Turn) else {})}
        for turn in messages
    ]


def _readable(messages: Sequence[Message]) -> list[Message]:
    """The messages, with each unreadable call as text of the assistant, and its result as a message of the user."""
    unread = {call.call_id for each in messages if isinstance(each, Turn) for call in each.tool_calls if not _is_readable(call)}
    return [_with_texts(each) if isinstance(each, Turn) and each.tool_calls else _told(each, unread) for each in messages]


def _is_readable(call: ToolCall) -> bool:
    return bool(call.name) and call.arguments is not None


def _with_texts(turn: Turn) -> Turn:
    texts = [call.arguments_text for call in turn.tool_calls if not _is_readable(call)]
    content = "\n".join(filter(None, (turn.content, *texts)))
    return replace(turn, content=content, tool_calls=tuple(filter(_is_readable, turn.tool_calls)))


def _told(message: Message, unread: Collection[str]) -> Message:
    is_unread = isinstance(message, Turn) and message.tool_call_id in unread
    return Message(Role.USER, message.content) if is_unread else message


def _one_by_one(messages: Sequence[Message]) -> list[Message]:
    """The messages with turns of one call each, whose result follows it. The text of a turn stands before its first call."""
    results = {each.tool_call_id: each for each in messages if isinstance(each, Turn) and each.tool_call_id is not None}
    split: list[Message] = []
    moved: set[str] = set()
    for each in messages:
        if not isinstance(each, Turn) or len(each.tool_calls) < 2:
            if not (isinstance(each, Turn) and each.tool_call_id in moved):
                split.append(each)
            continue
        for position, call in enumerate(each.tool_calls):
            split.append(replace(each, content=each.content if position == 0 else "", tool_calls=(call,)))
            if call.call_id in results:
                split.append(results[call.call_id])
                moved.add(call.call_id)
    return split


def _content(message: Message, in_parts: bool) -> Any:
    return [{"type": "text", "text": message.content}] if in_parts else message.content


def _of_tools(turn: Turn, names: Mapping[str, str]) -> Mapping[str, object]:
    """The fields of a message that calls tools, or holds the result of one. Templates write arguments as JSON themselves."""
    if turn.tool_calls:
        calls = [{"name": call.name, "arguments": call.arguments or {}} for call in turn.tool_calls]
        ids = [call.call_id for call in turn.tool_calls]
        return {"tool_calls": [{"id": each, "type": "function", "function": call} for each, call in zip(ids, calls, strict=True)]}
    if turn.tool_call_id is None:
        return {}
    return {"tool_call_id": turn.tool_call_id, "name": names.get(turn.tool_call_id, "")}


def _add_images(conversation: Sequence[dict[str, object]], images: int) -> None:
    turn = next((turn for turn in reversed(conversation) if turn["role"] == Role.USER.value), None)
    if turn is None:
        raise ModelError(f"no user turn among the messages that could hold the {images} images.")
    turn["content"] = [*[{"type": "image"}] * images, *cast(list[object], turn["content"])]
