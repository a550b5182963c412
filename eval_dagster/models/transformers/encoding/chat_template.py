"""Messages rendered by a model's own chat template."""

from collections.abc import Sequence
from typing import Any

from eval_dagster.errors import ModelError
from eval_dagster.records import Message, Role


def render(owner: Any, messages: Sequence[Message], *, in_parts: bool, images: int = 0) -> str:
    """Render messages by the template of a tokenizer or a processor. A last assistant message is left open, to be continued.

    With `in_parts` each content is a list of images and texts, as templates of vision-language models expect. The images stand before the
    text of the last user turn. Raises `ModelError` without a user turn for them, or if the template refuses these messages.
    """
    is_open = bool(messages) and messages[-1].role is Role.ASSISTANT
    conversation = [{"role": message.role.value, "content": _content(message, in_parts)} for message in messages]
    if images:
        _add_images(conversation, images)
    try:
        return str(
            owner.apply_chat_template(conversation, tokenize=False, continue_final_message=is_open, add_generation_prompt=not is_open)
        )
    except Exception as error:
        roles = ", ".join(message.role.value for message in messages)
        raise ModelError(
            f"its chat template refuses a conversation of the turns [{roles}] ({type(error).__name__}: {error}). "
            "Set `prompt_format: plain`, or give the task turns that the template knows."
        ) from error


def _content(message: Message, in_parts: bool) -> Any:
    return [{"type": "text", "text": message.content}] if in_parts else message.content


def _add_images(conversation: Sequence[dict[str, Any]], images: int) -> None:
    turn = next((turn for turn in reversed(conversation) if turn["role"] == Role.USER.value), None)
    if turn is None:
        raise ModelError(f"no user turn among the messages that could hold the {images} images.")
    turn["content"] = [{"type": "image"}] * images + turn["content"]
