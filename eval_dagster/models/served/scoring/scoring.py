"""Scores choices and texts on one server: which tokens and calls that takes, planned ahead, and the log-probabilities that they give.

`echo`: one call a choice. The server reports the log-probability of each token of a prompt that it echoes.
`forced`: one call a token. The server generates one token, which a bias makes certain, and reports its log-probability without the bias.
"""

import asyncio
from array import array
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from eval_dagster.config.models import OpenAIModel, Price
from eval_dagster.errors import ModelError
from eval_dagster.models.base import is_scored
from eval_dagster.models.served.calls.answer_records import BadAnswerError, Choice, TokenLogprob, cut, ending_of, read_token_logprobs
from eval_dagster.models.served.calls.bodies import Call, scoring_call
from eval_dagster.models.served.calls.client import Client, StoppedError
from eval_dagster.models.served.scoring.tokenizers import Pair, ServerTokenizer, Tokenizer, Tokens, patiently, unconditioned
from eval_dagster.progress.reporting import Reporter
from eval_dagster.records import Request

_BIAS = 100
"""Makes a token certain. It is the greatest bias that servers accept."""
_BROKEN = "\ufffd"
"""Servers write this character for bytes that form no whole character."""
_LONG_LISTS = (128, 2**20)
"""Lengths of the lists of most probable tokens that are asked for: most tokens are in the first; the last has all."""
IdOf = Callable[[str], int | None]
"""The id of a token that is given as text."""
Way = Literal["echo", "forced"]
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


@dataclass(frozen=True, kw_only=True)
class ScoredToken:
    """A token of a choice."""

    token_id: int
    logprob: float
    is_best: bool


def echo_call(config: OpenAIModel, head: Tokens, tail: Tokens, id_of: IdOf) -> Call:
    """The call that scores tokens after a context as an echoed prompt."""
    tokens = [*head, *tail]
    # One more token is generated, since some servers refuse to generate none.
    body = {"prompt": tokens, "max_tokens": 1, "echo": True}
    call = scoring_call(config, body, read_token_logprobs)
    return replace(call, read=partial(_echoed, tokens=tokens, first=len(head), id_of=id_of, listed=call.body.get("logprobs")))


def forced_call(config: OpenAIModel, context: Tokens, token: int, whole: int, id_of: IdOf) -> Call:
    """The call that scores one token after a context: a bias makes it certain.

    A token may be a part of a character. llama.cpp reports no log-probability of such a token if the text ends with it. Then `whole`, a
    token of whole characters, is forced instead, and the token is found in the list of the most probable ones.
    """
    instead: Call | None = None
    for length in reversed(_LONG_LISTS):
        read = partial(_listed_token, token=token, is_last=instead is None)
        instead = replace(_one_token(config, context, whole, read, logprobs=length), instead=instead)
    return replace(_one_token(config, context, token, partial(_forced_token, token=token, id_of=id_of)), instead=instead)


def _one_token(config: OpenAIModel, context: Tokens, forced: int, read: Any, **more: Any) -> Call:
    return scoring_call(config, {"prompt": list(context), "max_tokens": 1, "logit_bias": {str(forced): _BIAS}, **more}, read)


def _echoed(choice: Choice, *, tokens: Tokens, first: int, id_of: IdOf, listed: object) -> list[ScoredToken]:
    """The tokens of an echoed prompt from a position on. All of its tokens have to be those that were sent.

    `listed` likely tokens were asked for beside each. If there is one more, it is the token itself.
    """
    _require_whole(choice)
    found = read_token_logprobs(choice)
    if len(found) not in (len(tokens), len(tokens) + 1):
        raise BadAnswerError(f"the server echoed {len(found)} tokens of a prompt of {len(tokens)}", kind="NoLogprobsError")
    for place, (token, each) in enumerate(zip(tokens, found, strict=False)):
        echoed = id_of(each.token) if each.token_id is None else each.token_id
        if echoed not in (None, token):
            raise BadAnswerError(f"the server echoed another prompt: its token {place} is {each.token!r}; expected the token {token}")
        names = {(other.token_id, other.token) for other in each.best}
        if isinstance(listed, int) and len(names) > listed and (each.token_id, each.token) not in names:
            raise BadAnswerError(f"the {len(names)} likely tokens at the place of {each.token!r} are those of another place")
    return [_scored(token, each) for token, each in zip(tokens[first:], found[first:], strict=False)]


def _require_whole(choice: Choice) -> None:
    """Raise `BadAnswerError` if the server says that it broke off or refused."""
    if choice.error or ending_of(choice.finish_reason or "stop", {}) in ("interrupted", "refused"):
        raise BadAnswerError(f"the server broke the answer off: {cut(choice.shown)}")


def _forced_token(choice: Choice, *, token: int, id_of: IdOf) -> list[ScoredToken]:
    """The token that the server was made to generate."""
    _require_whole(choice)
    is_whole = _BROKEN not in str(choice.text)
    try:
        found = read_token_logprobs(choice)
    except BadAnswerError as error:
        error.helps_to_retry = is_whole
        raise
    generated = None if not found else found[0].token_id if found[0].token_id is not None else id_of(found[0].token)
    if generated != token:
        seen = repr(found[0].token) if found else "no token"
        message = f"the server generated {seen} where a bias makes another token certain"
        raise BadAnswerError(message, kind="NoLogprobsError", helps_to_retry=is_whole)
    return [_scored(token, found[0])]


def _listed_token(choice: Choice, *, token: int, is_last: bool) -> list[ScoredToken]:
    """A token among the most probable ones at the place of the generated one."""
    _require_whole(choice)
    [generated, *_] = read_token_logprobs(choice)
    listed = next((each for each in generated.best if each.token_id == token), None)
    if listed is None:
        message = f"the token {token} is not among the {len(generated.best)} most probable ones that the server lists"
        raise BadAnswerError(message, kind="NoLogprobsError", helps_to_retry=is_last)
    return [_scored(token, replace(listed, best=generated.best))]


