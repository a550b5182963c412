"""A served model that answers: many calls under way at once at one server, or at several that divide the requests.

Several servers have their own levels of concurrency and connections. Requests are cut into pieces in the order of their prompts. Each
server takes pieces from its own part of them, so that the requests that share a beginning meet the cache of one server. A server without
pieces takes them from the end of the longest part that is left.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from functools import partial

from eval_dagster.config.models import OpenAIModel
from eval_dagster.errors import EvalDagsterError, ModelUnreachableError
from eval_dagster.models.base import Answering, Model, PutAnswers, is_scored
from eval_dagster.models.pooled.pieces import Piece, cut, in_order
from eval_dagster.models.served.calls.answer_records import BadAnswerError
from eval_dagster.models.served.calls.bodies import Call
from eval_dagster.models.served.calls.client import Client, Headers, PushbackError, StoppedError
from eval_dagster.models.served.calls.threads import Feed, Put, Stream, result_of
from eval_dagster.models.served.pace.attempts import ServerDownError
from eval_dagster.models.served.pace.pacing import Pace
from eval_dagster.models.served.scoring.responses import CallReply
from eval_dagster.models.served.scoring.tokenizers import LocalTokenizer
from eval_dagster.models.served.series import Answered, Series
from eval_dagster.models.served.spend import CappedClient, CapReachedError, Spend
from eval_dagster.models.usage import GenerationUsage, Usage
from eval_dagster.progress.reporting import Reporter, SilentReporter, current_reporter
from eval_dagster.records import ModelResponse, Request, Role

_DOWN_AFTER_S = 3.0
"""Seconds of broken connections after which a server is left out."""
_RETRY_S = 2.0
"""Seconds between two looks at a server that is down."""
_START_S = 5.0
"""Seconds in which a server can begin its own part, before others take pieces of it."""
_OWN_S = 0.1
"""Seconds for which requests that came later are left to the server of their conversations, before others take them."""
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

    def __init__(self, pieces: Sequence[Piece], servers: int, *, is_open: bool = False) -> None:
        """Divide pieces, in the order of their prompts, among so many servers. More may come if `is_open`."""
        self._is_open = is_open
        total, before = sum(piece.work for piece in pieces), 0.0
        self._parts: list[deque[Piece]] = [deque() for _ in range(servers)]
        for piece in pieces:
            self._parts[min(servers - 1, int(servers * before / total))].append(piece)
            before += piece.work
        self._taken: list[dict[str, Request]] = [{} for _ in range(servers)]
        self._changed = asyncio.Event()
        self._starting = set(range(servers))
        """Servers that have asked for no piece yet, and may."""
        self._came = [0.0] * servers
        """When requests came to the part of a server that was empty."""
        self._idle: set[int] = set()
        """Servers that wait for a piece. They take their own."""
        self._started_by = time.monotonic() + _START_S
        self._stopped: set[int] = set()
        self._losses: Counter[str] = Counter()
        """How often connections broke while a request was under way, by its id."""
        self._suspects: deque[Request] = deque()
        """Requests that may break connections: each is sent last, and alone."""

    def add(self, requests: Sequence[Request]) -> None:
        """Add requests. Those of one conversation go to one server, which may have its beginning in its cache."""
        of_server: dict[int, list[Request]] = {}
        for request in requests:
            of_server.setdefault(_conversation(request) % len(self._parts), []).append(request)
        for server, own in of_server.items():
            self._came[server] = time.monotonic() if not self._parts[server] else self._came[server]
            self._parts[server].append(Piece(requests=own, work=len(own)))
        self._changed.set()

    async def next(self, server: int) -> Piece | None:
        """The next piece of a server; None if all requests are answered, or the server gets no more of them.

        Waits while requests of other servers may come back.
        """
        self._starting.discard(server)
        self._changed.set()
        while server not in self._stopped:
            part = self._parts[server]
            if not part:  # take from the most work of another server; one that starts has a while to begin its own
                now = time.monotonic()
                held = self._idle | (self._starting if now < self._started_by else set())
                held |= {index for index, since in enumerate(self._came) if now < since + _OWN_S}
                others = (each for index, each in enumerate(self._parts) if index not in held)
                part = max(others, key=lambda each: sum(piece.work for piece in each), default=part)
            if part:
                self._wake(server)
                piece = part.popleft() if part is self._parts[server] else part.pop()
                self._taken[server] |= {request.request_id: request for request in piece.requests}
                return piece
            if self._suspects and not self._taken[server]:
                self._wake(server)
                request = self._suspects.popleft()
                self._taken[server][request.request_id] = request
                return Piece(requests=[request], work=0)
            if self.is_answered:
                return None
            self._changed.clear()
            self._idle.add(server)
            left_s = self._started_by - time.monotonic()
            wait_s = left_s if self._starting and left_s > 0 else None
            if any(self._parts):  # of another one, which it leaves to it for a while
                wait_s = min(wait_s or _OWN_S, _OWN_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
        return None

    def _wake(self, server: int) -> None:
        """Note that a server does not wait any more: others may take its pieces."""
        if server in self._idle:
            self._idle.discard(server)
            self._changed.set()

    def stop(self, *servers: int) -> None:
        """Give no more pieces to servers."""
        self._starting.difference_update(servers)
        self._idle.difference_update(servers)
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
        self._idle.discard(server)
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
        """Whether all requests are answered, and no more may come."""
        return not self._is_open and not any(self._taken) and not any(self._parts) and not self._suspects


def _conversation(request: Request) -> int:
    """A number that the requests of a conversation share: of its messages up to the user's first one."""
    messages = request.messages or ()
    first = next((index for index, message in enumerate(messages) if message.role is Role.USER), len(messages) - 1)
    return hash(tuple(message.content for message in messages[: first + 1]) or request.prompt)


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

    async def ask(self, requests: Sequence[Request], feed: Feed[Sequence[Request]] | None = None) -> None:
        """Answer every request once. Those of a feed come later, and ask for texts.

        Raises:
            StoppedError: A cap is reached, all servers refuse, or none has answered for `patience_s`.
        """
        self._work = _Work(in_order(cut(requests, len(self._replicas))), len(self._replicas), is_open=feed is not None)
        self._scored = [request for request in requests if is_scored(request)]
        async with asyncio.TaskGroup() as group:
            feeding = None if feed is None else group.create_task(self._take_in(feed))
            async with asyncio.TaskGroup() as servers:
                for index in range(len(self._replicas)):
                    servers.create_task(self._keep_asking(index))
            if feeding is not None:
                feeding.cancel()
        if self._cap is not None:
            raise self._cap
        if not self._work.is_answered and self._refused:
            raise next(reversed(self._refused.values()))

    async def _take_in(self, feed: Feed[Sequence[Request]]) -> None:
        while (requests := await feed.next()) is not None:
            self._work.add(requests)

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
            try:
                await client.get("/models")
            except PushbackError as error:
                raise ServerDownError(f"Model {self._name!r}: the server at {replica.config.base_url} is down: {error}") from None
            except (BadAnswerError, StoppedError):
                pass  # what it answers does not matter
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

    async def _is_back(self, index: int, error: StoppedError) -> bool:
        """Wait until a server answers again, as the same model. False if it is not needed any more."""
        replica = self._replicas[index]
        while not self._work.is_over:
            await asyncio.sleep(_RETRY_S)
            now = time.monotonic()
            self._without_since = None if self._paces else self._without_since or now
            if self._without_since is not None and now - self._without_since > self._replicas[0].config.patience_s:
                raise StoppedError(f"{error}. No other server answers either. Look at them, then run again: answers so far are kept.")
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


