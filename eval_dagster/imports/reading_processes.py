"""The processes that read the samples of large logs: this one, and others, one a core. Small logs are read in this process alone."""

import gc
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

import pyarrow as pa

from eval_dagster.errors import DataError
from eval_dagster.imports.inspect_archive import Archive, Member, batches
from eval_dagster.imports.inspect_header import Log
from eval_dagster.imports.inspect_rows import Batch, read_batch
from eval_dagster.imports.spooled_tables import packed

P = ParamSpec("P")
T = TypeVar("T")

_MOST = 500
"""Samples of a batch."""
_MOST_BYTES = 16 * 2**20
"""Bytes of a batch, unpacked. A sample of an agent may have megabytes."""
_FEW_BYTES = 64 * 2**20
"""Logs of at most these bytes, unpacked, are read in this process: others take a second to start."""
_MOST_PROCESSES = 8
_ASKED = 2
"""Batches that each other process is asked for, so that it has one while its last one is taken."""
_WAITING = 6
"""Batches, times the processes, that are asked for or wait for those before them. They take memory."""


@dataclass(frozen=True, kw_only=True)
class ReadBatch:
    """The samples of a batch, as one process sends them to another."""

    batch: Batch
    """Without its rows."""
    samples: pa.Table
    tables: Mapping[str, bytes]
    """The other tables, as `packed` gives them."""
    rows: int


def _read(archive: Archive, members: Sequence[Member], log: Log) -> ReadBatch:
    # Thousands of small objects live until the end of the batch, and none of them is in a cycle.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        batch = read_batch(archive, members, log)
        tables = batch.tables(log)
    finally:
        if was_enabled:
            gc.enable()
    rows = len(tables["responses"])
    samples = tables.pop("samples")
    return ReadBatch(
        batch=replace(batch, rows={}, seen=set(), known={}),
        samples=samples,
        tables={name: packed(table) for name, table in tables.items()},
        rows=rows,
    )


def _read_file(path: Path, members: Sequence[Member], log: Log) -> ReadBatch:
    """Read members in another process."""
    with path.open("rb") as file:
        return _read(Archive(file, {}), members, log)


def _begin() -> None:
    """Begin another process. It ends with the first one, however that ends."""
    pa.set_cpu_count(1)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


class Processes:
    """This process and others. The others are started for the first large log."""

    def __init__(self, count: int | None = None) -> None:
        """Take their number, with this one; by default one a core."""
        self.count = count or min(
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, _MOST_PROCESSES
        )
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._pool = None

    def read(self, path: Path, archive: Archive, members: Sequence[Member], log: Log) -> Iterator[ReadBatch]:
        """Read the members of a log. The batches are the same, in the same order, whatever the number of processes.

        Raises:
            DataError: Another process was killed.
        """
        parts = batches(members, most=_MOST, most_bytes=_MOST_BYTES)
        brief = replace(log, sample_ids=())
        if self.count == 1 or sum(member.size for member in members) <= _FEW_BYTES:
            for part in parts:
                yield _read(archive, part, brief)
            return
        others = self.count - 1
        if self._pool is None:
            self._pool = ProcessPoolExecutor(others, mp_context=multiprocessing.get_context("spawn"), initializer=_begin)
        waiting: deque[Future[ReadBatch]] = deque()
        try:
            for part in parts:
                if sum(not each.done() for each in waiting) < _ASKED * others:
                    waiting.append(_begun(self._pool, _read_file, path, part, brief))
                else:
                    waiting.append(_done(_read, archive, part, brief))
                while waiting and (waiting[0].done() or len(waiting) >= _WAITING * self.count):
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenExecutor as error:
            self._end()  # the next log gets others
            raise DataError("of which a process was killed while it read it, perhaps for lack of memory; import it again") from error
        finally:
            for each in waiting:
                each.cancel()

    def call(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> Callable[[], T]:
        """Begin a call in another process, if there is one, and give what waits for its value. It is made here if that one is killed."""
        if self._pool is None:
            return lambda: function(*arguments, **named)
        try:
            begun = _begun(self._pool, function, *arguments, **named)
        except BrokenExecutor:
            self._end()
            return lambda: function(*arguments, **named)

        def value() -> T:
            try:
                return begun.result()
            except BrokenExecutor:
                self._end()
                return function(*arguments, **named)

        return value


def _begun(pool: ProcessPoolExecutor, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> Future[T]:
    """A call in another process. One that is started for it leaves Ctrl-C to this one, from its first moment on: it inherits the mask."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return pool.submit(function, *arguments, **named)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _done(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> Future[T]:
    """A call that is made here and now."""
    done: Future[T] = Future()
    done.set_result(function(*arguments, **named))
    return done
