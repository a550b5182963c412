"""Ends work on rows that takes more memory than a run may have, with a message instead of a kill by the system."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TypeVar

import psutil

from eval_dagster.control_groups import memory_limits
from eval_dagster.errors import MemoryLimitError

T = TypeVar("T")
_EVERY_S = 0.25
_EVERY_ROWS = 100
_NEARLY = 0.95
"""Part of the memory of a container that counts as all of it. Between two looks, some rows are added."""
_CURE = (
    "What was answered is stored, and the next run goes on from there. Give it more memory, set `limit` of the eval, or run its models one "
    "after the other"
)
CHILD_LIMIT = 4 * 2**30
"""Bytes that the process of another package may take, unless evals.yaml has a limit."""
_most: ContextVar[int | None] = ContextVar("eval_dagster_most_memory", default=None)
_watch: ContextVar[Callable[[str, int], None] | None] = ContextVar("eval_dagster_memory", default=None)


@contextmanager
def memory_limited(most: int | None) -> Iterator[None]:
    """Within the block, `watched` raises `MemoryLimitError` if the process and its children take more than `most` bytes.

    It also raises it before the memory of the container is full. New threads do not have the limit.
    """
    process, looked_at = psutil.Process(), 0.0

    def look(work: str, row: int) -> None:
        nonlocal looked_at
        if time.monotonic() - looked_at < _EVERY_S:
            return
        if most is not None and (used := memory_of(process)) > most:
            told = f"{work} took {gib(used)} of memory at row {row:,}; `memory` in evals.yaml allows {gib(most)}"
            raise MemoryLimitError(f"{told}. {_CURE}")
        for each in memory_limits():
            if each.needed > _NEARLY * each.limit:
                told = f"at row {row:,} of {work}, {gib(each.needed)} of the {gib(each.limit)} of memory of this container were taken"
                raise MemoryLimitError(f"{told}; beyond them the system would end the process. {_CURE}")
        looked_at = time.monotonic()

    token, token_of_most = _watch.set(look), _most.set(most)
    try:
        yield
    finally:
        with suppress(ValueError):  # a generator that holds the block may be closed in another context, which has no limit
            _watch.reset(token)
            _most.reset(token_of_most)


def child_limit() -> int:
    """Bytes that the process of another package may take: those of `memory_limited`, or `CHILD_LIMIT`."""
    return _most.get() or CHILD_LIMIT


def watched(rows: Iterable[T], work: str) -> Iterator[T]:
    """Pass on rows, and look at the memory now and then. Raises `MemoryLimitError` within `memory_limited`; `work` says what is done."""
    look = _watch.get()
    for number, row in enumerate(rows, 1):
        if look is not None and number % _EVERY_ROWS == 1:
            look(work, number)
        yield row


def memory_of(process: psutil.Process) -> int:
    """Resident bytes of a process and its children; 0 once it has ended."""
    total, processes = 0, [process]
    with suppress(psutil.Error):
        processes += process.children(recursive=True)
    for each in processes:
        with suppress(psutil.Error):  # it has just ended
            total += each.memory_info().rss
    return total


def gib(size: int) -> str:
    """Bytes in words."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
