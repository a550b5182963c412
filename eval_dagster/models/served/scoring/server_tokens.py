"""Encodes texts by the tokenizer of a server."""

from typing import Any

from eval_dagster.errors import ModelError
from eval_dagster.models.served.calls.answers import BadAnswerError
from eval_dagster.models.served.calls.client import Client
from eval_dagster.models.served.scoring.scored_tokens import Pair, Tokens
from eval_dagster.models.transformers.encoding.tokenization import check_continuations, split_choices
from eval_dagster.models.transformers.encoding.windows import rolling_windows
from eval_dagster.records import Request

_MOST_CHARACTERS = 2**22
"""Characters of the texts whose tokens are kept, because the prompts of a question's choices are equal."""


class ServerTokenizer:
    """The tokenizer of a server that has `/tokenize`, as llama.cpp and vLLM do."""

    def __init__(self, client: Client, model: str) -> None:
        self._client = client
        self._model = model
        self._known: dict[tuple[str, bool], tuple[int, ...]] = {}
        self._characters = 0

    async def encode(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        """The ids of a text's tokens.

        Raises:
            BadAnswerError: The server gave none.
        """
        key = (text, add_special_tokens)
        if key not in self._known:
            tokens = await self._asked(text, add_special_tokens=add_special_tokens)
            self._characters += len(text)
            if self._characters > _MOST_CHARACTERS:
                self._known.clear()
                self._characters = len(text)
            self._known[key] = tokens
            return tokens
        return self._known[key]

    async def _asked(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        # llama.cpp reads `content` and `add_special`, vLLM `prompt` and `add_special_tokens`.
        body: dict[str, Any] = {"content": text, "add_special": add_special_tokens, "parse_special": True}
        body |= {"model": self._model, "prompt": text, "add_special_tokens": add_special_tokens}
        found: Any = (await self._client.post_root("/tokenize", body)).get("tokens")
        if not isinstance(found, list) or not all(type(each) is int and 0 <= each < 2**32 for each in found) or (text and not found):
            raise BadAnswerError("the server's /tokenize gave no list of token ids")
        return tuple(found)

    async def choices(self, request: Request) -> list[Pair]:
        """The prompt of a request and each of its choices. Raises as `Tokenizer.choices` does."""
        context, choices = split_choices(request)
        add_special_tokens = not request.has_special_tokens
        head = await self.encode(context, add_special_tokens=add_special_tokens)
        if not head:
            raise ModelError(_NO_START)
        wholes = [await self.encode(context + choice, add_special_tokens=add_special_tokens) for choice in choices]
        pairs: list[Pair] = [(whole[: len(head)], whole[len(head) :]) for whole in wholes]
        check_continuations(request, [tail for _, tail in pairs])
        return pairs

    async def windows(self, text: str, length: int | None) -> list[Pair]:
        """The windows that score each token of a text once. Raises as `Tokenizer.windows` does."""
        first, bare = await self.encode(text, add_special_tokens=True), await self.encode(text, add_special_tokens=False)
        if not bare:
            raise ModelError("The text is empty, so it has no token to score.")
        if len(first) != len(bare) + 1 or first[1:] != bare:
            raise ModelError(_NO_START)
        return windows_of(first[0], bare, length)

    def id_of(self, _token: str) -> int | None:
        """Null: a server gives the tokens of a text, and no id for the text of one token."""
        return None


_NO_START = (
    "Nothing stands before the first token, and the server's tokenizer adds no token to start with. Name the model's `tokenizer` in "
    "evals.yaml, which knows one."
)


def windows_of(start: int, tokens: Tokens, length: int | None) -> list[Pair]:
    """The windows of a text's tokens: the context of each, and what is scored after it."""
    spans = rolling_windows(start, tokens, length or len(tokens))
    return [(span.input[: len(span.input) + 1 - len(span.tokens)], span.tokens) for span in spans]
