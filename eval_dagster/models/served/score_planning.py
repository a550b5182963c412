"""Plans how requests are scored, ahead of their calls: which tokens, and how many calls that takes."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import partial

from eval_dagster.config.models import OpenAIModel
from eval_dagster.errors import ModelError
from eval_dagster.models.served.answers import BadAnswerError
from eval_dagster.models.served.bodies import Call
from eval_dagster.models.served.client import Client, StoppedError
from eval_dagster.models.served.responses import failed, refused
from eval_dagster.models.served.scored_tokens import Tokenizer
from eval_dagster.models.served.scoring import NoScoresError, ScorePlan, Scorer, require_scorable
from eval_dagster.models.served.scoring_price import ScoringPrice
from eval_dagster.models.served.scoring_probe import find_scorer
from eval_dagster.progress.reporting import Reporter
from eval_dagster.records import ModelResponse, Request

_AT_ONCE = 16
"""Requests whose tokens are asked of the server at once. It encodes texts in little time, beside its other work."""
_MOST_KEPT_TOKENS = 2**24
"""Tokens of plans that are kept until their calls are sent, in 4 bytes each. Further requests are planned twice."""

Planned = ScorePlan | ModelResponse | None
"""How a request is scored, or why it cannot be; None for a request for texts."""
Attempts = Callable[[Callable[[], Awaitable[ScorePlan]]], Awaitable[ScorePlan]]
"""Repeats an attempt where that can help."""


class ScorePlanner:
    """Plans the scored requests of a series."""

    def __init__(self, name: str, config: OpenAIModel, attempts: Attempts) -> None:
        """`name` is that of the model in evals.yaml."""
        self._name = name
        self._config = config
        self._attempts = attempts
        self._scorer: Scorer | NoScoresError = NoScoresError("Nothing is known of the server.")
        self._plans: dict[str, ScorePlan] = {}

    async def prepare(
        self, requests: Sequence[Request], client: Client, tokenizer: Tokenizer | None, context: int | None, reporter: Reporter
    ) -> None:
        """Find out how the server scores. Where each token is a call, report the number of calls before the first one.

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
        if self._scorer.way == "forced":
            await self._report_price(scored, reporter)

    async def _report_price(self, requests: Sequence[Request], reporter: Reporter) -> None:
        price, kept = ScoringPrice(), 0
        with reporter.track(f"count the tokens to score by {self._name}", total=len(requests), unit="requests") as advance:
            async for request, plan in self.ahead(requests):
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
