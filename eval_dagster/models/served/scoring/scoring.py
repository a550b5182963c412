"""Plans the calls that score choices and texts on one server, and reads the log-probabilities that they give.

`echo`: one call a choice. The server reports the log-probability of each token of a prompt that it echoes.
`forced`: one call a token. The server generates one token, which a bias makes certain, and reports its log-probability without the bias.
"""

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from eval_dagster.config.models import OpenAIModel
from eval_dagster.errors import ModelError
from eval_dagster.models.served.calls.answer_records import Choice, ending_of
from eval_dagster.models.served.calls.answers import BadAnswerError, cut
from eval_dagster.models.served.calls.bodies import COMPLETIONS, Call, without_nulls
from eval_dagster.models.served.calls.token_logprobs import TokenLogprob, read_token_logprobs
from eval_dagster.models.served.scoring.tokenizers import Pair, Tokenizer, Tokens, unconditioned
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


@dataclass(frozen=True, kw_only=True)
class ScoredToken:
    """A token of a choice."""

    token_id: int
    logprob: float
    is_best: bool


def scoring_call(config: OpenAIModel, body: Mapping[str, object], read: Any) -> Call:
    """A call for log-probabilities."""
    fixed = {"model": config.model, "temperature": 0, "logprobs": 1, "return_tokens_as_token_ids": True}
    return Call(path=COMPLETIONS, body=without_nulls({**fixed, **body, **config.extra_body}, config), read=read)


def echo_call(config: OpenAIModel, head: Tokens, tail: Tokens, id_of: IdOf) -> Call:
    """The call that scores tokens after a context as an echoed prompt."""
    tokens = [*head, *tail]
    # One more token is generated, since some servers refuse to generate none.
    body = {"prompt": tokens, "max_tokens": 1, "echo": True}
    call = scoring_call(config, body, None)
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