def _scored(token: int, found: TokenLogprob) -> ScoredToken:
    if found.logprob is None or (found.token_id is not None and found.token_id != token):
        raise BadAnswerError(f"the server gave no log-probability of the token {token} but of {found.token!r}", kind="NoLogprobsError")
    if not found.best:
        raise BadAnswerError(f"the server gave the token {found.token!r} without the most probable token beside it", kind="NoLogprobsError")
    return ScoredToken(token_id=token, logprob=found.logprob, is_best=found.is_best)


class NoScoresError(ModelError):
    """The server gives no log-probabilities of given tokens."""


@dataclass(frozen=True, kw_only=True)
class ScorePlan:
    """The tokens that score a request, and the way in which the server scores them."""

    way: Way
    scored: Sequence[Pair]
    """The choices after the prompt; for a perplexity the windows of the text."""
    alone: Sequence[Pair] = ()
    """The choices after the unconditioned prompt."""

    @property
    def calls_of_pair(self) -> list[int]:
        """How many calls each pair has, the `scored` pairs first."""
        return [len(tail) if self.way == "forced" else 1 for _, tail in (*self.scored, *self.alone)]

    @property
    def kept_tokens(self) -> int:
        """Tokens that the plan holds in memory. Contexts that are the same are held once."""
        contexts = {id(head): len(head) for head, _ in (*self.scored, *self.alone)}
        return sum(contexts.values()) + sum(len(tail) for _, tail in (*self.scored, *self.alone))

    @property
    def sent_tokens(self) -> int:
        """Tokens of the prompts of all calls."""
        if self.way == "echo":
            return sum(len(head) + len(tail) for head, tail in (*self.scored, *self.alone))
        return sum(len(head) * len(tail) + len(tail) * (len(tail) - 1) // 2 for head, tail in (*self.scored, *self.alone))


class Scorer:
    """Makes the calls that score requests on one server."""

    def __init__(self, config: OpenAIModel, tokenizer: Tokenizer, way: Way, whole: int, context: int | None) -> None:
        """`whole` is a token of whole characters.

        `context` is the number of tokens that the server declares for a prompt and its answer; None if it declares none.
        """
        self.way = way
        self._config = config
        self._tokenizer = tokenizer
        self._whole = whole
        # A window has a token before those that it scores, and the server generates one after them.
        self._window = config.max_length or (None if context is None else max(1, context - 2))

    async def plan(self, request: Request) -> ScorePlan:
        """The tokens of a request with choices or of a text to score.

        Raises:
            ModelError: The server cannot score this request.
            BadAnswerError: Its tokenizer failed.
        """
        if request.perplexity:
            if request.images:
                raise ModelError(f"The request asks for the log-probability of a text with {len(request.images)} images; expected text.")
            pairs, alone = await self._tokenizer.windows(request.prompt, self._window), []
        else:
            pairs, other = await self._tokenizer.choices(request), unconditioned(request)
            alone = [] if other is None else await self._tokenizer.choices(other)
        tokens, most = sum(len(tail) for _, tail in (*pairs, *alone)), self._config.most_forced_tokens
        if self.way == "forced" and tokens > most:
            what = "text has" if request.perplexity else "choices have"
            raise NoScoresError(
                f"The {what} {tokens} tokens, and this server needs a call for each; expected at most {most}. Raise `most_forced_tokens` "
                "of this model in evals.yaml, ask a server that echoes prompts with log-probabilities, such as vLLM, or use "
                "`backend: transformers`."
            )
        return ScorePlan(way=self.way, scored=list(_compact(pairs)), alone=list(_compact(alone)))

    def calls(self, plan: ScorePlan) -> list[Call]:
        """The calls of a plan."""
        calls: list[Call] = []
        for head, tail in (*plan.scored, *plan.alone):
            if self.way == "echo":
                calls.append(echo_call(self._config, head, tail, self._tokenizer.id_of))
                continue
            for index, token in enumerate(tail):
                calls.append(forced_call(self._config, [*head, *tail[:index]], token, self._whole, self._tokenizer.id_of))
        return calls


def _compact(pairs: Sequence[Pair]) -> Iterator[Pair]:
    """The same tokens in four bytes each. Contexts that are the same are held once."""
    first: array[int] | None = None
    for head, tail in pairs:
        compact = array("I", head)
        if compact == first:
            compact = first
        first = first or compact
        yield compact, array("I", tail)


def require_scorable(request: Request) -> None:
    """Raise `NoScoresError` for what no server is asked to score."""
    if request.messages is not None:
        raise NoScoresError(
            "The choices of a conversation cannot be scored where the server renders it. Name the model's `tokenizer` in evals.yaml and "
            "set `send: tokens`, set `prompt_format: plain`, or ask a task that generates its answers."
        )
    if request.use_logits:
        raise NoScoresError("A server gives no logits. Ask this eval of a model with `backend: transformers`.")


Planned = ScorePlan | ModelError | BadAnswerError | None
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

    async def _plan(self, request: Request) -> Planned:
        if request.request_id in self._plans:
            return self._plans.pop(request.request_id)
        try:
            require_scorable(request)
            if not isinstance(self._scorer, Scorer):
                raise self._scorer
            return await self._attempts(partial(self._scorer.plan, request))
        except StoppedError:
            raise
        except (ModelError, BadAnswerError) as error:
            return error

    def calls(self, plan: ScorePlan) -> list[Call]:
        """The calls of a plan."""
        assert isinstance(self._scorer, Scorer), "there is a plan"
        return self._scorer.calls(plan)
