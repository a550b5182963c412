"""Plans how requests are scored, ahead of their calls: which tokens, and how many calls that takes."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

from eval_dagster.config.models import OpenAIModel, Price
from eval_dagster.errors import ModelError
from eval_dagster.models.served.calls.answers import BadAnswerError
from eval_dagster.models.served.calls.bodies import Call
from eval_dagster.models.served.calls.client import Client, StoppedError
from eval_dagster.models.served.calls.token_logprobs import TokenLogprob, read_token_logprobs
from eval_dagster.models.served.scoring.responses import failed, refused
from eval_dagster.models.served.scoring.scoring import (
    IdOf,
    NoScoresError,
    ScoredToken,
    ScorePlan,
    Scorer,
    Way,
    echo_call,
    forced_call,
    require_scorable,
    scoring_call,
)
from eval_dagster.models.served.scoring.tokenizer_check import patiently
from eval_dagster.models.served.scoring.tokenizers import ServerTokenizer, Tokenizer, Tokens
from eval_dagster.progress.reporting import Reporter
from eval_dagster.records import ModelResponse, Request

_PROBE = "The capital of France is"
_PROBE_TOKENS = 3
_TIMES = 2
"""Times that a way is tried which gives other numbers."""
_CLOSE = 0.1
"""Two computations of a log-probability by one server differ less than this: a cache of prefixes moves logits by up to 0.06."""
_AT_ONCE = 16
"""Requests whose tokens are asked of the server at once. It encodes texts in little time, beside its other work."""
_MOST_KEPT_TOKENS = 2**24
"""Tokens of plans that are kept until their calls are sent, in 4 bytes each. Further requests are planned twice."""
Planned = ScorePlan | ModelResponse | None
"""How a request is scored, or why it cannot be; None for a request for texts."""
Attempts = Callable[[Callable[[], Awaitable[ScorePlan]]], Awaitable[ScorePlan]]
"""Repeats an attempt if that can help."""


class ScoringPrice:
    """The calls of many requests and the tokens of their prompts."""

    def __init__(self) -> None:
        self.calls = 0
        self._choices = self._texts = self._prompt_tokens = 0

    def add(self, request: Request, plan: ScorePlan) -> None:
        """Count a request."""
        self._texts += request.perplexity
        self._choices += 0 if request.perplexity else len(plan.scored) + len(plan.alone)
        self.calls += sum(plan.calls_of_pair)
        self._prompt_tokens += plan.sent_tokens

    def line(self, model: str, price: Price | None) -> str:
        """One line for a reader, with the cost if there is a price. Tokens that the server has in its cache may cost less."""
        what = [f"{number:,} {name}" for number, name in ((self._choices, "choices"), (self._texts, "texts")) if number]
        cost = ""
        if price is not None:
            dollars = (self._prompt_tokens * price.input + self.calls * price.output) / 1_000_000
            cost = f" (${dollars:,.2f})" if dollars >= 0.01 else " (less than $0.01)"
        return (
            f"scoring {' and '.join(what)} by {model} needs {self.calls:,} calls of one token, {self._prompt_tokens:,} prompt tokens{cost}"
        )


async def find_scorer(name: str, config: OpenAIModel, client: Client, local: Tokenizer | None, context: int | None) -> Scorer:
    """Find out how a server scores given tokens.

    Args:
        name: The model's name in evals.yaml.
        config: Its section.
        client: The client of its server.
        local: The tokenizer that the section names; the server's if None.
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
    others = [each for each in known[0].best if each.token_id not in (None, known[0].token_id)]
    forced, whole = [known[0], *others[:1]], known[0].token_id or 0  # a token that is not the best is forced too
    trials: list[tuple[Way, list[Call], Sequence[TokenLogprob]]] = [
        ("echo", [echo_call(config, tokens, [each.token_id or 0 for each in known], tokenizer.id_of)], known),
        ("forced", [forced_call(config, tokens, each.token_id or 0, whole, tokenizer.id_of) for each in forced], forced),
    ]
    for way, calls, expected in trials:
        problem = ""
        for _ in range(_TIMES):
            found: list[ScoredToken] = []
            try:
                for call in calls:
                    found += (await patiently(partial(client.ask, call))).content
            except BadAnswerError as error:
                problem = str(error)
                break
            wrong = (
                f"{got.logprob:.3f} for the token {wanted.token!r}, which it generated with {wanted.logprob}"
                for got, wanted in zip(found, expected, strict=True)
                if wanted.logprob is None or not abs(got.logprob - wanted.logprob) <= _CLOSE
            )
            problem = next(wrong, "")
            if not problem:
                return Scorer(config, tokenizer, way, whole, context)
        seen.append(f"{way}: {problem}")
    raise NoScoresError(_no_scores(name, config, seen))


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


