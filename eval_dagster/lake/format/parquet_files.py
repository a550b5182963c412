"""Names, writes and reads a file of the lake. Names sort by time, files are written whole, and damage raises an error."""

import contextlib
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from eval_dagster.errors import LakeError
from eval_dagster.lake.format.damage import damage_named, lake_name, require_sound, require_sound_footer, write_with_checksum
from eval_dagster.lake.format.small_files import FEW_ROWS, SMALL_FILES
from eval_dagster.versions.hashes import file_stamp

_STAMP = "%Y%m%dT%H%M%S%fZ"
_NAME = re.compile(r"\d{8}T\d{7,12}Z-[^/]*\.parquet", re.ASCII)
INFO_KEY = b"eval_dagster"
"""The footer key of a file's `FileInfo`."""
MADE_OF_KEY = b"eval_dagster_made_of"
"""The footer key of `FileInfo.made_of`. It is separate because earlier releases cannot read a `FileInfo` with an unknown field."""
_ABANDONED_S = 3600.0
_BATCH = 10_000
"""Most rows that are in memory together where a file is read row by row."""
_KEYS = 100_000
"""Most rows that are in memory together while short columns are read."""
_BATCH_BYTES = 4 * 2**20
"""Most bytes of these rows, about. Larger batches take as long to read, and longer to make room for."""


def is_name(name: str) -> bool:
    """Whether `new_name` makes such names. Files with other names do not belong to the lake."""
    return _NAME.fullmatch(name) is not None


def utc_now() -> datetime:
    """The time that names a file without another one."""
    return datetime.now(UTC)


def new_name(run_id: str, time: datetime | None = None) -> str:
    """A file name that sorts by time and is used once."""
    return f"{(time or utc_now()).strftime(_STAMP)}-{run_id[:8]}-{secrets.token_hex(4)}.parquet"


def time_of(path: Path) -> datetime:
    """The time at which a lake file was materialized, from its name; UTC."""
    day, _, clock = path.name.partition("Z-")[0].partition("T")
    return datetime.fromisoformat(f"{day}T{clock[:6]}.{clock[6:]:0<6}+00:00")  # a tenth of the time of `strptime`


def is_listed(path: Path) -> bool:
    """Whether a folder has an entry of this name. Includes unreadable entries, which `Path.exists` misses."""
    return os.path.lexists(path)


def unlisted_folder(folder: Path, fault: OSError) -> str:
    """The message for a lake folder whose files are unknown."""
    return (
        f"the lake folder {folder} cannot be listed ({fault.strerror}), and its files are left out; expected a folder that this user can "
        "read: restore it, or make it readable, check the disk that it is on, and try again"
    )


def parquet_files(folder: Path) -> list[Path]:
    """The lake's files in a folder, the oldest first; empty if it does not exist. Raises `LakeError` if it cannot be listed."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - one syscall for thousands of names
    except (FileNotFoundError, ValueError):  # ValueError: the name is not valid for a folder
        return []
    except OSError as error:
        raise LakeError(unlisted_folder(folder, error)) from error
    return [folder / name for name in sorted(names) if _NAME.fullmatch(name)]


@dataclass(frozen=True, kw_only=True)
class FileInfo:
    """The information in the footer of a lake file."""

    fingerprint: str
    """Hash of everything that determined the content. Equal fingerprints need no second computation."""
    version: str
    """Hash of the content."""
    run_id: str
    """The Dagster run that wrote it, or another name of the writing run."""
    materialized_at: str
    """ISO 8601, UTC."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """The version of each input, by name."""
    counts: Mapping[str, float] = field(default_factory=dict)
    """Figures shown in the user interfaces: rows, errors, tokens, seconds."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Text shown in the user interfaces."""
    made_of: Mapping[str, str] = field(default_factory=dict)
    """The versions hashed into the fingerprint, by name. Empty in files of earlier releases."""


