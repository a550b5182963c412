"""Reads CSV files. A cell is the text that is written, and a column has a type only if that changes no text."""

import csv
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

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
