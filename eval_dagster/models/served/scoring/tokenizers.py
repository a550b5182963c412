"""The tokenizers of a served model: one on this machine that encodes as the server does, and the server's own."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

from eval_dagster.errors import ModelError
from eval_dagster.models.served.calls.answers import BadAnswerError
from eval_dagster.models.served.calls.client import Client
from eval_dagster.models.transformers.encoding import chat_template
from eval_dagster.models.transformers.encoding.tokenization import Codec, check_continuations, rolling_windows, split_choices
from eval_dagster.models.transformers.weights.sources import TokenizerFiles, require_packages
from eval_dagster.progress.reporting import current_reporter
from eval_dagster.records import Message, Request
from eval_dagster.versions.hashes import code_version, package_versions, stable_hash

Tokens = Sequence[int]
"""Ids of tokens."""
Pair = tuple[Tokens, Tokens]
"""The tokens of a context, and those that are scored after it."""
_ENDLESS = 10**9
"""Tokens of context: what fits is for the server to say."""
_MOST_CHARACTERS = 2**22
"""Characters of the texts whose tokens are kept, because the prompts of a question's choices are equal."""
_NO_START = (
    "Nothing stands before the first token, and the server's tokenizer adds no token to start with. Name the model's `tokenizer` in "
    "evals.yaml, which knows one."
)


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


class LocalTokenizer:
    """The tokenizer that a model's key `tokenizer` names. It is loaded when it is first needed."""

    def __init__(self, name: str, files: TokenizerFiles) -> None:
        """`name` is the model's in evals.yaml."""
        self._name = name
        self._files = files

    def check(self) -> None:
        """Raise `ModelNotFoundError` unless the tokenizer is there."""
        self._files.check()

    def version(self) -> str:
        """Hash of the files, and of the packages that encode by them. Loads nothing."""
        return stable_hash([self._files.fingerprint(), package_versions(("tokenizers", "transformers"))])

    def template_version(self) -> str:
        """Hash of the files, and of what renders their chat template. Loads nothing."""
        packages = package_versions(("jinja2", "transformers"))
        return stable_hash([self._files.fingerprint(), packages, code_version(chat_template.render)])

    def render(self, messages: Sequence[Message]) -> str:
        """Render messages by the chat template; a last message of the assistant is left open.

        Raises:
            ModelError: The chat template is missing, or it refuses these messages.
        """
        if not self._tokenizer.chat_template:
            raise ModelError(f"Model {self._name!r}: its `tokenizer` has no chat template. Set `send: messages` for it in evals.yaml.")
        try:
            return chat_template.render(self._tokenizer, messages, in_parts=False)
        except ModelError as error:
            raise ModelError(f"Model {self._name!r}: {error}") from error

    def prompt(self, request: Request) -> tuple[int, ...]:
        """The ids of the tokens of a prompt. Raises `ModelError` for an empty one without a token to start with."""
        return self._codec.encode_prompt(request, None).tokens

    def tokens(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        """The ids of a text's tokens."""
        # `verbose` would warn of texts longer than the tokenizer believes the context to be.
        return tuple(self._tokenizer(text, add_special_tokens=add_special_tokens, verbose=False)["input_ids"])

    def special_tokens(self) -> list[str]:
        """The texts of the special tokens."""
        return [str(token) for token in self._tokenizer.all_special_tokens]

    async def encode(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        """The ids of a text's tokens."""
        return self.tokens(text, add_special_tokens=add_special_tokens)

    async def choices(self, request: Request) -> list[Pair]:
        """The prompt of a request and each of its choices. Raises as `Tokenizer.choices` does."""
        _, spans = self._codec.encode_choices(request)
        return [(span.input[: len(span.input) + 1 - len(span.tokens)], span.tokens) for span in spans]

    async def windows(self, text: str, length: int | None) -> list[Pair]:
        """The windows that score each token of a text once. Raises as `Tokenizer.windows` does."""
        start, tokens = self._codec.encode_text(text)
        if not tokens:
            raise ModelError("The text is empty, so it has no token to score.")
        return windows_of(start, tokens, length)

    def id_of(self, token: str) -> int | None:
        """The id of a token that is given as text; null if the text is not one token."""
        ids = self.tokens(token, add_special_tokens=False)
        return ids[0] if len(ids) == 1 and self._tokenizer.decode(list(ids)) == token else None

    @cached_property
    def _codec(self) -> Codec:
        return Codec(self._tokenizer, max_length=_ENDLESS, truncate=False)

    @cached_property
    def _tokenizer(self) -> Any:
        require_packages(self._name, "`tokenizer`")
        with current_reporter().track("import transformers", total=1, unit="package") as advance:
            from eval_dagster.models.transformers.weights.loading import load_tokenizer  # takes seconds

            advance()
        return load_tokenizer(self._name, self._files.folder())


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
        if key in self._known:
            return self._known[key]
        # llama.cpp reads `content` and `add_special`, vLLM `prompt` and `add_special_tokens`.
        body: dict[str, object] = {"content": text, "add_special": add_special_tokens, "parse_special": True}
        body |= {"model": self._model, "prompt": text, "add_special_tokens": add_special_tokens}
        found = (await self._client.post_root("/tokenize", body)).get("tokens")
        if not isinstance(found, list) or not all(type(each) is int and 0 <= each < 2**32 for each in found) or (text and not found):
            raise BadAnswerError("the server's /tokenize gave no list of token ids")
        self._characters += len(text)
        if self._characters > _MOST_CHARACTERS:
            self._known.clear()
            self._characters = len(text)
        tokens = self._known[key] = tuple(found)
        return tokens

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


def windows_of(start: int, tokens: Tokens, length: int | None) -> list[Pair]:
    """The windows of a text's tokens: the context of each, and what is scored after it."""
    spans = rolling_windows(start, tokens, length or len(tokens))
    return [(span.input[: len(span.input) + 1 - len(span.tokens)], span.tokens) for span in spans]