@dataclass(frozen=True, kw_only=True)
class TableParts:
    """The parts of a table that is too large for the memory, one after the other."""

    schema: pa.Schema
    read: Callable[[], Iterator[pa.Table]]
    """Begins to read the parts, at least one. They have the schema."""


def write_parquet(path: Path, rows: pa.Table | TableParts, info: FileInfo | None = None) -> None:
    """Write under a temporary name, sync, rename. A reader sees the whole file or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep(path.parent)
    # Columns named by folders, such as `eval` (`eval=<name>`), become dictionaries of texts. Arrow and pandas derive that type from the
    # folders, and cannot merge it with plain texts.
    partitions = {part.partition("=")[0] for part in path.parent.parts if "=" in part}
    texts = pa.dictionary(pa.int32(), pa.string())
    schema = pa.schema(
        [each.with_type(texts) if each.name in partitions and pa.types.is_string(each.type) else each for each in rows.schema],
        metadata=rows.schema.metadata,
    )
    if info is not None:
        fields = asdict(info)
        made_of = fields.pop("made_of")
        schema = schema.with_metadata({INFO_KEY: json.dumps(fields).encode(), MADE_OF_KEY: json.dumps(made_of).encode()})
    parts = rows.read() if isinstance(rows, TableParts) else iter([rows])
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("w+b") as file:
            write_with_checksum((each.cast(schema) for each in parts), schema, file, lake_name(path))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:  # also of a part that cannot be read
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = error.filename or str(path)
        raise


def sweep(folder: Path) -> None:
    """Remove the temporary files left by killed processes."""
    for path in folder.glob(".*.tmp"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > _ABANDONED_S:
                path.unlink()


def read_info(path: Path) -> FileInfo:
    """Read the `FileInfo` in the footer of a file. Raises LakeError if the footer is damaged."""
    with damage_named(path):
        stamp = tuple(file_stamp(path))
    return _read_info(path, stamp)


@lru_cache(maxsize=16_384)
def _read_info(path: Path, stamp: tuple[Any, ...]) -> FileInfo:  # noqa: ARG001 - a file that was written since has another stamp
    require_sound_footer(path)
    with damage_named(path):
        metadata = pq.read_schema(path).metadata or {}
        return FileInfo(**json.loads(metadata[INFO_KEY]), made_of=json.loads(metadata.get(MADE_OF_KEY, b"{}")))


def read_table(path: Path, columns: Sequence[str] | None = None, where: pc.Expression | None = None) -> pa.Table:
    """Read a file, or the rows selected by `where`, as an Arrow table. Raises LakeError if it is damaged.

    Columns that an older file lacks are left out.
    """
    stamp = require_sound(path)
    with damage_named(path):
        small = SMALL_FILES.find(path, stamp)
        if where is None:
            return pq.ParquetFile(path).read(columns=columns and list(columns)) if small is None else small.read(columns)
        names = pq.read_schema(path).names if small is None else small.schema.names
        kept = names if columns is None else [name for name in names if name in columns]
        if small is not None:
            return small.read().filter(where).select(kept)
        return pq.read_table(path, columns=kept, filters=where, partitioning=None)


def read_rows(path: Path, columns: Sequence[str] | None = None, where: pc.Expression | None = None) -> list[Any]:
    """Read a file, or the rows selected by `where`, as dictionaries. Raises LakeError if it is damaged."""
    table = read_table(path, columns, where)
    with damage_named(path):
        return _rows_of(table)


def read_few_rows(path: Path) -> Sequence[Any]:
    """Read a file of few rows like `read_rows`, which is kept in memory with the last others. The rows are not to be changed."""
    with damage_named(path):
        stamp = tuple(file_stamp(path))
    return FEW_ROWS.find(path, stamp, lambda: read_rows(path))


def iter_rows(path: Path, columns: Sequence[str] | None = None) -> Iterator[Any]:
    """Read a file row by row, as dictionaries. At most a few thousand rows are held at once. Raises LakeError if the file is damaged."""
    with damage_named(path):
        for batch in iter_batches(path, columns):
            yield from _rows_of(batch)


def iter_batches(path: Path, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Read a file in parts of a few thousand rows, as columns. Raises LakeError if the file is damaged. A missing column is left out."""
    stamp = require_sound(path)
    with damage_named(path):
        if (small := SMALL_FILES.find(path, stamp)) is not None:
            yield from small.read(columns).to_batches(max_chunksize=_BATCH)
            return
        file = pq.ParquetFile(path)
        for number in range(file.num_row_groups):
            yield from _batches(file, number, columns, _BATCH)


