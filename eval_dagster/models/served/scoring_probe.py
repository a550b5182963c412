"""Finds out how a server can score given tokens.

Servers accept the same keys and mean different things by them: some ignore `echo`, some report log-probabilities that are off by one token.
So before the first request is scored, the server generates some tokens with their log-probabilities, and then has to give the same numbers
for the same tokens as a given text. The first of the ways that gives them is used (see `scoring`).
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from eval_dagster.config.models import OpenAIModel
from eval_dagster.models.served.answers import BadAnswerError
from eval_dagster.models.served.bodies import Call
from eval_dagster.models.served.client import Client
from eval_dagster.models.served.probing import patiently
from eval_dagster.models.served.scored_tokens import Tokenizer, Tokens
from eval_dagster.models.served.scoring import NoScoresError, Scorer, Way
from eval_dagster.models.served.scoring_calls import IdOf, ScoredToken, echo_call, forced_call, scoring_call
from eval_dagster.models.served.server_tokens import ServerTokenizer
from eval_dagster.models.served.token_logprobs import TokenLogprob, read_token_logprobs

_PROBE = "The capital of France is"
_PROBE_TOKENS = 3
_TIMES = 2
"""Times that a way is tried which gives other numbers."""
_CLOSE = 0.1
"""Two computations of a log-probability by one server differ less than this: a cache of prefixes moves logits by up to 0.06."""


async def find_scorer(name: str, config: OpenAIModel, client: Client, local: Tokenizer | None, context: int | None) -> Scorer:
    """Find out how a server scores given tokens.

    Args:
        name: The model's name in evals.yaml.
        config: Its section.
        client: The client of its server.
        local: The tokenizer that the section names; that of the server if None.
        context: Tokens of context that the server declares, if it does.

    Raises:
        NoScoresError: It does not, or what it reports is wrong.
    """
    tokenizer = local or ServerTokenizer(client, config.model)
    seen: list[str] = []
    try:
        tokens = await patiently(partial(tokenizer.encode, _PROBE, add_special_tokens=True))
    except BadAnswerError:
        raise NoScoresError(
            f"Model {name!r}: the server at {config.base_url} gives no tokens at /tokenize, by which prompt and choice are separated; "
            "vLLM and llama.cpp's server do. Name the model's `tokenizer` in evals.yaml, or ask tasks that generate their answers."
        ) from None
    try:
        known = await _generated(config, client, tokens, tokenizer.id_of)
    except BadAnswerError as error:
        raise NoScoresError(_no_scores(name, config, [f"it gives no tokens with log-probabilities: {error}"])) from None
    for way, calls, expected in _trials(config, tokens, known, tokenizer.id_of):
        for _ in range(_TIMES):
            try:
                found = [token for call in calls for token in await _content(client, call)]
                problem = _difference(found, expected)
            except BadAnswerError as error:
                problem = str(error)
                break
            if problem is None:
                break
        if problem is None:
            return Scorer(config, tokenizer, way, known[0].token_id or 0, context)
        seen.append(f"{way}: {problem}")
    raise NoScoresError(_no_scores(name, config, seen))


def _trials(
    config: OpenAIModel, context: Tokens, known: Sequence[TokenLogprob], id_of: IdOf
) -> list[tuple[Way, list[Call], Sequence[TokenLogprob]]]:
    """The calls of each way, and what they must give. A token that is not the best is forced too."""
    others = [each for each in known[0].best if each.token_id not in (None, known[0].token_id)]
    forced = [known[0], *others[:1]]
    return [
        ("echo", [echo_call(config, context, [each.token_id or 0 for each in known], id_of)], known),
        ("forced", [forced_call(config, context, each.token_id or 0, known[0].token_id or 0, id_of) for each in forced], forced),
    ]


async def _content(client: Client, call: Call) -> Sequence[ScoredToken]:
    found: Sequence[ScoredToken] = (await patiently(partial(client.ask, call))).content
    return found


async def _generated(config: OpenAIModel, client: Client, context: Tokens, id_of: IdOf) -> list[TokenLogprob]:
    """The tokens that the server generates, with ids and log-probabilities. Raises `BadAnswerError` if they lack one."""
    body = {"prompt": list(context), "max_tokens": _PROBE_TOKENS, "logprobs": 2}
    reply = await patiently(partial(client.ask, scoring_call(config, body, read_token_logprobs)))
    generated: Sequence[TokenLogprob] = [_with_id(each, id_of) for each in reply.content]
    if len(generated) < _PROBE_TOKENS or any(each.logprob is None for each in generated):
        raise BadAnswerError(f"it generated {len(generated)} tokens with log-probabilities; expected {_PROBE_TOKENS}")
    if all(each.token_id is not None for each in generated):
        return list(generated[:_PROBE_TOKENS])
    raise BadAnswerError("it does not tell the ids of generated tokens; name the model's `tokenizer` in evals.yaml, which knows them")


def _with_id(found: TokenLogprob, id_of: IdOf) -> TokenLogprob:
    best = tuple(_with_id(each, id_of) for each in found.best)
    return replace(found, token_id=id_of(found.token) if found.token_id is None else found.token_id, best=best)


def _difference(found: Sequence[ScoredToken], known: Sequence[TokenLogprob]) -> str | None:
    for got, wanted in zip(found, known, strict=True):
        if wanted.logprob is None or not abs(got.logprob - wanted.logprob) <= _CLOSE:
            return f"{got.logprob:.3f} for the token {wanted.token!r}, which it generated with {wanted.logprob}"
    return None


def _no_scores(name: str, config: OpenAIModel, seen: Sequence[str]) -> str:
    return (
        f"Model {name!r}: the server at {config.base_url} gives no right log-probabilities of given tokens "
        f"({'; '.join(seen)}), which tasks "
        "with choices need. vLLM and llama.cpp's server do. Else ask tasks that generate their answers, or use `backend: transformers`."
    )
