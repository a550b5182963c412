"""A server of language models in simulated time: hundreds of seconds of requests take one second."""

import asyncio
import heapq
import math
import random
import selectors
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from eval_dagster.models.served.pace.pacing import Pace, PaceSettings

T = TypeVar("T")


class _NoWaiting(selectors.SelectSelector):
    """Where the loop would wait until a time, that time is now."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "every task waits for another one"
        self.now += max(0.0, timeout)
        return super().select(0)


class SimulatedLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._waiting = _NoWaiting()
        super().__init__(self._waiting)

    def time(self) -> float:
        return self._waiting.now


def run_simulated(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(main())


class RejectedError(Exception):
    """The server is full, or answers nobody for now."""


@dataclass
class SimulatedServer:
    """It writes one token a step for each of its slots; a step takes longer the more slots are in use. Further requests wait in order."""

    slots: int = 64
    step_s: float = 0.02
    step_of_each_s: float = 0.0003
    bound: int | None = None
    """Requests beyond this number are rejected after 50 ms."""
    closed: tuple[float, float] = (-1.0, -1.0)
    """From when until when all requests are rejected."""
    sent: list[float] = field(default_factory=list)
    rejected: int = 0
    most_under_way: int = 0
    _active: list[tuple[float, int, asyncio.Future[None]]] = field(default_factory=list)
    _queue: deque[tuple[int, asyncio.Future[None]]] = field(default_factory=deque)
    _step: float = 0.0
    _step_at: float = 0.0
    _timer: asyncio.TimerHandle | None = None

    async def answer(self, length: int) -> None:
        loop = asyncio.get_running_loop()
        self.sent.append(loop.time())
        under_way = len(self._active) + len(self._queue)
        if (self.bound is not None and under_way >= self.bound) or self.closed[0] <= loop.time() < self.closed[1]:
            self.rejected += 1
            await asyncio.sleep(0.05)
            raise RejectedError
        self.most_under_way = max(self.most_under_way, under_way + 1)
        self._catch_up()
        end: asyncio.Future[None] = loop.create_future()
        self._queue.append((length, end))
        self._fill_slots()
        await end

    def _seconds_of_step(self) -> float:
        return self.step_s + self.step_of_each_s * len(self._active)

    def _catch_up(self) -> None:
        now = asyncio.get_running_loop().time()
        self._step += (now - self._step_at) / self._seconds_of_step()
        self._step_at = now

    def _fill_slots(self) -> None:
        while self._queue and len(self._active) < self.slots:
            length, end = self._queue.popleft()
            heapq.heappush(self._active, (self._step + length, id(end), end))
        if self._timer is not None:
            self._timer.cancel()
        if self._active:
            steps = max(0.0, self._active[0][0] - self._step)
            self._timer = asyncio.get_running_loop().call_later(steps * self._seconds_of_step(), self._end_first)

    def _end_first(self) -> None:
        self._catch_up()
        ended = []
        while self._active and self._active[0][0] <= self._step + 1e-6:
            ended.append(heapq.heappop(self._active)[2])
        self._fill_slots()
        for end in ended:
            end.set_result(None)


@dataclass(frozen=True)
class Outcome:
    seconds: float
    level: int
    server: SimulatedServer


def lengths(count: int, seed: int) -> list[int]:
    """Lognormal lengths of answers, 120 tokens on average."""
    chance = random.Random(seed)
    return [max(1, int(chance.lognormvariate(math.log(120) - 0.5, 1.0))) for _ in range(count)]


async def answer_all(
    pace: Pace, server: SimulatedServer, answers: list[int], retry_after_s: float | None = None, work: Callable[[int], float] = float
) -> None:
    """Send requests until all are answered, as a client does: rejected ones are sent again when the pace lets them."""

    async def send(length: int) -> None:
        while True:
            try:
                await server.answer(length)
            except RejectedError:
                pace.pushed_back(retry_after_s)
                await pace.wait(length)
            else:
                pace.answered(length, work(length))
                return

    async with asyncio.TaskGroup() as group:
        for length in answers:
            await pace.wait(length)
            group.create_task(send(length))


def evaluate(
    settings: PaceSettings,
    server: SimulatedServer,
    count: int,
    *,
    seed: int = 0,
    retry_after_s: float | None = None,
    work: Callable[[int], float] = float,
) -> Outcome:
    """Answer a number of requests by one process."""

    async def main() -> Outcome:
        async with Pace(settings, seed=seed) as pace:
            await answer_all(pace, server, lengths(count, seed), retry_after_s, work)
        return Outcome(asyncio.get_running_loop().time(), pace.level, server)

    return run_simulated(main)