def rows_in(batch: pa.RecordBatch) -> list[Any]:
    """A part of a file as dictionaries."""
    return _rows_of(batch)


def columns_of(batch: pa.RecordBatch) -> dict[str, list[Any]]:
    """A part of a file as lists by the names of its columns."""
    return {name: _values(column) for name, column in zip(batch.schema.names, batch.columns, strict=True)}


def read_head(path: Path, count: int, columns: Sequence[str]) -> list[Any]:
    """Read the first rows of a file. Raises LakeError if it is damaged."""
    stamp = require_sound(path)
    with damage_named(path):
        if (small := SMALL_FILES.find(path, stamp)) is not None:
            return _rows_of(small.read(columns).slice(0, count))
        batches = pq.ParquetFile(path).iter_batches(batch_size=count, columns=list(columns))
        first = next(batches, None)
        return _rows_of(first) if first is not None else []


def read_rows_at(path: Path, places: Collection[int]) -> dict[int, Any]:
    """Read the rows at some places of a file, from 0, as dictionaries by place. Raises LakeError if it is damaged."""
    require_sound(path)
    with damage_named(path):
        file = pq.ParquetFile(path)
        chosen = sorted(place for place in places if 0 <= place < file.metadata.num_rows)
        return dict(zip(chosen, _rows_of(_taken(file, np.array(chosen, dtype=np.int64))), strict=True))


def read_rows_with(path: Path, column: str, values: Collection[str], columns: Sequence[str] | None = None) -> list[Any]:
    """Read the rows whose text in a column is one of some values, in the order of the file. Raises LakeError if it is damaged.

    The column is read first. Of the others, a part of the rows is in memory at a time.
    """
    stamp = require_sound(path)
    with damage_named(path):
        wanted = pa.array(list(values), pa.string())
        if (small := SMALL_FILES.find(path, stamp)) is not None:
            return _rows_of(small.read(columns).filter(pc.is_in(small.read([column])[column], value_set=wanted)))
        file, found, start = pq.ParquetFile(path), [], 0
        for batch in file.iter_batches(batch_size=_KEYS, columns=[column]):
            found.append(np.flatnonzero(pc.is_in(batch[column], value_set=wanted)) + start)
            start += len(batch)
        return _rows_of(_taken(file, np.concatenate([np.array([], dtype=np.int64), *found]), columns))


def read_columns(path: Path, columns: Sequence[str]) -> dict[str, list[Any]]:
    """Read columns of a file. Raises LakeError if it is damaged. A column that an older file lacks is null in each row."""
    table = read_table(path, columns)
    with damage_named(path):
        return {name: _values(table[name]) if name in table.column_names else [None] * len(table) for name in columns}


