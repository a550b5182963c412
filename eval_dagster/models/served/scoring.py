"""Log-probabilities of choices by a server: how it can give them, and the calls that ask for them.

Servers accept the same keys and mean different things by them: some ignore `echo`, some report log-probabilities that are off by one token.
So before the first request is scored, the server generates some tokens with their log-probabilities, and then has to give the same numbers
for the same tokens as a given text. The first way that gives them is used:

`echo`: one call a choice. The server reports the log-probability of each token of a prompt that it echoes.
`forced`: one call a token. The server generates one token, which a bias makes certain, and reports its log-probability without the bias.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from eval_dagster.config.models import OpenAIModel
from eval_dagster.errors import ModelError
from eval_dagster.models.served.answers import BadAnswerError
from eval_dagster.models.served.bodies import COMPLETIONS, Call, without_nulls
from eval_dagster.models.served.client import Client, PushbackError, StoppedError
from eval_dagster.models.served.server_tokens import ServerTokenizer
from eval_dagster.models.served.token_logprobs import TokenLogprob, read_token_logprobs
from eval_dagster.models.transformers.encoding.tokenization import check_continuations, split_choices
from eval_dagster.records import Request

Way = Literal["echo", "forced"]

MOST_FORCED_TOKENS = 64
"""Most tokens of the choices of a request that are forced one by one, since each of them is a call."""
_PROBE = "The capital of France is"
_PROBE_TOKENS = 3
_CLOSE = 0.1
"""Two computations of a log-probability by one server differ less than this: a cache of prefixes moves logits by up to 0.06."""
_BIAS = 100
"""Makes a token certain. It is the greatest bias that servers accept."""
_ATTEMPTS = 5
_SPENT = (402, 429)
"""Statuses of a spent quota. With another one, the server lacks this path, or refuses it."""


class NoScoresError(ModelError):
    """The server gives no log-probabilities of given tokens."""


@dataclass(frozen=True, kw_only=True)
class ScoredToken:
    """A token of a choice."""

    token_id: int
    logprob: float
    is_best: bool


@dataclass(frozen=True, kw_only=True)
class ScorePlan:
    """The calls that score a request, and how many of them each choice has."""

    calls: Sequence[Call]
    prompt_tokens: tuple[int, ...]
    calls_of_choice: Sequence[int]
    """The choices after the prompt first, then the choices after the unconditioned prompt."""


class Scorer:
    """Makes the calls that score choices on one server."""

    def __init__(self, config: OpenAIModel, tokenizer: ServerTokenizer, way: Way) -> None:
        self.way = way
        self._config = config
        self._tokenizer = tokenizer

    async def plan(self, request: Request) -> ScorePlan:
        """The calls for a request with choices.

        Raises:
            ModelError: The server cannot score this request.
            BadAnswerError: Its tokenizer failed.
        """
        context, choices = split_choices(request)
        encode = partial(self._tokenizer.pairs, add_special_tokens=not request.has_special_tokens)
        pairs = await encode(context, choices)
        check_continuations(request, [tail for _, tail in pairs])
        alone: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        if request.unconditioned_prompt is not None:
            alone = await encode(request.unconditioned_prompt.rstrip(), choices)
        tokens = sum(len(tail) for _, tail in (*pairs, *alone))
        if self.way == "forced" and tokens > MOST_FORCED_TOKENS:
            raise ModelError(
                f"The choices have {tokens} tokens, and this server needs a call for each; expected at most {MOST_FORCED_TOKENS}. "
                "Ask this eval of a server that echoes prompts with log-probabilities, such as vLLM, or use `backend: transformers`."
            )
        calls = [self._calls(head, tail) for head, tail in (*pairs, *alone)]
        return ScorePlan(
            calls=[call for each in calls for call in each], prompt_tokens=pairs[0][0], calls_of_choice=[len(each) for each in calls]
        )

    def _calls(self, head: tuple[int, ...], tail: tuple[int, ...]) -> list[Call]:
        if self.way == "echo":
            return [_call(self._config, _echo(head + tail), partial(_echoed, tokens=head + tail, first=len(head)))]
        return [
            _call(self._config, _forced((*head, *tail[:index]), token), partial(_forced_token, token=token))
            for index, token in enumerate(tail)
        ]


def require_scorable(request: Request) -> None:
    """Raise `NoScoresError` for what no server is asked to score."""
    if request.messages is not None:
        raise NoScoresError(
            "The choices of a conversation cannot be scored by a server. Set `prompt_format: plain` for this model in evals.yaml, "
            "or ask a task that generates its answers."
        )
    if request.perplexity:
        raise NoScoresError("The perplexity of a text is not asked of servers. Ask this eval of a model with `backend: transformers`.")
    if request.use_logits:
        raise NoScoresError("A server gives no logits. Ask this eval of a model with `backend: transformers`.")


async def find_scorer(name: str, config: OpenAIModel, client: Client) -> Scorer:
    """Find out how a server scores given tokens.

    Raises:
        NoScoresError: It does not, or what it reports is wrong.
    """
    tokenizer = ServerTokenizer(client, config.model)
    seen: list[str] = []
    try:
        context = await _patiently(partial(tokenizer.encode, _PROBE, add_special_tokens=True))
        generated = await _patiently(partial(_ask, config, client, _generate(context), read_token_logprobs))
        known = _require_ids(generated)
    except BadAnswerError as error:
        raise NoScoresError(_no_scores(name, config, [f"it gives no tokens with log-probabilities: {error}"])) from None
    ways: Sequence[tuple[Way, Any]] = (("echo", _echoes), ("forced", _forces))
    for way, gives in ways:
        try:
            problem = await gives(config, client, context, known)
        except BadAnswerError as error:
            problem = str(error)
        if problem is None:
            return Scorer(config, tokenizer, way)
        seen.append(f"{way}: {problem}")
    raise NoScoresError(_no_scores(name, config, seen))


def _no_scores(name: str, config: OpenAIModel, seen: Sequence[str]) -> str:
    return (
        f"Model {name!r}: the server at {config.base_url} gives no right log-probabilities of given tokens "
        f"({'; '.join(seen)}), which tasks "
        "with choices need. vLLM and llama.cpp's server do. Else ask tasks that generate their answers, or use `backend: transformers`."
    )


async def _echoes(config: OpenAIModel, client: Client, context: tuple[int, ...], known: Sequence[TokenLogprob]) -> str | None:
    """What is wrong with the log-probabilities of an echoed prompt; none where they are right."""
    tokens = (*context, *(each.token_id or 0 for each in known))
    read = partial(_echoed, tokens=tokens, first=len(context))
    return _difference(await _patiently(partial(_ask, config, client, _echo(tokens), read)), known)


async def _forces(config: OpenAIModel, client: Client, context: tuple[int, ...], known: Sequence[TokenLogprob]) -> str | None:
    """What is wrong with the log-probabilities of forced tokens; none where they are right, also for a token that is not the best."""
    others = [each for each in known[0].best if each.token_id not in (None, known[0].token_id)]
    first = [known[0], *others[:1]]
    found: list[ScoredToken] = []
    for each in first:
        read = partial(_forced_token, token=each.token_id or 0)
        found += await _patiently(partial(_ask, config, client, _forced(context, each.token_id or 0), read))
    return _difference(found, first)


def _difference(found: Sequence[ScoredToken], known: Sequence[TokenLogprob]) -> str | None:
    for got, wanted in zip(found, known, strict=True):
        if wanted.logprob is None or abs(got.logprob - wanted.logprob) > _CLOSE:
            return f"{got.logprob:.3f} for the token {wanted.token!r}, which it generated with {wanted.logprob}"
    return None


def _require_ids(generated: Sequence[TokenLogprob]) -> list[TokenLogprob]:
    """The generated tokens of the probe. Raises `BadAnswerError` if one lacks its id or its log-probability, or if there are too few."""
    if len(generated) < _PROBE_TOKENS or any(each.logprob is None for each in generated):
        raise BadAnswerError(f"it generated {len(generated)} tokens with log-probabilities; expected {_PROBE_TOKENS}")
    if all(each.token_id is not None for each in generated):
        return list(generated[:_PROBE_TOKENS])
    raise BadAnswerError("it does not tell the ids of generated tokens")


async def _ask(config: OpenAIModel, client: Client, body: Mapping[str, Any], read: Any) -> Any:
    return (await client.ask(_call(config, body, read))).content


async def _patiently(ask: Any) -> Any:
    """Try a call some times: a server that is busy says nothing about what it can do."""
    for attempt in range(_ATTEMPTS):
        try:
            return await ask()
        except PushbackError as error:
            if attempt == _ATTEMPTS - 1:
                raise BadAnswerError(str(error)) from None
            await asyncio.sleep(min(error.retry_after_s or 2.0**attempt, 30.0))
        except StoppedError as error:
            if error.status in _SPENT:
                raise
            raise BadAnswerError(str(error), kind="NoLogprobsError") from None
        except BadAnswerError as error:
            if not error.helps_to_retry or error.kind == "NoLogprobsError" or attempt == _ATTEMPTS - 1:
                raise
            await asyncio.sleep(2.0**attempt / 4)
    raise AssertionError


def _call(config: OpenAIModel, body: Mapping[str, Any], read: Any) -> Call:
    fixed = {"model": config.model, "temperature": 0, "logprobs": 1, "return_tokens_as_token_ids": True}
    return Call(path=COMPLETIONS, body=without_nulls({**fixed, **body, **config.extra_body}, config), read=read)


def _generate(context: tuple[int, ...]) -> dict[str, Any]:
    return {"prompt": list(context), "max_tokens": _PROBE_TOKENS, "logprobs": 2}


def _echo(tokens: tuple[int, ...]) -> dict[str, Any]:
    # One more token is generated, since some servers refuse to generate none.
    return {"prompt": list(tokens), "max_tokens": 1, "echo": True}


def _forced(context: tuple[int, ...], token: int) -> dict[str, Any]:
    return {"prompt": list(context), "max_tokens": 1, "logit_bias": {str(token): _BIAS}}


def _echoed(choice: Mapping[str, Any], *, tokens: tuple[int, ...], first: int) -> list[ScoredToken]:
    """The tokens of an echoed prompt from a position on."""
    found = read_token_logprobs(choice)
    if len(found) not in (len(tokens), len(tokens) + 1):
        raise BadAnswerError(f"the server echoed {len(found)} tokens of a prompt of {len(tokens)}", kind="NoLogprobsError")
    return [_scored(token, each) for token, each in zip(tokens[first:], found[first:], strict=False)]


def _forced_token(choice: Mapping[str, Any], *, token: int) -> list[ScoredToken]:
    """The token that the server was made to generate."""
    found = read_token_logprobs(choice)
    if not found or found[0].token_id != token:
        seen = repr(found[0].token) if found else "no token"
        raise BadAnswerError(f"the server generated {seen} where a bias makes another token certain", kind="NoLogprobsError")
    return [_scored(token, found[0])]


def _scored(token: int, found: TokenLogprob) -> ScoredToken:
    if found.logprob is None or (found.token_id is not None and found.token_id != token):
        raise BadAnswerError(f"the server gave no log-probability of the token {token} but of {found.token!r}", kind="NoLogprobsError")
    return ScoredToken(token_id=token, logprob=found.logprob, is_best=found.is_best)
