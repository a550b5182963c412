"""Reads the rows of Parquet, JSON Lines or CSV files one after the other. A mistake in one row does not affect other rows.

A cell of a CSV file is the text that is written, and a column has a type only if that changes no text.
"""

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.parquet

from eval_dagster.errors import DataError
from eval_dagster.records import Row
from eval_dagster.tasks.samples import WrittenRow, unreadable

_LONGEST_CELL = 2**20
"""Most characters of a cell. A quote that is never closed would otherwise make one cell of the rest of the file."""
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,3899}")
"""A whole number that a row can hold, as Python writes it."""
_FLOAT = re.compile(r"-?[0-9]+(\.[0-9]+)?(e[+-][0-9]+)?")
_BOOLEANS = {"True": True, "False": False}

Kind: TypeAlias = Literal["empty", "number", "boolean", "text"]
Types: TypeAlias = Mapping[str, type]
"""From the name of a column to the type that the task declares for it: `str`, `int`, `float` or `bool`."""


def column_kinds(files: Sequence[Path]) -> dict[str, Kind]:
    """The kind of each column of a split, by all of its cells. Nothing is kept of the rows.

    A column has numbers if each cell is exactly what Python prints for a number, and booleans if each is `True` or `False`; cells
    without text are null there. Other columns are texts.

    Raises:
        DataError: A file is damaged.
    """
    kinds: dict[str, Kind] = {}
    for file in files:
        for _, cells in _records(file):
            if isinstance(cells, str):
                continue
            for name, text in cells.items():
                known = kinds.setdefault(name, "empty")
                if text and known != "text":
                    value = exact(text)
                    kind: Kind = "boolean" if isinstance(value, bool) else "text" if isinstance(value, str) else "number"
                    kinds[name] = kind if known in ("empty", kind) else "text"
    return kinds


def csv_rows(file: Path, kinds: Mapping[str, Kind], types: Types) -> Iterator[Row]:
    """The rows of a file, one after the other. A row with too many or too few cells becomes an unreadable row, unless all have.

    Args:
        file: The file.
        kinds: The kinds of the columns that have no declared type.
        types: The declared types.

    Raises:
        DataError: The file is damaged, or lacks a column with a declared type.
    """
    count, problems = 0, []
    for place, cells in _records(file, types):
        count += 1
        try:
            if isinstance(cells, str):
                raise ValueError(cells)
            row = WrittenRow({name: _value(name, text, kinds, types) for name, text in cells.items()})
        except ValueError as error:
            problems.append(f"{file} cannot be read: {place}: {error}")
            yield unreadable(problems[-1])
            continue
        row.written = {name: exact(text) for name, text in cells.items()}
        yield row
    if count and len(problems) == count:
        raise DataError(problems[0])


def exact(text: str) -> str | int | float | bool:
    """The number or boolean that Python writes as this text; the text itself if there is none."""
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        value = float(text)
        return value if math.isfinite(value) and repr(value) == text else text
    return text


def _value(name: str, text: str, kinds: Mapping[str, Kind], types: Types) -> Any:
    if name in types:
        return _READ[types[name]](name, text)
    kind = kinds[name]
    return text if kind == "text" else exact(text) if text else None


def _declared(kind: str, pattern: str, make: Callable[[str], Any]) -> Callable[[str, str], Any]:
    form = re.compile(pattern, re.ASCII | re.IGNORECASE)

    def read(name: str, text: str) -> Any:
        if not text.strip():
            return None
        if not form.fullmatch(text.strip()):
            shown = text if len(text) <= 60 else f"{text[:60]}..."
            raise ValueError(f"the column {name!r} holds {shown!r}; expected {kind}, which COLUMN_TYPES of the task declares")
        return make(text.strip())

    return read


_READ: Mapping[type, Callable[[str, str], Any]] = {
    str: lambda _, text: text,
    int: _declared("a whole number", r"[+-]?\d{1,3900}", int),
    float: _declared("a number", r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d{1,3})?", float),
    bool: _declared("true or false", "true|false|1|0", lambda text: text.lower() in ("true", "1")),
}


def _records(file: Path, types: Types | None = None) -> Iterator[tuple[str, dict[str, str] | str]]:
    """Place and cells of each row; the problem of a row whose number of cells is wrong."""
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_CELL))
    with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as lines:
        reader = csv.reader(lines, strict=True)
        names: list[str] | None = None
        row, begins = 0, 1
        try:
            for cells in reader:
                place = f"row {row} (line {begins})"
                begins = reader.line_num + 1
                if not cells:
                    continue
                if names is None:
                    names = cells
                    _check_names(file, names, types or {})
                    continue
                row += 1
                if len(cells) != len(names):
                    yield place, f"expected {len(names)} cells, as the first line has, got {len(cells)}"
                elif longest := next((name for name, text in zip(names, cells, strict=True) if len(text) > _LONGEST_CELL), None):
                    yield place, f"the column {longest!r} holds {_TOO_LONG}"
                else:
                    yield place, dict(zip(names, cells, strict=True))
        except csv.Error as error:
            where = "the first line" if names is None else f"row {row} (line {begins})"
            raise DataError(f"{file} cannot be read: {where}: {_explained(str(error))}") from error
        if names is None:
            raise DataError(f"{file} cannot be read: it is empty; expected a first line with the names of the columns")


_TOO_LONG = (
    f"a cell of more than {_LONGEST_CELL:,} characters; expected shorter ones, or a file of JSON Lines or Parquet, which has no such limit"
)


def _explained(error: str) -> str:
    if "unexpected end of data" in error:
        return 'a quote that opens a cell is never closed; expected a closing quote ("), and each quote within a cell twice ("")'
    if "expected after" in error:
        return (
            "text follows a quote that closes a cell, perhaps because an earlier quote is never closed; expected a comma or the end of the "
            'line, and each quote within a cell twice ("")'
        )
    if "field larger than" in error:
        return f"{_TOO_LONG}; perhaps a quote that opens the cell is never closed"
    return error


def _check_names(file: Path, names: Sequence[str], types: Types) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise DataError(f"{file} cannot be read: the first line has the column {repeated[0]!r} more than once; expected each name once")
    if missing := [name for name in types if name not in names]:
        raise DataError(
            f"{file} lacks the column {missing[0]!r}, which COLUMN_TYPES of the task declares; its columns are: {', '.join(names)}"
        )


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
