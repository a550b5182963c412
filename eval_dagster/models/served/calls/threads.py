"""Runs asynchronous work in a thread of its own, for callers that may be in an event loop themselves, such as a notebook."""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from queue import SimpleQueue
from typing import Generic, TypeVar

from eval_dagster.models.base import Ended

T = TypeVar("T")
Put = Callable[[T], None]
_LOOK_S = 0.1


class Stream(Generic[T]):
    """The items of asynchronous work, each as soon as it is there: iterate, or call `start` and take them by a function."""

    def __init__(self, work: Callable[[Put[T]], Awaitable[None]], take: Callable[[list[T] | Ended], None] | None = None) -> None:
        """`work` is given the function that puts an item out. `take` is called in the thread of the work."""
        self._work = work
        self._batches: SimpleQueue[list[T] | Ended] = SimpleQueue()
        self._take = self._batches.put if take is None else take
        self._batch: list[T] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_ready = threading.Event()
        self._ending: Callable[[], None] | None = None

    def __iter__(self) -> Iterator[T]:
        """The items. An exception of the work is raised after them. If the caller ends before the work, the work is cancelled."""
        self.start()
        try:
            while not isinstance(batch := self._batches.get(), Ended):
                yield from batch
            if batch.error is not None:
                raise batch.error
        finally:
            self.cancel()

    def start(self) -> None:
        """Begin the work, in a thread of its own."""
        self._thread = threading.Thread(target=self._run, name="served model", daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """Cancel the work, unless it has ended, and wait for its end."""
        self._is_ready.wait()
        if self._loop is not None and self._task is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()

    def end(self, is_idle: Callable[[], bool]) -> None:
        """Cancel the work once it is idle, in two looks one after the other. May be called from a handler of a signal."""

        async def cancel_when_idle(task: "asyncio.Task[None]") -> None:
            idle_looks = 0
            while idle_looks < 2:
                await asyncio.sleep(_LOOK_S)
                idle_looks = idle_looks + 1 if is_idle() else 0
            task.cancel()

        def begin() -> None:
            if self._task is not None and self._loop is not None and not self._loop.is_closed():
                asyncio.run_coroutine_threadsafe(cancel_when_idle(self._task), self._loop)

        self._ending = begin
        begin()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            with asyncio.Runner() as runner:
                runner.run(self._watched())
        except asyncio.CancelledError:
            pass
        except BaseExceptionGroup as group:
            error = group
            while isinstance(error, BaseExceptionGroup):  # the first exception, which ended the other tasks
                error = error.exceptions[0]
        except BaseException as caught:
            error = caught
        finally:
            self._is_ready.set()
            self._pass_on()
            self._take(Ended(error=error))

    async def _watched(self) -> None:
        loop = asyncio.get_running_loop()
        self._loop, self._task = loop, asyncio.current_task()
        self._is_ready.set()
        if self._ending is not None:  # `end` was called before the loop was there
            self._ending()

        def put(item: T) -> None:
            if not self._batch:  # items of one turn of the loop go together: to wake a thread costs more than an item
                loop.call_soon(self._pass_on)
            self._batch.append(item)

        await self._work(put)

    def _pass_on(self) -> None:
        if self._batch:
            self._take(self._batch)
            self._batch = []


class Feed(Generic[T]):
    """Items that other threads give to asynchronous work, in their order."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_new = asyncio.Event()
        self._is_closed = False

    def add(self, item: T) -> None:
        """Give an item. Nothing takes it after the end of the work."""
        self._items.append(item)
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._is_new.set)

    def close(self) -> None:
        """Give no further items. Is called in the loop of the work."""
        self._is_closed = True
        self._is_new.set()

    async def next(self) -> T | None:
        """The next item, as soon as it is there; None after the last one."""
        self._loop = asyncio.get_running_loop()
        while not self._items and not self._is_closed:
            self._is_new.clear()
            if not self._items:  # one may have come before the loop was known
                await self._is_new.wait()
        return None if self._is_closed else self._items.popleft()


def result_of(work: Callable[[], Awaitable[T]]) -> T:
    """The result of asynchronous work. Its exception is raised."""

    async def put_result(put: Put[T]) -> None:
        put(await work())

    return next(iter(list(Stream(put_result))))
