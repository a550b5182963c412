"""Reads the samples of one log of inspect_ai into tables on the disk: small logs in this process, large ones in several."""

import gc
import multiprocessing
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from eval_dagster.imports.inspect_archive import Archive, Member, batches
from eval_dagster.imports.inspect_header import Log
from eval_dagster.imports.inspect_rows import MADE, Batch, Lacking, arrow_table, read_batch
from eval_dagster.imports.spooled_tables import SpooledTable, packed
from eval_dagster.versions.hashes import text_hash

_MOST = 500
"""Samples of a batch."""
_MOST_BYTES = 16 * 2**20
"""Bytes of a batch, unpacked. A sample of an agent may have megabytes."""
_FEW_BYTES = 64 * 2**20
"""Logs of at most these bytes, unpacked, are read in this process: others take a second to start."""
_MOST_PROCESSES = 8


@dataclass(frozen=True, kw_only=True)
class _Packed:
    """A batch as another process sends it."""

    batch: Batch
    """Without its rows."""
    samples: pa.Table
    tables: Mapping[str, bytes]
    rows: int


def _read(archive: Archive, members: Sequence[Member], log: Log) -> _Packed:
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
    return _Packed(
        batch=replace(batch, rows={}, seen=set(), known={}),
        samples=samples,
        tables={name: packed(table) for name, table in tables.items()},
        rows=rows,
    )


def _read_file(path: Path, members: Sequence[Member], log: Log) -> _Packed:
    """Read members in another process."""
    pa.set_cpu_count(1)
    with path.open("rb") as file:
        return _read(Archive(file, {}), members, log)


class Processes:
    """The processes that read large logs. They are started for the first one."""

    def __init__(self, count: int | None = None) -> None:
        """Take their number; by default one a core."""
        self.count = count or min(
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, _MOST_PROCESSES
        )
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def read(self, path: Path, archive: Archive, members: Sequence[Member], log: Log) -> Iterator[_Packed]:
        """Read the members of a log, in their order."""
        parts = batches(members, most=_MOST, most_bytes=_MOST_BYTES)
        brief = replace(log, sample_ids=())
        if self.count == 1 or sum(member.size for member in members) <= _FEW_BYTES:
            for part in parts:
                yield _read(archive, part, brief)
            return
        if self._pool is None:
            self._pool = ProcessPoolExecutor(self.count, mp_context=multiprocessing.get_context("spawn"))
        waiting: deque[Future[_Packed]] = deque()
        for part in parts:
            waiting.append(self._pool.submit(_read_file, path, part, brief))
            if len(waiting) > self.count + 1:  # what waits to be written takes memory
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@dataclass(kw_only=True)
class ReadLog:
    """The samples of a log, as tables on the disk."""

    log: Log
    tables: Mapping[str, SpooledTable]
    versions: dict[str, str] = field(default_factory=dict)
    """The version of each table."""
    metrics: dict[str, str] = field(default_factory=dict)
    """The metrics, each with its scorer, in the order in which they come first."""
    marks: dict[str, bool] = field(default_factory=dict)
    """Whether all values of a scorer mark answers as right, wrong or between."""
    answers: int = 0
    samples: int = 0
    scores: int = 0
    """Rows of `scores`."""
    totals: dict[str, float] = field(default_factory=dict)
    """Tokens and seconds of all answers."""
    errors: int = 0
    """Answers without a value under some metric."""
    unread: list[str] = field(default_factory=list)
    """Why samples could not be read."""


def read_samples(path: Path, archive: Archive, log: Log, processes: Processes, folder: Path, stack: ExitStack) -> ReadLog:
    """Read all samples of a log into tables in a folder, which end with `stack`."""
    read = ReadLog(log=log, tables={name: SpooledTable(name, folder) for name in MADE})
    for table in read.tables.values():
        stack.callback(table.close)
    digests = {name: bytearray() for name in MADE}
    lacking: list[Lacking] = []
    positions = pa.array(log.sample_ids, pa.string())
    seen: set[str] = set()
    for part in processes.read(path, archive, archive.samples(), log):
        batch = part.batch
        ids = part.samples["sample_id"].to_pylist()
        is_new = [each not in seen for each in ids]
        seen.update(ids)
        samples = part.samples.filter(pa.array(is_new, pa.bool_()))
        place = samples.schema.get_field_index("row_index")
        known = pc.index_in(samples["sample_name"], value_set=positions).cast(pa.int64())
        own = pa.array(range(read.samples, read.samples + len(samples)), pa.int64())
        samples = samples.set_column(place, samples.schema.field(place), pc.coalesce(known, own))
        read.tables["samples"].add(packed(samples))
        for name, content in part.tables.items():
            read.tables[name].add(content)
            digests[name] += batch.digests[name]
        for place, new in enumerate(is_new):
            if new:
                digests["samples"] += batch.digests["samples"][16 * place : 16 * place + 16]
        for metric, scorer in batch.metrics.items():
            read.metrics.setdefault(metric, scorer)
        for scorer, is_mark in batch.marks.items():
            read.marks[scorer] = read.marks.get(scorer, True) and is_mark
        read.samples += len(samples)
        read.answers += part.rows
        read.errors += batch.errors
        read.totals = {name: amount + read.totals.get(name, 0.0) for name, amount in batch.totals.items()}
        read.unread += batch.unread
        lacking += batch.lacking
    if not read.metrics:  # nothing was scored, and the log may say what would have been
        read.metrics = {scorer.replace("/", "."): scorer for scorer in log.scorers}
    _add_lacking(read, lacking, digests["scores"])
    read.scores = len(digests["scores"]) // 16
    read.versions = {name: text_hash(bytes(content).hex()) for name, content in digests.items()}
    return read


def _add_lacking(read: ReadLog, lacking: Sequence[Lacking], digest: bytearray) -> None:
    """Add a row with the reason, and without a value, for each metric that an answer lacks."""
    batch = Batch()
    for each in lacking:
        metrics = [metric for metric, scorer in read.metrics.items() if each.lacks(metric, scorer)]
        read.errors += bool(metrics) and not each.is_counted
        for metric in metrics:
            identity = f"{each.sample_id} {metric} {each.reason}"
            ids = (each.sample_id, each.sample_name, each.source_id, each.source_id)
            batch.add("scores", identity, *ids, metric, None, each.reason, None)
    if batch.digests["scores"]:
        read.tables["scores"].add(packed(arrow_table("scores", batch.rows["scores"], read.log)))
        digest += batch.digests["scores"]
