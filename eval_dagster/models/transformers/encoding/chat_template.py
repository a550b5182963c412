"""Messages rendered by a model's own chat template."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from eval_dagster.errors import ModelError
from eval_dagster.records import Message, Role, Turn


def render(owner: Any, messages: Sequence[Message], *, in_parts: bool, images: int = 0, tools: Sequence[str] = ()) -> str:
    """Render messages by the template of a tokenizer or a processor. A last assistant message is left open, to be continued.

    With `in_parts` each content is a list of images and texts, as templates of vision-language models expect. The images stand before the
    text of the last user turn. `tools` are the definitions of those that the model may call, as JSON.

    Raises `ModelError` without a user turn for images, or if the template refuses these messages.
    """
    is_open = bool(messages) and messages[-1].role is Role.ASSISTANT
    names = {call.call_id: call.name for message in messages if isinstance(message, Turn) for call in message.tool_calls}
    conversation = [
        {"role": turn.role.value, "content": _content(turn, in_parts), **(_of_tools(turn, names) if isinstance(turn, Turn) else {})}
        for turn in messages
    ]
    if images:
        _add_images(conversation, images)
    try:
        return str(
            owner.apply_chat_template(
                conversation,
                tokenize=False,
                continue_final_message=is_open,
                add_generation_prompt=not is_open,
                **({"tools": [json.loads(tool) for tool in tools]} if tools else {}),
            )
        )
    except Exception as error:
        roles = ", ".join(message.role.value for message in messages)
        raise ModelError(
            f"its chat template refuses a conversation of the turns [{roles}] ({type(error).__name__}: {error}). "
            "Set `prompt_format: plain`, or give the task turns that the template knows."
        ) from error


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


def _add_images(conversation: Sequence[dict[str, Any]], images: int) -> None:
    turn = next((turn for turn in reversed(conversation) if turn["role"] == Role.USER.value), None)
    if turn is None:
        raise ModelError(f"no user turn among the messages that could hold the {images} images.")
    turn["content"] = [{"type": "image"}] * images + turn["content"]