class ScorePlanner:
    """Plans the scored requests of a series."""

    def __init__(self, name: str, config: OpenAIModel, attempts: Attempts) -> None:
        """`name` is the model's in evals.yaml."""
        self._name = name
        self._config = config
        self._attempts = attempts
        self._scorer: Scorer | NoScoresError = NoScoresError("Nothing is known of the server.")
        self._plans: dict[str, ScorePlan] = {}

    async def prepare(
        self, requests: Sequence[Request], client: Client, tokenizer: Tokenizer | None, context: int | None, reporter: Reporter
    ) -> None:
        """Find out how the server scores. If each token is a call, report the number of calls before the first one.

        Raises `StoppedError` if the quota is spent.
        """
        scored = [request for request in requests if is_scored(request)]
        if not scored:
            return
        try:
            self._scorer = await find_scorer(self._name, self._config, client, tokenizer, context)
        except NoScoresError as error:
            self._scorer = error
            return
        if self._scorer.way != "forced":
            return
        price, kept = ScoringPrice(), 0
        with reporter.track(f"count the tokens to score by {self._name}", total=len(scored), unit="requests") as advance:
            async for request, plan in self.ahead(scored):
                advance()
                if isinstance(plan, ScorePlan):
                    price.add(request, plan)
                    if kept < _MOST_KEPT_TOKENS:
                        self._plans[request.request_id] = plan
                        kept += plan.kept_tokens
        if price.calls:
            reporter.note(price.line(self._name, self._config.price))

    async def ahead(self, requests: Sequence[Request]) -> AsyncGenerator[tuple[Request, Planned], None]:
        """The requests with their plans, in order. Some are planned ahead, because a server's tokenizer takes a call for each text.

        Raises `StoppedError` if the server is down.
        """
        waiting: deque[tuple[Request, asyncio.Task[Planned] | None]] = deque()
        try:
            for request in requests:
                waiting.append((request, asyncio.create_task(self._plan(request)) if is_scored(request) else None))
                if len(waiting) >= _AT_ONCE:
                    first, task = waiting.popleft()
                    yield first, await task if task is not None else None
            while waiting:
                first, task = waiting.popleft()
                yield first, await task if task is not None else None
        finally:
            tasks = [task for _, task in waiting if task is not None]
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _plan(self, request: Request) -> ScorePlan | ModelResponse:
        if request.request_id in self._plans:
            return self._plans.pop(request.request_id)
        try:
            require_scorable(request)
            if not isinstance(self._scorer, Scorer):
                raise self._scorer
            return await self._attempts(partial(self._scorer.plan, request))
        except StoppedError:
            raise
        except ModelError as error:
            return refused(error)
        except BadAnswerError as error:
            return failed(error)

    def calls(self, plan: ScorePlan) -> list[Call]:
        """The calls of a plan."""
        assert isinstance(self._scorer, Scorer), "there is a plan"
        return self._scorer.calls(plan)


def is_scored(request: Request) -> bool:
    """Whether a request asks for log-probabilities of given tokens."""
    return request.choices is not None or request.perplexity
