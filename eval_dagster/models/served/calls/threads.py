"""Runs asynchronous work in a thread of its own, for callers that may be in an event loop themselves, such as a notebook."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")
Put = Callable[[T], None]
_LOOK_S = 0.1


class _Ended:
    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class Stream(Generic[T]):
    """The items of asynchronous work, each as soon as it is there."""

    def __init__(self, work: Callable[[Put[T]], Awaitable[None]]) -> None:
        """`work` is given the function that puts an item out."""
        self._work = work
        self._batches: SimpleQueue[list[T] | _Ended] = SimpleQueue()
        self._batch: list[T] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_ready = threading.Event()

    def __iter__(self) -> Iterator[T]:
        """The items. An exception of the work is raised after them. If the caller ends before the work, the work is cancelled."""
        thread = threading.Thread(target=self._run, name="served model", daemon=True)
        thread.start()
        try:
            while not isinstance(batch := self._batches.get(), _Ended):
                yield from batch
            if batch.error is not None:
                raise batch.error
        finally:
            self._is_ready.wait()
            if self._loop is not None and self._task is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._task.cancel)
            thread.join()

    def end(self, is_idle: Callable[[], bool]) -> None:
        """Cancel the work once it is idle, in two looks one after the other. May be called from a handler of a signal."""

        async def cancel_when_idle(task: "asyncio.Task[None]") -> None:
            idle_looks = 0
            while idle_looks < 2:
                await asyncio.sleep(_LOOK_S)
                idle_looks = idle_looks + 1 if is_idle() else 0
            task.cancel()

        if self._loop is not None and self._task is not None and not self._loop.is_closed():
            asyncio.run_coroutine_threadsafe(cancel_when_idle(self._task), self._loop)

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
            self._batches.put(_Ended(error))

    async def _watched(self) -> None:
        loop = asyncio.get_running_loop()
        self._loop, self._task = loop, asyncio.current_task()
        self._is_ready.set()

        def put(item: T) -> None:
            if not self._batch:  # items of one turn of the loop go together: to wake a thread costs more than an item
                loop.call_soon(self._pass_on)
            self._batch.append(item)

        await self._work(put)

    def _pass_on(self) -> None:
        if self._batch:
            self._batches.put(self._batch)
            self._batch = []


def result_of(work: Callable[[], Awaitable[T]]) -> T:
    """The result of asynchronous work. Its exception is raised."""

    async def put_result(put: Put[T]) -> None:
        put(await work())

    return next(iter(list(Stream(put_result))))
