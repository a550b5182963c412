"""A served model's tokenizer on this machine: renders conversations and encodes texts as the server does."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from eval_dagster.errors import ModelError
from eval_dagster.models.served.scoring.scored_tokens import Pair
from eval_dagster.models.served.scoring.server_tokens import windows_of
from eval_dagster.models.transformers.encoding import chat_template
from eval_dagster.models.transformers.encoding.tokenization import Codec
from eval_dagster.models.transformers.weights.sources import require_packages
from eval_dagster.models.transformers.weights.tokenizer_files import TokenizerFiles
from eval_dagster.progress.reporting import current_reporter
from eval_dagster.records import Message, Request
from eval_dagster.versions.hashes import code_version, package_versions, stable_hash

_ENDLESS = 10**9
"""Tokens of context: what fits is for the server to say."""


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
