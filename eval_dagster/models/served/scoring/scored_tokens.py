"""The tokens of a request that is scored, by the tokenizer of the server or by a local one."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from eval_dagster.records import Request

Tokens = Sequence[int]
"""Ids of tokens."""
Pair = tuple[Tokens, Tokens]
"""The tokens of a context, and those that are scored after it."""


class Tokenizer(Protocol):
    """Encodes what is scored."""

    async def encode(self, text: str, *, add_special_tokens: bool) -> Tokens:
        """The ids of a text's tokens. Raises `BadAnswerError` if a server gives none."""
        ...

    async def choices(self, request: Request) -> list[Pair]:
        """The prompt of a request and each of its choices.

        Prompt and choice are encoded together. The tokens of the choice are those after the first `len(encode(prompt))`, as in
        lm-evaluation-harness.

        Raises:
            ModelError: A choice has no token of its own, or the prompt has none.
            BadAnswerError: As `encode` does.
        """
        ...

    async def windows(self, text: str, length: int | None) -> list[Pair]:
        """The windows of `length` tokens that score each token of a text once; one window without a length.

        Raises:
            ModelError: The text has no token, or nothing stands before its first one.
            BadAnswerError: As `encode` does.
        """
        ...

    def id_of(self, token: str) -> int | None:
        """The id of a token that is given as text; null if it is not known."""
        ...


def unconditioned(request: Request) -> Request | None:
    """The request whose choices are scored a second time, after the prompt without the question."""
    if request.unconditioned_prompt is None:
        return None
    return replace(request, prompt=request.unconditioned_prompt, images=())
