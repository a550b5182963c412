"""Encodes texts by the tokenizer of a server."""

from collections.abc import Sequence
from typing import Any

from eval_dagster.errors import ModelError
from eval_dagster.models.served.answers import BadAnswerError
from eval_dagster.models.served.client import Client

_MOST_KEPT = 4096
"""Texts whose tokens are kept, because the prompts of a question's choices are equal."""


Pair = tuple[tuple[int, ...], tuple[int, ...]]
"""The tokens of a context and of a choice."""


class ServerTokenizer:
    """The tokenizer of a server that has `/tokenize`, as llama.cpp and vLLM do."""

    def __init__(self, client: Client, model: str) -> None:
        self._client = client
        self._model = model
        self._known: dict[tuple[str, bool], tuple[int, ...]] = {}

    async def encode(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        """The ids of a text's tokens.

        Raises:
            BadAnswerError: The server gave none.
        """
        key = (text, add_special_tokens)
        if key not in self._known:
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            # llama.cpp reads `content` and `add_special`, vLLM `prompt` and `add_special_tokens`.
            body: dict[str, Any] = {"content": text, "add_special": add_special_tokens, "parse_special": True}
            body |= {"model": self._model, "prompt": text, "add_special_tokens": add_special_tokens}
            found: Any = (await self._client.post_root("/tokenize", body)).get("tokens")
            if not isinstance(found, Sequence) or not all(isinstance(each, int) for each in found):
                raise BadAnswerError("the server's /tokenize gave no list of token ids")
            self._known[key] = tuple(found)
        return self._known[key]

    async def pairs(self, context: str, choices: Sequence[str], *, add_special_tokens: bool) -> list[Pair]:
        """The tokens of a context and of each choice after it. Context and choice are encoded together.

        The tokens of a choice are those after the first `len(encode(context))`, as in lm-evaluation-harness.

        Raises:
            ModelError: The context has no token.
            BadAnswerError: As `encode` does.
        """
        head = await self.encode(context, add_special_tokens=add_special_tokens)
        if not head:
            raise ModelError("Nothing stands before the first token, and the server's tokenizer adds no token to start with.")
        wholes = [await self.encode(context + choice, add_special_tokens=add_special_tokens) for choice in choices]
        return [(whole[: len(head)], whole[len(head) :]) for whole in wholes]
