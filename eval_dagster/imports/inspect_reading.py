"""Reads the samples of one log of inspect_ai into tables on the disk."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from eval_dagster.imports.inspect_archive import Archive
from eval_dagster.imports.inspect_header import Log
from eval_dagster.imports.inspect_rows import MADE, Batch, Lacking, arrow_table
from eval_dagster.imports.reading_processes import Processes
from eval_dagster.imports.spooled_tables import SpooledTable, packed
from eval_dagster.versions.hashes import text_hash


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
    positions = dict(zip(reversed(log.sample_ids), range(len(log.sample_ids) - 1, -1, -1), strict=True))
    seen: set[str] = set()
    for part in processes.read(path, archive, archive.samples(), log):
        batch = part.batch
        ids = part.samples["sample_id"].to_pylist()
        is_new = [each not in seen for each in ids]
        seen.update(ids)
        samples = part.samples.filter(pa.array(is_new, pa.bool_()))
        places = [positions.get(name, read.samples + own) for own, name in enumerate(samples["sample_name"].to_pylist())]
        column = samples.schema.get_field_index("row_index")
        samples = samples.set_column(column, samples.schema.field(column), pa.array(places, pa.int64()))
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
