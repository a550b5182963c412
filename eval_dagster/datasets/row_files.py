"""Reads the rows of a Parquet, JSON Lines or CSV file. A mistake in one row does not affect other rows."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from eval_dagster.errors import DataError
from eval_dagster.records import Row
from eval_dagster.tasks.samples import unreadable

_WHOLE = re.compile(r"\s*[+-]?\d+\s*")
_EXACT_BITS = 53
"""Bits of the largest whole numbers that a float represents exactly."""


def rows_of(file: Path) -> list[Row]:
    """Read a file.

    Bytes that are no UTF-8 become lone surrogates (`\\udcff`), as Python's error handler `surrogateescape` makes them. A line of JSON Lines
    that is no JSON object becomes an unreadable row, unless all are.

    Raises:
        DataError: The file is damaged.
    """
    try:
        if file.suffix == ".jsonl":
            return _lines(file)
        rows = _records(pyarrow.parquet.ParquetFile(file).read()) if file.suffix == ".parquet" else _cells(file)
    except (OSError, ValueError, TypeError) as error:  # what pyarrow and json raise is a ValueError too
        raise DataError(f"{file} cannot be read: {type(error).__name__}: {error}") from error
    return rows


def _lines(file: Path) -> list[Row]:
    rows: list[Row] = []
    problems: list[str] = []
    with file.open(encoding="utf-8-sig", errors="surrogateescape") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                rows.append(_object(line))
            except (ValueError, TypeError, RecursionError) as error:
                problems.append(f"line {number}: {type(error).__name__}: {error}")
                rows.append(unreadable(f"{file}: {problems[-1]}; expected a JSON object on each line"))
    if problems and len(problems) == len(rows):
        raise DataError(f"{file} cannot be read: {problems[0]}; expected a JSON object on each line")
    return rows


def _object(line: str) -> Row:
    value = json.loads(line)
    if not isinstance(value, dict):
        raise TypeError(f"found {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _cells(file: Path) -> list[Row]:
    parsing = pyarrow.csv.ParseOptions(newlines_in_values=True)
    table = pyarrow.csv.read_csv(file, parse_options=parsing)
    repeated = [name for name, count in Counter(table.column_names).items() if count > 1]
    if repeated:
        raise ValueError(f"the first line has the column {repeated[0]!r} more than once; expected each name once")
    columns = {name: table[name].to_pylist() for name in table.column_names}
    kinds = {name: table.schema.field(name).type for name in columns}
    floats = [name for name, kind in kinds.items() if pa.types.is_floating(kind)]
    if floats:
        as_text = pyarrow.csv.ConvertOptions(include_columns=floats, column_types=dict.fromkeys(floats, pa.string()))
        texts = pyarrow.csv.read_csv(file, parse_options=parsing, convert_options=as_text)
        columns |= {name: list(_exact(columns[name], texts[name].to_pylist())) for name in floats}
    columns |= {name: [_decoded(value) for value in columns[name]] for name, kind in kinds.items() if pa.types.is_binary(kind)}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _exact(values: Sequence[float | None], texts: Sequence[str]) -> Iterator[float | int | None]:
    """Numbers; whole numbers that a float cannot represent are read from their text."""
    for value, text in zip(values, texts, strict=True):
        is_cut = value is not None and _WHOLE.fullmatch(text) and int(text).bit_length() > _EXACT_BITS
        yield int(text) if is_cut else value


def _records(table: pa.Table) -> list[Row]:
    try:
        rows: list[Row] = table.to_pylist()
    except UnicodeDecodeError:
        schema = pa.schema([pa.field(field.name, _as_bytes(field.type)) for field in table.schema])
        kinds = {field.name: field.type for field in table.schema}
        rows = [{name: _texts(value, kinds[name]) for name, value in row.items()} for row in table.cast(schema).to_pylist()]
    return rows


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
        return _decoded(value)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_texts(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind):
        return {field.name: _texts(value[field.name], field.type) for field in kind}
    return value


def _decoded(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "surrogateescape")
