"""Several servers of one model: each has its own level of concurrency and connections, and they divide the requests.

Requests are cut into pieces in the order of their prompts. Each server takes pieces from its own part of them, so that the requests that
share a beginning meet the cache of one server. A server without pieces takes them from the end of the longest part that is left.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from functools import partial

from eval_dagster.config.models import OpenAIModel
from eval_dagster.errors import EvalDagsterError, ModelUnreachableError
from eval_dagster.models.pooled.pieces import Piece, cut, in_order
from eval_dagster.models.served.calls.answers import BadAnswerError
from eval_dagster.models.served.calls.client import Client, PushbackError, StoppedError
from eval_dagster.models.served.calls.threads import Put
from eval_dagster.models.served.pace.attempts import ServerDownError
from eval_dagster.models.served.pace.pacing import Pace
from eval_dagster.models.served.scoring.local_tokenizer import LocalTokenizer
from eval_dagster.models.served.scoring.score_planning import is_scored
from eval_dagster.models.served.series import Answered, Series
from eval_dagster.models.served.spend.spend import CapReachedError
from eval_dagster.progress.reporting import Reporter, SilentReporter
from eval_dagster.records import ModelResponse, Request

_DOWN_AFTER_S = 3.0
"""Seconds of broken connections after which a server is left out."""
_RETRY_S = 2.0
"""Seconds between two looks at a server that is down."""
_START_S = 5.0
"""Seconds in which a server can begin its own part, before others take pieces of it."""
_MOST_LOSSES = 3
"""How often a request may be under way if a server goes down, before it is sent alone. Once more, and it counts as failed."""


@dataclass(frozen=True, kw_only=True)
class Replica:
    """One of the servers."""

    config: OpenAIModel
    """The model's section, with the address of this server."""
    pace: Callable[[], AbstractAsyncContextManager[Pace]]
    problem: Callable[[], str | None]
    """Why the server would answer as another model; None if it does not. Raises `ModelUnreachableError` if it is down."""


class _Work:
    """The requests that are not answered yet."""

    def __init__(self, pieces: Sequence[Piece], servers: int) -> None:
        """Divide pieces, in the order of their prompts, among so many servers."""
        total, before = sum(piece.work for piece in pieces), 0.0
        self._parts: list[deque[Piece]] = [deque() for _ in range(servers)]
        for piece in pieces:
            self._parts[min(servers - 1, int(servers * before / total))].append(piece)
            before += piece.work
        self._taken: list[dict[str, Request]] = [{} for _ in range(servers)]
        self._changed = asyncio.Event()
        self._starting = set(range(servers))
        """Servers that have asked for no piece yet, and may."""
        self._started_by = time.monotonic() + _START_S
        self._stopped: set[int] = set()
        self._losses: Counter[str] = Counter()
        """How often connections broke while a request was under way, by its id."""
        self._suspects: deque[Request] = deque()
        """Requests that may break connections: each is sent last, and alone."""

    async def next(self, server: int) -> Piece | None:
        """The next piece of a server; None if all requests are answered, or the server gets no more of them.

        Waits while requests of other servers may come back.
        """
        self._starting.discard(server)
        self._changed.set()
        while server not in self._stopped:
            if part := self._parts[server] or self._longest():
                piece = part.popleft() if part is self._parts[server] else part.pop()
                self._taken[server] |= {request.request_id: request for request in piece.requests}
                return piece
            if self._suspects and not self._taken[server]:
                request = self._suspects.popleft()
                self._taken[server][request.request_id] = request
                return Piece(requests=[request], work=0)
            if self.is_answered:
                return None
            self._changed.clear()
            left_s = self._started_by - time.monotonic()
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s if self._starting and left_s > 0 else None):
                    await self._changed.wait()
        return None

    def _longest(self) -> deque[Piece] | None:
        """The most work of a server, from which another one may take pieces. A server that starts has a while to begin its own."""
        held = self._starting if time.monotonic() < self._started_by else ()
        parts = (part for index, part in enumerate(self._parts) if index not in held)
        return max(parts, key=lambda part: sum(piece.work for piece in part), default=None)

    def stop(self, *servers: int) -> None:
        """Give no more pieces to servers."""
        self._starting.difference_update(servers)
        self._stopped.update(servers)
        self._changed.set()

    def answered(self, server: int, request: Request) -> None:
        """Count an answer."""
        self._taken[server].pop(request.request_id, None)
        if not self._taken[server]:
            self._changed.set()

    def give_back(self, server: int) -> int:
        """Put back what a server has not answered. Returns the number of requests."""
        self._starting.discard(server)
        requests = list(self._taken[server].values())
        self._taken[server].clear()
        self._suspects.extend(request for request in requests if self._losses[request.request_id] >= _MOST_LOSSES)
        if others := [request for request in requests if self._losses[request.request_id] < _MOST_LOSSES]:
            self._parts[server].extendleft(reversed(in_order(cut(others, 1))))
        self._changed.set()
        return len(requests)

    def lose(self, server: int) -> Request | None:
        """Count the broken connections of a server. Returns the request that is to blame, which counts as answered; None without one."""
        requests = list(self._taken[server].values())
        self._losses.update(request.request_id for request in requests)
        if len(requests) == 1 and self._losses[requests[0].request_id] > _MOST_LOSSES:
            self.answered(server, requests[0])
            return requests[0]
        return None

    @property
    def is_over(self) -> bool:
        """Whether all requests are answered, or no server gets more of them."""
        return len(self._stopped) == len(self._parts) or self.is_answered

    @property
    def is_answered(self) -> bool:
        """Whether all requests are answered."""
        return not any(self._taken) and not any(self._parts) and not self._suspects


