"""The tokenizers of a served model: one on this machine that encodes as the server does, and the server's own. The two are compared."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Protocol, TypeVar

from eval_dagster.config.models import OpenAIModel
from eval_dagster.errors import ModelError, NotEvaluatedError
from eval_dagster.models.served.calls.answer_records import BadAnswerError, read_token_logprobs
from eval_dagster.models.served.calls.bodies import scoring_call
from eval_dagster.models.served.calls.client import Client, PushbackError, StoppedError
from eval_dagster.models.transformers.encoding import chat_template
from eval_dagster.models.transformers.encoding.tokenization import Codec, check_continuations, rolling_windows, split_choices
from eval_dagster.models.transformers.weights.sources import TokenizerFiles, require_packages
from eval_dagster.progress.reporting import current_reporter
from eval_dagster.records import Message, Request, Role
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
_ATTEMPTS, _FEW = 5, 3
"""Attempts at a call; and attempts if the answer says that the server lacks something, because such an answer can be wrong once."""
_SPENT = (402, 429)
"""Statuses of a spent quota. With another one, the server lacks this path, or refuses it."""
T = TypeVar("T")
_TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "Two  spaces,   three\n\n\tand a tab",
    " a space before, and one after ",
    "In 1969, 3.14159 and 1234567890 were 50% of $1,000.",
    "naïve café, Größe, 東京, привет, नमस्ते, 🙂👩‍🚀",
    "def f(x):\n    return {'a': [x**2, None]}  # it's HTTPServer_v2\n",
)
_MOST_SPECIAL = 4
"""Special tokens of the text that has some."""
_MOST_SHOWN = 40
"""Tokens that an error shows."""


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
        return [(span.context, span.tokens) for span in spans]

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
        tokens = await self._client.post_root("/tokenize", body, partial(_token_ids, text))
        self._characters += len(text)
        if self._characters > _MOST_CHARACTERS:
            self._known.clear()
            self._characters = len(text)
        self._known[key] = tokens
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


def _token_ids(text: str, answer: Mapping[str, object]) -> tuple[int, ...]:
    """The ids in an answer of `/tokenize` to a text. Raises `BadAnswerError` if it has none."""
    found = answer.get("tokens")
    if not isinstance(found, list) or not all(type(each) is int and 0 <= each < 2**32 for each in found) or (text and not found):
        raise BadAnswerError("the server's /tokenize gave no list of token ids")
    return tuple(found)


def windows_of(start: int, tokens: Tokens, length: int | None) -> list[Pair]:
    """The windows of a text's tokens: the context of each, and what is scored after it."""
    spans = rolling_windows(start, tokens, length or len(tokens))
    return [(span.context, span.tokens) for span in spans]


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Try a call some times: a server that is busy says nothing about what it can do.

    Raises:
        BadAnswerError: The server has no answer to such a call.
        StoppedError: The quota is spent, or a cap is reached.
    """
    for attempt in range(_ATTEMPTS):
        try:
            return await ask()
        except PushbackError as error:
            if attempt == _ATTEMPTS - 1:
                raise BadAnswerError(str(error)) from None
            await asyncio.sleep(min(error.retry_after_s or 2.0**attempt, 30.0))
        except StoppedError as error:
            is_last = attempt == _ATTEMPTS - 1
            if isinstance(error, NotEvaluatedError) or (is_last and error.status in _SPENT):
                raise
            if is_last:
                raise BadAnswerError(str(error), kind="NoLogprobsError") from None
            await asyncio.sleep(0.1)
        except BadAnswerError as error:
            if not error.helps_to_retry or attempt >= (_FEW if error.kind == "NoLogprobsError" else _ATTEMPTS) - 1:
                raise
            await asyncio.sleep(2.0**attempt / 4)
    raise AssertionError


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """The tokens of a text, as a server reports them."""

    ids: Tokens | None = None
    count: int | None = None


async def require_same_tokens(name: str, config: OpenAIModel, client: Client, local: LocalTokenizer) -> None:
    """Require that a local tokenizer gives the tokens of the server's.

    The server's come from `/tokenize`; without it from an echoed prompt, or `usage` gives their number.

    Raises:
        ModelError: The two differ, or the server tells nothing about tokens.
        StoppedError: The quota is spent.
    """
    special = local.special_tokens()[:_MOST_SPECIAL]
    texts = [*_TEXTS, "user\nHi".join(special)] if special else list(_TEXTS)
    server = ServerTokenizer(client, config.model)
    try:
        await patiently(partial(server.encode, texts[0], add_special_tokens=True))
    except BadAnswerError:
        await asyncio.gather(*(_compare_by_completion(name, config, client, local, text) for text in texts))
    else:
        await asyncio.gather(*(_compare_by_endpoint(name, config, server, local, text) for text in texts))
    if config.send == "text" and config.prompt_format == "chat":
        text = local.render([Message(Role.USER, "Hi")])
        here = local.tokens(text, add_special_tokens=False)
        seen = await _completed(config, client, {"prompt": text, "add_special_tokens": False}, local)
        if seen.count is not None and seen.count != len(here):
            raise ModelError(
                f"Model {name!r}: the server at {config.base_url} reads {seen.count} tokens in a conversation that `tokenizer` renders as "
                f"{len(here)}: {text!r}. It adds tokens that the chat template has already. Set `send: tokens` for this model in "
                "evals.yaml."
            )


async def _compare_by_endpoint(name: str, config: OpenAIModel, server: ServerTokenizer, local: LocalTokenizer, text: str) -> None:
    for add_special_tokens in (True, False):
        there = await patiently(partial(server.encode, text, add_special_tokens=add_special_tokens))
        here = local.tokens(text, add_special_tokens=add_special_tokens)
        if here != there:
            raise _difference(name, config, text, here, _Seen(ids=there))


async def _compare_by_completion(name: str, config: OpenAIModel, client: Client, local: LocalTokenizer, text: str) -> None:
    here = local.tokens(text, add_special_tokens=True)
    try:
        seen = await _completed(config, client, {"prompt": text, "echo": True}, local)
    except BadAnswerError:
        seen = await _completed(config, client, {"prompt": text}, local)
    if seen.ids is None and seen.count is None:
        raise ModelError(
            f"Model {name!r}: the server at {config.base_url} has no /tokenize, and tells neither the tokens of a prompt nor their number, "
            "so that `tokenizer` cannot be compared with it. Leave `tokenizer` out in evals.yaml, or use a server that counts tokens."
        )
    is_same = seen.count == len(here) if seen.ids is None else tuple(seen.ids[: len(here)]) == here and len(seen.ids) <= len(here) + 1
    if not is_same:
        raise _difference(name, config, text, here, seen)


async def _completed(config: OpenAIModel, client: Client, body: Mapping[str, object], local: LocalTokenizer) -> _Seen:
    """The tokens of a prompt, as the completion of one token reports them."""
    call = scoring_call(config, {**body, "max_tokens": 1}, lambda choice: choice)
    reply = await patiently(partial(client.ask, call))
    ids: list[int | None] = []
    if "echo" in body:
        with suppress(BadAnswerError):
            found = read_token_logprobs(reply.content)
            ids = [local.id_of(each.token) if each.token_id is None else each.token_id for each in found]
    known = [each for each in ids if each is not None]
    is_echoed = len(ids) > 1 and len(known) == len(ids)  # a server that ignores `echo` gives the generated token alone
    return _Seen(ids=known if is_echoed else None, count=reply.prompt_tokens)


def _difference(name: str, config: OpenAIModel, text: str, here: Tokens, there: _Seen) -> ModelError:
    seen = f"{there.count} tokens" if there.ids is None else _shown(there.ids)
    return ModelError(
        f"Model {name!r}: `tokenizer` in evals.yaml is not that of the server at {config.base_url}. For the text {text!r} it gives "
        f"{_shown(here)}; the server has {seen}. Name the tokenizer of the model that is served, or leave `tokenizer` out."
    )


def _shown(ids: Tokens) -> str:
    more = f" and {len(ids) - _MOST_SHOWN} more" if len(ids) > _MOST_SHOWN else ""
    return f"{len(ids)} tokens {list(ids[:_MOST_SHOWN])}{more}"
