"""Threads of tools: quick calls share one, slow ones hold up nobody."""

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from eval_dagster.episodes.tool_threads import CallTimeError, ToolThreads


def run(calls: Callable[[ToolThreads], Any]) -> Any:
    async def work() -> Any:
        threads = ToolThreads(asyncio.get_running_loop())
        try:
            return await calls(threads)
        finally:
            threads.close()

    return asyncio.run(work())


def test_quick_calls_share_a_thread_and_keep_their_order() -> None:
    order: list[int] = []

    def call(number: int) -> tuple[int, int]:
        order.append(number)
        return number, threading.get_ident()

    async def calls(threads: ToolThreads) -> list[tuple[int, int]]:
        return await asyncio.gather(*(threads.call(lambda n=n: call(n)) for n in range(100)))  # type: ignore[misc]

    found = run(calls)
    assert [number for number, _ in found] == order == list(range(100))
    assert threading.get_ident() not in {thread for _, thread in found}
    assert len({thread for _, thread in found}) < 10


@pytest.mark.long
def test_a_slow_call_holds_up_no_other() -> None:
    async def calls(threads: ToolThreads) -> list[float]:
        started = time.monotonic()

        async def ended_after(seconds: float) -> float:
            await threads.call(lambda: time.sleep(seconds))
            return time.monotonic() - started

        return list(await asyncio.gather(*map(ended_after, [2.0] * 3 + [0.0] * 50 + [2.0] * 3 + [0.0] * 50)))

    seconds = run(calls)
    quick = seconds[3:53] + seconds[56:]
    assert max(quick) < 1.5
    assert max(seconds) < 3.8, "the slow ones run at the same time"


def test_calls_come_one_by_one_after_a_pause() -> None:
    async def calls(threads: ToolThreads) -> float:
        slowest = 0.0
        for number in range(200):
            started = time.monotonic()
            assert await threads.call(lambda n=number: n) == number  # type: ignore[misc]
            slowest = max(slowest, time.monotonic() - started)
            if number % 20 == 0:
                await asyncio.sleep(0.01)
        return slowest

    assert run(calls) < 2, "no call is left lying"


def test_errors_and_contexts_are_those_of_the_caller() -> None:
    place = contextvars.ContextVar[str]("place")

    def fail() -> None:
        raise KeyError(place.get())

    async def named(threads: ToolThreads, name: str) -> str:
        place.set(name)
        with pytest.raises(KeyError, match=name):
            await threads.call(fail)
        return str(await threads.call(place.get))

    async def calls(threads: ToolThreads) -> list[str]:
        return list(await asyncio.gather(*(asyncio.create_task(named(threads, name)) for name in ("a", "b", "c"))))

    assert run(calls) == ["a", "b", "c"]


def test_a_call_that_nobody_waits_for_any_more_is_not_made() -> None:
    made: list[str] = []

    async def calls(threads: ToolThreads) -> None:
        slow = [asyncio.create_task(threads.call(lambda: time.sleep(0.3))) for _ in range(32)]
        await asyncio.sleep(0.2)
        left = asyncio.create_task(threads.call(lambda: made.append("left")))
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        await asyncio.gather(*slow)
        await threads.call(lambda: made.append("last"))
        assert threads.under_way == 0

    run(calls)
    assert made == ["last"]


def test_calls_that_never_end_take_no_thread_from_others() -> None:
    """More of them than there are threads, three times over."""
    over = threading.Event()

    async def calls(threads: ToolThreads) -> tuple[int, list[int]]:
        late = 0
        for _ in range(3):
            found = await asyncio.gather(*(threads.call(over.wait, 0.2) for _ in range(40)), return_exceptions=True)
            late += sum(isinstance(each, CallTimeError) for each in found)
        quick = await asyncio.gather(*(threads.call(partial(int, n), 5) for n in range(100)))
        over.set()
        await asyncio.sleep(0.3)
        quick += await asyncio.gather(*(threads.call(partial(int, n), 5) for n in range(100)))
        assert threads.under_way == 0
        return late, quick

    assert run(calls) == (120, [*range(100), *range(100)])
