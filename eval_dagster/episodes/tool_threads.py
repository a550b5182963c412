"""Threads in which the functions of tools run, so that a slow one holds up its own episode alone.

To hand a call to another thread and back costs more than most calls. So one thread makes the calls one after the other, as long as each
ends soon, and the results of several go back together. If a call takes longer, another thread makes those that wait. A thread cannot be
ended: if a call takes longer than it may, its episode ends without it, and its thread does not count until the call has ended.
"""

import asyncio
import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

_SOON_S = 0.002
"""Seconds after which a call counts as slow."""
_MOST = 32
"""Threads, at most."""

_TIME_LOOK_S = 0.1
"""Seconds between two looks at the time that calls take."""


class CallTimeError(Exception):
    """A call took longer than it may."""


@dataclass(frozen=True, eq=False, slots=True)
class _Call:
    function: Callable[[], Any]
    context: contextvars.Context
    future: "asyncio.Future[Any]"
    most_s: float | None


class ToolThreads:
    """Calls functions for an event loop, in which all but `_work` is executed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[_Call] = deque()
        self._done: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._is_told = False
        """Whether the loop is to take what is done."""
        self._under_way = self._threads = self._ended = 0
        """Calls without a result; threads; and results since the threads were last looked at."""
        self._wakes: SimpleQueue[bool] = SimpleQueue()
        """True wakes a thread, false ends it."""
        self._lock = threading.Lock()
        self._awake = 0
        """Threads that make calls. They look for the next one with the lock before they sleep."""
        self._is_watched = self._is_timed = self._is_closed = False
        self._started: dict[_Call, float] = {}
        """When the calls with a limit began, by `time.monotonic`."""
        self._lost: set[_Call] = set()
        """Calls that take longer than they may. Their threads count neither as threads nor as awake."""

    @property
    def under_way(self) -> int:
        """Calls without a result."""
        return self._under_way

    async def call(self, function: Callable[[], Any], most_s: float | None = None) -> Any:
        """The value of a function, called in the context of the caller. Raises its exception, or `CallTimeError` after `most_s` seconds."""
        future = self._loop.create_future()
        self._waiting.append(_Call(function, contextvars.copy_context(), future, most_s))
        self._under_way += 1
        self._wake(at_least=1)
        if not self._is_watched:
            self._is_watched = True
            self._loop.call_later(_SOON_S, self._watch)
        if most_s is not None and not self._is_timed:
            self._is_timed = True
            self._loop.call_later(min(_TIME_LOOK_S, most_s), self._look_at_time)
        try:
            return await future
        finally:
            self._under_way -= 1

    def close(self) -> None:
        """End the threads. A call under way goes on by itself, and its result is lost."""
        self._is_closed = True
        self._waiting.clear()
        for _ in range(self._threads):
            self._wakes.put(False)

    def _wake(self, at_least: int = _MOST) -> None:
        """Wake or start a thread, unless so many are awake."""
        with self._lock:
            if self._awake >= at_least:
                return
            is_idle = self._awake < self._threads
            self._awake += 1
        if not is_idle:
            self._threads += 1
            threading.Thread(target=self._work, name="tool", daemon=True).start()
        self._wakes.put(True)

    def _watch(self) -> None:
        """Wake another thread if calls wait and none has ended for a while."""
        if self._waiting and not self._ended:
            self._wake()
        self._ended = 0
        self._is_watched = bool(self._waiting)
        if self._is_watched:
            self._loop.call_later(_SOON_S, self._watch)

    def _look_at_time(self) -> None:
        now = time.monotonic()
        for call, started in list(self._started.items()):
            assert call.most_s is not None
            with self._lock:
                if now - started <= call.most_s or self._started.pop(call, None) is None:
                    continue
                self._lost.add(call)
                self._awake -= 1
                self._threads -= 1
            if not call.future.done():
                call.future.set_exception(CallTimeError)
            if self._waiting:
                self._wake()
        self._is_timed = self._under_way > 0
        if self._is_timed:
            self._loop.call_later(_TIME_LOOK_S, self._look_at_time)

    def _began(self, call: _Call) -> None:
        if call.most_s is not None:
            with self._lock:
                self._started[call] = time.monotonic()

    def _ended_in_time(self, call: _Call) -> bool:
        if call.most_s is None:
            return True
        with self._lock:
            if self._started.pop(call, None) is not None:
                return True
            self._lost.discard(call)
            self._awake += 1
            self._threads += 1
            return False

    def _work(self) -> None:
        while self._wakes.get():
            while True:
                try:
                    call = self._waiting.popleft()
                except IndexError:
                    with self._lock:
                        if self._waiting:
                            continue
                        self._awake -= 1
                    break
                if call.future.cancelled():
                    continue
                self._began(call)
                value: Any = None
                error: BaseException | None = None
                try:
                    value = call.context.run(call.function)
                except StopIteration as caught:  # which no future may hold
                    error = RuntimeError(f"a function raised StopIteration: {caught}")
                except BaseException as caught:
                    error = caught
                if not self._ended_in_time(call):
                    if self._is_closed:
                        return
                    continue
                self._done.append((call.future, value, error))
                if not self._is_told:
                    self._is_told = True
                    with suppress(RuntimeError):  # the loop is closed
                        self._loop.call_soon_threadsafe(self._give)

    def _give(self) -> None:
        self._is_told = False  # before the results are taken: a later one is told of again
        while self._done:
            future, value, error = self._done.popleft()
            self._ended += 1
            if future.done():
                continue
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)
