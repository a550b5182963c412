"""Reads a file of the lake: its footer, and its rows as an Arrow table or as dictionaries. Damage raises an error."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from eval_dagster.lake.format.damage import damage_named, require_sound, require_sound_footer
from eval_dagster.lake.format.file_writing import INFO_KEY, MADE_OF_KEY, FileInfo
from eval_dagster.versions.hashes import file_stamp


def read_info(path: Path) -> FileInfo:
    """Read the `FileInfo` in the footer of a file. Raises LakeError if the footer is damaged."""
    with damage_named(path):
        stamp = tuple(file_stamp(path))
    return _read_info(path, stamp)


@lru_cache(maxsize=4096)
def _read_info(path: Path, stamp: tuple[Any, ...]) -> FileInfo:  # noqa: ARG001 - a file that was written since has another stamp
    require_sound_footer(path)
    with damage_named(path):
        metadata = pq.read_schema(path).metadata or {}
        return FileInfo(**json.loads(metadata[INFO_KEY]), made_of=json.loads(metadata.get(MADE_OF_KEY, b"{}")))


def read_table(path: Path, columns: Sequence[str] | None = None, where: pc.Expression | None = None) -> pa.Table:
    """Read a file, or the rows selected by `where`, as an Arrow table. Raises LakeError if it is damaged.

    Columns that an older file lacks are left out.
    """
    require_sound(path)
    with damage_named(path):
        if where is None:
            return pq.ParquetFile(path).read(columns=columns and list(columns))
        kept = columns and [name for name in pq.read_schema(path).names if name in columns]
        return pq.read_table(path, columns=kept, filters=where, partitioning=None)


def read_rows(path: Path, columns: Sequence[str] | None = None, where: pc.Expression | None = None) -> list[dict[str, Any]]:
    """Read a file, or the rows selected by `where`, as dictionaries. Raises LakeError if it is damaged."""
    table = read_table(path, columns, where)
    with damage_named(path):
        return _rows_of(table)


def read_head(path: Path, count: int, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Read the first rows of a file. Raises LakeError if it is damaged."""
    require_sound(path)
    with damage_named(path):
        batches = pq.ParquetFile(path).iter_batches(batch_size=count, columns=list(columns))
        first = next(batches, None)
        return _rows_of(first) if first is not None else []


def _rows_of(table: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """A table as rows. Arrow's own conversion of times imports pandas, which takes longer than most commands need to read their rows."""
    columns = [_times(column) if pa.types.is_timestamp(column.type) else column.to_pylist() for column in table.columns]
    return [dict(zip(table.column_names, values, strict=True)) for values in zip(*columns, strict=True)]


def _times(column: pa.ChunkedArray | pa.Array) -> list[datetime | None]:
    microseconds = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_pylist()
    zone = UTC if column.type.tz else None
    return [None if each is None else datetime(1970, 1, 1, tzinfo=zone) + timedelta(microseconds=each) for each in microseconds]
