"""Plans the calls that score choices and texts on one server.

`echo`: one call a choice. The server reports the log-probability of each token of a prompt that it echoes.
`forced`: one call a token. The server generates one token, which a bias makes certain, and reports its log-probability without the bias.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from eval_dagster.config.models import OpenAIModel
from eval_dagster.errors import ModelError
from eval_dagster.models.served.calls.bodies import Call
from eval_dagster.models.served.scoring.scored_tokens import Pair, Tokenizer, unconditioned
from eval_dagster.models.served.scoring.scoring_calls import echo_call, forced_call
from eval_dagster.records import Request

Way = Literal["echo", "forced"]


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
        self._require_few(request, sum(len(tail) for _, tail in (*pairs, *alone)))
        return ScorePlan(way=self.way, scored=list(_compact(pairs)), alone=list(_compact(alone)))

    def calls(self, plan: ScorePlan) -> list[Call]:
        """The calls of a plan."""
        return [call for head, tail in (*plan.scored, *plan.alone) for call in self._calls_of(head, tail)]

    def _calls_of(self, head: Sequence[int], tail: Sequence[int]) -> Iterator[Call]:
        if self.way == "echo":
            yield echo_call(self._config, head, tail, self._tokenizer.id_of)
            return
        for index, token in enumerate(tail):
            yield forced_call(self._config, [*head, *tail[:index]], token, self._whole, self._tokenizer.id_of)

    def _require_few(self, request: Request, tokens: int) -> None:
        most = self._config.most_forced_tokens
        if self.way == "forced" and tokens > most:
            what = "text has" if request.perplexity else "choices have"
            raise NoScoresError(
                f"The {what} {tokens} tokens, and this server needs a call for each; expected at most {most}. Raise `most_forced_tokens` "
                "of this model in evals.yaml, ask a server that echoes prompts with log-probabilities, such as vLLM, or use "
                "`backend: transformers`."
            )


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