def _stopped(error: BaseException) -> StoppedError:
    """The error for which a server stopped, alone or in a group. Another kind of exception is raised."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if not isinstance(error, StoppedError):
        raise error
    return error


class _Answering(Answering):
    """Asks requests of a feed."""

    def __init__(self, feed: Feed[Sequence[Request]], stream: Stream[Answered]) -> None:
        self._feed = feed
        self._stream = stream

    def add(self, requests: Sequence[Request]) -> None:
        """Ask requests, while earlier ones may be under way."""
        self._feed.add(requests)

    def cancel(self) -> None:
        """Leave what is under way, and end."""
        self._stream.cancel()


class ServedModel(Model):
    """A model behind a server."""

    waits_for_answers = True

    def __init__(
        self,
        name: str,
        config: OpenAIModel,
        headers: Headers,
        pace: Callable[[], AbstractAsyncContextManager[Pace]],
        spend: Spend,
        *,
        tokenizer: LocalTokenizer | None = None,
        context: int | None = None,
        replicas: Sequence[Replica] = (),
    ) -> None:
        """`pace` gives what decides when a call may be sent; it is opened for each series of requests. `spend` holds to the caps.

        `tokenizer` is the one that evals.yaml names, `context` the number of tokens that the server declares for a prompt and its answer.
        `replicas` are all servers of the model, with the one of `config`, if there are several. They divide the requests.
        """
        self._name = name
        self._config = config
        self._headers = headers
        self._pace = pace
        self._spend = spend
        self._tokenizer = tokenizer
        self._context = context
        self._replicas = replicas
        self._now: Pace | Fleet | None = None
        self._stream: Stream[Answered] | None = None
        self._is_ending = False
        addresses = ", ".join(each.config.base_url for each in replicas) or config.base_url
        self._usage = GenerationUsage(path="server", reason=f"asked at {addresses}")

    def respond(self, requests: Sequence[Request]) -> Iterator[Answered]:
        """Answer every request once, in the order in which the server does.

        Raises:
            CapReachedError: A cap of the model is reached.
            StoppedError: No further request can succeed: the key is refused, the quota is spent, or the server is down.
        """
        reporter = current_reporter()  # a thread of its own has none
        self._stream = Stream(partial(self._ask, requests, None, reporter))
        return iter(self._stream)

    def answering(self) -> Callable[[PutAnswers], Answering]:
        """A function that begins to answer requests as they come, over the same connections. It ends by an error as `respond` raises it."""
        return self._begin_answering

    def _begin_answering(self, put: PutAnswers) -> Answering:
        feed = Feed[Sequence[Request]]()
        self._stream = Stream(partial(self._ask, (), feed, current_reporter()), put)
        self._stream.start()
        return _Answering(feed, self._stream)

    def end(self) -> None:
        """Begin no further request. `respond` ends when those under way are answered."""
        self._is_ending = True
        if self._stream is not None:
            self._stream.end(lambda: self._now is None or not self._now.under_way)

    async def _ask(self, requests: Sequence[Request], feed: Feed[Sequence[Request]] | None, reporter: Reporter, put: Put[Answered]) -> None:
        """Ask the server, or all servers, and count the answers. Those of the feed come later."""
        config, usage = self._config, self._usage

        def counted(item: Answered) -> None:
            report = item[1].report
            usage.requests += 1
            if report is not None:
                usage.passes += report.attempts
                usage.prompt_tokens_asked += report.prompt_tokens or 0
                usage.prompt_tokens_computed += (report.prompt_tokens or 0) - (report.cached_tokens or 0)
                usage.tokens_decoded += report.output_tokens or 0
            if config.price is not None:
                usage.cost, usage.cost_estimated = self._spend.spent.cost, self._spend.unknown
            put(item)

        def client_of(replica: Replica) -> CappedClient:
            return CappedClient(self._name, replica.config, self._headers, self._spend)

        def is_ending() -> bool:
            return self._is_ending

        try:
            if self._replicas:
                replicas, tokenizer, context = self._replicas, self._tokenizer, self._context
                self._now = Fleet(self._name, replicas, client_of, counted, tokenizer, context, reporter, is_ending=is_ending)
                await self._now.ask(requests, feed)
                return
            async with self._pace() as pace, CappedClient(self._name, config, self._headers, self._spend) as client:
                self._now = pace
                series = Series(
                    self._name,
                    config,
                    client,
                    pace,
                    counted,
                    self._tokenizer,
                    is_ending=is_ending,
                    on_stop=None if feed is None else lambda _: feed.close(),
                )
                await series.ask(requests, self._context, reporter, feed)
        finally:
            self._now = None

    def replies(self, calls: Sequence[Call], *, one_by_one: bool = False) -> list[CallReply | BadAnswerError]:
        """The replies to single calls, or the reasons for missing ones, in the order of the calls. `usage` does not count them.

        If they are sent `one_by_one`, each is sent after the reply to the one before.

        Raises:
            CapReachedError, StoppedError: As `respond` does.
        """

        async def work() -> list[CallReply | BadAnswerError]:
            config = self._config
            async with self._pace() as pace, CappedClient(self._name, config, self._headers, self._spend) as client:
                series = Series(self._name, config, client, pace, lambda _: None, None)
                parts = [[call] for call in calls] if one_by_one else [calls]
                return [reply for part in parts for reply in await series.replies(part)]

        return result_of(work)

    def usage(self) -> Sequence[Usage]:
        """The tokens that the server counted."""
        now = self._now
        self._usage.state = "" if now is None else now.state()
        return (self._usage,)