class Fleet:
    """The servers of a model in one call of `respond`."""

    def __init__(
        self,
        name: str,
        replicas: Sequence[Replica],
        client_of: Callable[[Replica], Client],
        put: Put[Answered],
        tokenizer: LocalTokenizer | None,
        context: int | None,
        reporter: Reporter,
        is_ending: Callable[[], bool] = lambda: False,
    ) -> None:
        """The arguments of `Series`, and a function that makes the client of a server. `name` is the model's in evals.yaml."""
        self._name = name
        self._replicas = replicas
        self._client_of = client_of
        self._put = put
        self._tokenizer = tokenizer
        self._context = context
        self._reporter = reporter
        self._is_ending = is_ending
        self._paces: dict[int, Pace] = {}
        self._without_since: float | None = None
        self._refused: dict[int, StoppedError] = {}
        self._cap: CapReachedError | None = None

    def state(self) -> str:
        """How many requests are under way, and at how many servers. May be called from other threads."""
        paces = list(self._paces.values())
        return f"{self.under_way} at once at {len(paces)} of {len(self._replicas)} servers"

    @property
    def under_way(self) -> int:
        """Requests under way at all servers."""
        return sum(pace.under_way for pace in list(self._paces.values()))

    async def ask(self, requests: Sequence[Request]) -> None:
        """Answer every request once.

        Raises:
            StoppedError: A cap is reached, all servers refuse, or none has answered for `patience_s`.
        """
        self._work = _Work(in_order(cut(requests, len(self._replicas))), len(self._replicas))
        self._scored = [request for request in requests if is_scored(request)]
        async with asyncio.TaskGroup() as group:
            for index in range(len(self._replicas)):
                group.create_task(self._keep_asking(index))
        if self._cap is not None:
            raise self._cap
        if not self._work.is_answered and self._refused:
            raise next(reversed(self._refused.values()))

    async def _keep_asking(self, index: int) -> None:
        """Let a server answer until all is answered, a cap is reached, or the server is refused."""
        while not self._work.is_over:
            try:
                await self._ask(index)
            except (BaseExceptionGroup, StoppedError) as caught:
                error = _stopped(caught)
                self._paces.pop(index, None)
                if isinstance(error, CapReachedError):
                    self._stop(index, error)
                    return
                if isinstance(error, ServerDownError) and (request := self._work.lose(index)) is not None:
                    message = f"ServerDownError: {_MOST_LOSSES + 1} times connections broke while this request was under way: {error}"
                    self._put((request, ModelResponse(error=message, retryable=True)))
                left = self._work.give_back(index)
                if isinstance(error, ServerDownError):
                    self._reporter.note(f"{error}; {left} requests go to other servers until it answers again")
                    if await self._is_back(index, error):
                        continue
                else:
                    self._refuse(index, error)
                return

    async def _ask(self, index: int) -> None:
        replica = self._replicas[index]

        def put(item: Answered) -> None:
            self._work.answered(index, item[0])
            self._put(item)

        is_first = index == 0
        async with replica.pace() as pace, self._client_of(replica) as client:
            series = Series(
                self._name,
                replica.config,
                client,
                pace,
                put,
                self._tokenizer,
                down_after_s=_DOWN_AFTER_S,
                on_stop=partial(self._stop, index),
                is_ending=self._is_ending,
            )
            await self._require_answer(replica, client)
            # The first server alone reports how many calls scoring takes.
            await series.prepare(
                self._scored if is_first else self._scored[:1], self._context, self._reporter if is_first else SilentReporter()
            )
            self._paces[index] = pace
            async with asyncio.TaskGroup() as group:
                while not self._is_ending() and (piece := await self._work.next(index)) is not None:
                    await series.begin(piece.requests, group)
            series.require_going()

    def _stop(self, index: int, error: StoppedError) -> None:
        """Begin no further request at a server, or at a cap at any. Calls that are under way are answered."""
        if isinstance(error, CapReachedError):
            self._cap = self._cap or error
            self._work.stop(*range(len(self._replicas)))
        else:
            self._work.stop(index)

    def _refuse(self, index: int, error: StoppedError) -> None:
        self._refused[index] = error
        self._reporter.note(f"{self._name}: the server at {self._replicas[index].config.base_url} is refused: {error}")

    async def _require_answer(self, replica: Replica, client: Client) -> None:
        """Raise `ServerDownError` if no server answers. What it answers does not matter."""
        try:
            await client.get("/models")
        except PushbackError as error:
            raise ServerDownError(f"Model {self._name!r}: the server at {replica.config.base_url} is down: {error}") from None
        except (BadAnswerError, StoppedError):
            return

    async def _is_back(self, index: int, error: StoppedError) -> bool:
        """Wait until a server answers again, as the same model. False if it is not needed any more."""
        replica = self._replicas[index]
        while not self._work.is_over:
            await asyncio.sleep(_RETRY_S)
            self._require_patience(error)
            try:
                problem = await asyncio.to_thread(replica.problem)
            except ModelUnreachableError:
                continue
            except EvalDagsterError as found:
                problem = str(found)
            if problem is None:
                self._reporter.note(f"{self._name}: the server at {replica.config.base_url} answers again")
                return True
            self._refuse(index, StoppedError(problem))
            return False
        return False

    def _require_patience(self, error: StoppedError) -> None:
        now = time.monotonic()
        self._without_since = None if self._paces else self._without_since or now
        if self._without_since is not None and now - self._without_since > self._replicas[0].config.patience_s:
            raise StoppedError(f"{error}. No other server answers either. Look at them, then run again: answers so far are kept.")


def _stopped(error: BaseException) -> StoppedError:
    """The error for which a server stopped, alone or in a group. Another kind of exception is raised."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if not isinstance(error, StoppedError):
        raise error
    return error
