"""How long a server of language models takes, in real time: so many texts at once, each step slower the more there are."""

import asyncio
import heapq
import itertools
from collections import deque


class Slots:
    """Texts share the steps of the server; the step time is `base_s + text_s * active`. Those beyond the slots wait in order."""

    def __init__(self, slots: int, base_s: float, text_s: float) -> None:
        self._slots, self._base_s, self._text_s = slots, base_s, text_s
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._ends: list[tuple[float, int, asyncio.Future[None]]] = []
        self._steps = self._at = 0.0
        self._active = 0
        self._order = itertools.count()
        self._timer: asyncio.TimerHandle | None = None

    async def write(self, tokens: int) -> None:
        """Return when a text of so many tokens is written; a cancelled one frees its slot."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((tokens, future))
        self._advance()
        try:
            await future
        except asyncio.CancelledError:
            self._advance()
            raise

    def _advance(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self._active:
            self._steps += (now - self._at) / self._step_s()
        self._at = now
        while self._ends and (self._ends[0][0] <= self._steps + 1e-6):
            future = heapq.heappop(self._ends)[2]
            if not future.done():
                future.set_result(None)
        kept = [each for each in self._ends if not each[2].done()]
        if len(kept) < len(self._ends):
            self._ends = kept
            heapq.heapify(self._ends)
        while self._waiting and len(self._ends) < self._slots:
            tokens, future = self._waiting.popleft()
            if not future.done():
                heapq.heappush(self._ends, (self._steps + tokens, next(self._order), future))
        self._active = len(self._ends)
        if self._timer:
            self._timer.cancel()
        if self._ends:
            self._timer = loop.call_at(now + (self._ends[0][0] - self._steps) * self._step_s(), self._advance)

    def _step_s(self) -> float:
        return self._base_s + self._text_s * self._active