def iter_tables(path: Path, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Read columns of a file in parts of many rows, one part at least. Raises LakeError if it is damaged.

    Columns that an older file lacks are left out.
    """
    stamp = require_sound(path)
    with damage_named(path):
        if (small := SMALL_FILES.find(path, stamp)) is not None:
            yield small.read(columns)
            return
        file = pq.ParquetFile(path)
        for number in range(file.num_row_groups):
            for batch in _batches(file, number, columns, _KEYS):
                yield pa.Table.from_batches([batch])
        if not file.metadata.num_rows:
            yield file.read(columns=list(columns))


def _taken(file: pq.ParquetFile, places: NDArray[np.int64], columns: Sequence[str] | None = None) -> pa.Table:
    """The rows at some ascending places. Row groups without one are not read."""
    kept = [field for field in file.schema_arrow if columns is None or field.name in columns]
    found: list[pa.RecordBatch] = []
    start = 0
    for number in range(file.num_row_groups):
        end = start + file.metadata.row_group(number).num_rows
        within = places[(places >= start) & (places < end)]
        for batch in _batches(file, number, columns, _BATCH) if len(within) else ():
            chosen = within[(within >= start) & (within < start + len(batch))] - start
            if len(chosen):
                found.append(batch.take(pa.Array.from_buffers(pa.int64(), len(chosen), [None, pa.py_buffer(chosen)])))
            start += len(batch)
            if start > within[-1]:
                break
        start = end
    return pa.Table.from_batches(found) if found else pa.schema(kept).empty_table()


def _batches(file: pq.ParquetFile, number: int, columns: Sequence[str] | None, most: int) -> Iterator[pa.RecordBatch]:
    """A row group in batches of `most` rows, or fewer if rows are large."""
    group = file.metadata.row_group(number)
    parts = (group.column(place) for place in range(group.num_columns))
    size = sum(part.total_uncompressed_size for part in parts if columns is None or part.path_in_schema.partition(".")[0] in columns)
    rows = max(1, min(most, _BATCH_BYTES * group.num_rows // max(1, size)))
    yield from file.iter_batches(batch_size=rows, row_groups=[number], columns=columns and list(columns))


def rows_of_table(table: pa.Table) -> list[Any]:
    """The rows of a table, in the form in which `read_rows` gives them."""
    return _rows_of(table)


def _rows_of(table: pa.Table | pa.RecordBatch) -> list[Any]:
    """A table as rows."""
    empty = dict.fromkeys(table.column_names)
    given = {
        name: _values(column) for name, column in zip(table.column_names, table.columns, strict=True) if column.null_count < len(table)
    }
    rows = [empty.copy() for _ in range(len(table))]  # most columns of most tables are empty
    for row, values in zip(rows, zip(*given.values(), strict=True), strict=bool(given)):
        row.update(zip(given, values, strict=True))
    return rows


def _values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """A column as `to_pylist` gives it, several times as fast: that makes an object of Arrow for each value before the value.

    Functions of Arrow that import pandas are avoided. The import takes longer than most commands need to read their rows.
    """
    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in _values(chunk)]
    kind = column.type
    if column.null_count == len(column):
        return [None] * len(column)
    if pa.types.is_dictionary(kind):
        words = _values(column.dictionary)
        return [None if index is None else words[index] for index in _values(column.indices)]
    if pa.types.is_list(kind):
        left = iter(_values(column.flatten()))
        return [None if length is None else list(islice(left, length)) for length in _values(pc.list_value_length(column))]
    if pa.types.is_timestamp(kind):
        start = datetime(1970, 1, 1, tzinfo=UTC if kind.tz else None)
        microseconds = _values(column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()))
        return [None if each is None else start + timedelta(microseconds=each) for each in microseconds]
    if pa.types.is_boolean(kind):
        bits = np.unpackbits(np.frombuffer(column.buffers()[1], np.uint8), bitorder="little")
        every = bits[column.offset : column.offset + len(column)].astype(bool).tolist()
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
        letter, size = "f" if pa.types.is_floating(kind) else "i" if pa.types.is_signed_integer(kind) else "u", kind.bit_width // 8
        every = np.frombuffer(column.buffers()[1], f"{letter}{size}", len(column), column.offset * size).tolist()
    elif pa.types.is_string(kind):
        ends = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)
        first, last = int(ends[0]), int(ends[-1])
        content = column.buffers()[2].slice(first, last - first).to_pybytes() if first < last else b""
        places = pairwise((ends - first).tolist())
        if content.isascii():
            text = content.decode()
            every = [text[start:end] for start, end in places]
        else:
            every = [content[start:end].decode() for start, end in places]
    else:
        return list(column.to_pylist())
    if not column.null_count:
        return list(every)
    return [value if is_valid else None for value, is_valid in zip(every, _values(column.is_valid()), strict=True)]
