"""Compares the tokenizer that evals.yaml names with the server's, on texts by which tokenizers differ."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from eval_dagster.config.models import OpenAIModel
from eval_dagster.errors import ModelError, NotEvaluatedError
from eval_dagster.models.served.calls.answers import BadAnswerError
from eval_dagster.models.served.calls.client import Client, PushbackError, StoppedError
from eval_dagster.models.served.calls.token_logprobs import read_token_logprobs
from eval_dagster.models.served.scoring.scoring import scoring_call
from eval_dagster.models.served.scoring.tokenizers import LocalTokenizer, ServerTokenizer, Tokens
from eval_dagster.records import Message, Role

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
