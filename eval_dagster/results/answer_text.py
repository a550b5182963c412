"""The answer of a response as one text."""

from collections.abc import Mapping
from typing import Any


def answer_text(response: Mapping[str, Any] | None, prompt: Mapping[str, Any] | None) -> str | None:
    """The text without its reasoning, or the choice with the highest log-probability; null without an answer.

    Args:
        response: A row of `responses` with `text`, `text_post_processed` and `choice_logprobs`.
        prompt: The row of `prompts` with `choices`.
    """
    if response is None:
        return None
    for texts in (response["text_post_processed"], response["text"]):
        if texts:
            return str(texts[0])
    logprobs, choices = response["choice_logprobs"], prompt and prompt["choices"]
    if logprobs and choices and len(logprobs) == len(choices):
        return str(choices[max(range(len(logprobs)), key=logprobs.__getitem__)])
    return None
