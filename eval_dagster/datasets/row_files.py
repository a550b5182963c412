"""Reads the rows of Parquet, JSON Lines or CSV files one after the other. A mistake in one row does not affect other rows."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from eval_dagster.datasets.csv_files import Types, column_kinds, csv_rows
from eval_dagster.errors import DataError
from eval_dagster.records import Row
from eval_dagster.tasks.samples import unreadable

_BATCH_ROWS = 64
"""Rows of a Parquet file that are decoded at once. A file of some bytes can hold thousands of rows of megabytes each."""
_BATCH_BYTES = 16 * 2**20
"""Bytes of the rows of a Parquet file that are decoded at once, if all are as large as the first."""
_BUFFER_BYTES = 2**20
_LARGEST_ROW = 256 * 2**20
"""Most bytes of a row, or characters of a line. A larger one is unreadable: each step of an evaluation holds several copies of it."""


def rows_of(files: Iterable[Path], types: Types = MappingProxyType({})) -> Iterator[Row]:
    """Read the files of a split. What the caller does not ask for is not read.

    Bytes outside UTF-8 become lone surrogates (`\\udcff`), as Python's error handler `surrogateescape` makes them. A line of JSON Lines
    that is not a JSON object, a row of CSV with a wrong number of cells, and a row of Parquet with a value that Python lacks become
    unreadable rows, unless all of a file are.

    Args:
        files: The files of one split.
        types: Types of columns of CSV files. Other columns have a type if each cell of the split is exactly what the type prints.

    Raises:
        DataError: A file is damaged.
    """
    files = list(files)
    kinds = column_kinds([file for file in files if file.suffix == ".csv"])
    for file in files:
        try:
            if file.suffix == ".csv":
                yield from csv_rows(file, kinds, types)
            else:
                yield from _all_but_unreadable(_lines(file) if file.suffix == ".jsonl" else _parquet(file))
        except (OSError, ValueError, TypeError) as error:  # what pyarrow and json raise is a ValueError too
            raise DataError(f"{file} cannot be read: {type(error).__name__}: {error}") from error


def _all_but_unreadable(rows: Iterator[Row | str]) -> Iterator[Row]:
    """The rows, with unreadable rows for problems. Raises `DataError` if there are problems alone."""
    number, problems = 0, 0
    first = ""
    for number, row in enumerate(rows, 1):  # noqa: B007 - the last number is the count
        problems += isinstance(row, str)
        first = first or (row if isinstance(row, str) else "")
        yield unreadable(row) if isinstance(row, str) else row
    if problems and problems == number:
        raise DataError(first)


def _lines(file: Path) -> Iterator[Row | str]:
    with file.open(encoding="utf-8-sig", errors="surrogateescape") as lines:
        for number in count(1):
            line = lines.readline(_LARGEST_ROW + 1)
            if not line:
                return
            if len(line) > _LARGEST_ROW:
                while len(lines.readline(_BUFFER_BYTES)) == _BUFFER_BYTES:
                    pass
                yield f"{file} cannot be read: line {number}: {_too_large('characters')}"
                continue
            if not line.strip():
                continue
            try:
                row = _object(line)
            except (ValueError, TypeError, RecursionError) as error:
                problem = f"line {number}: {type(error).__name__}: {error}"
                yield f"{file} cannot be read: {problem}; expected a JSON object on each line"
            else:
                yield row


def _too_large(unit: str) -> str:
    return f"found more than {_LARGEST_ROW:,} {unit}; expected smaller rows: remove it, or shorten what it holds"


def _object(line: str) -> Row:
    value = json.loads(line, object_pairs_hook=_once)
    if not isinstance(value, dict):
        raise TypeError(f"found {_shown(value)}")
    return value


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"found the key {_repeated(name for name, _ in pairs)!r} more than once")
    return found


def _repeated(names: Iterable[str]) -> str | None:
    return next((name for name, count in Counter(names).items() if count > 1), None)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _parquet(file: Path) -> Iterator[Row | str]:
    with pyarrow.parquet.ParquetFile(file, buffer_size=_BUFFER_BYTES) as opened:
        if twice := _twice(opened.schema_arrow):
            raise DataError(f"{file} cannot be read: its rows have the column {twice!r} more than once; expected each name once")
        number = 0
        first = next(opened.iter_batches(batch_size=1, use_threads=False), None)
        size = _BATCH_ROWS if first is None else max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(1, first.nbytes)))
        for batch in opened.iter_batches(batch_size=size, use_threads=False):
            try:
                if batch.nbytes > _LARGEST_ROW:
                    raise OverflowError
                yield from batch.to_pylist()
            except (OverflowError, ValueError):  # a text that is no UTF-8, a value that Python lacks, a row too large: these rows alone
                for index in range(batch.num_rows):
                    yield _row(file, number + index, batch.slice(index, 1))
            number += batch.num_rows


def _twice(fields: Iterable[pa.Field]) -> str | None:
    """The name of a field that is there twice, in the rows or in a struct in them."""
    fields = list(fields)
    inner = (_twice(_inner(field.type)) for field in fields)
    return _repeated(field.name for field in fields) or next(filter(None, inner), None)


def _inner(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(index) for index in range(kind.num_fields)]


def _row(file: Path, number: int, batch: pa.RecordBatch) -> Row | str:
    """A row of which a value cannot be read as it is, or its problem."""
    if batch.nbytes > _LARGEST_ROW:
        return f"{file} cannot be read: row {number}: {_too_large('bytes')}"
    kinds = {field.name: field.type for field in batch.schema}
    row: Row = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            row[name] = column.to_pylist()[0]
        except UnicodeDecodeError:
            row[name] = _texts(column.cast(_as_bytes(kinds[name])).to_pylist()[0], kinds[name])
        except (OverflowError, ValueError) as error:
            return (
                f"{file} cannot be read: row {number}: the column {name!r} holds a value of type {kinds[name]} that Python lacks ({error})"
            )
    return row


def _as_bytes(kind: pa.DataType) -> pa.DataType:
    """A type with bytes for texts."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.large_binary() if pa.types.is_large_string(kind) else pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        make = pa.large_list if pa.types.is_large_list(kind) else pa.list_
        return make(_as_bytes(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _as_bytes(field.type)) for field in kind])
    return kind


def _texts(value: Any, kind: pa.DataType) -> Any:
    """A value with texts for the bytes that stand for them."""
    if value is None:
        return None
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return value.decode("utf-8", "surrogateescape")
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_texts(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind):
        return {field.name: _texts(value[field.name], field.type) for field in kind}
    return value
