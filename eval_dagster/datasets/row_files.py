"""A dataset as files of its splits, in Parquet, JSON Lines or CSV: a mirror of the Hub, or a task's own folder.

Rows are read one after the other, and a mistake in one row does not affect other rows. A cell of a CSV file is the
text that is written, and a column has a type only if that changes no text.
"""

import csv
import json
import math
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.parquet

from eval_dagster.datasets.origin import Stored
from eval_dagster.errors import DataError, DatasetNotFoundError
from eval_dagster.records import DatasetSource, Row
from eval_dagster.tasks.base import subject_name
from eval_dagster.tasks.samples import WrittenRow, unreadable
from eval_dagster.texts.figures import did_you_mean
from eval_dagster.versions.hashes import file_stamp

_LONGEST_CELL = 2**20
"""Most characters of a cell. A quote that is never closed would otherwise make one cell of the rest of the file."""
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,3899}")
"""A whole number that a row can hold, as Python writes it."""
_FLOAT = re.compile(r"-?[0-9]+(\.[0-9]+)?(e[+-][0-9]+)?")
_SPLIT_FILE = re.compile(r"(?P<split>.+?)(-\d+(-of-\d+.*)?)?\.(parquet|jsonl|csv)")
DEFAULT_CONFIG = "default"
_MOST_FILES = 8
"""Most names of files in a message."""
_BOOLEANS = {"True": True, "False": False}
_BATCH_ROWS = 64
"""Rows of a Parquet file that are decoded at once. A file of some bytes can hold thousands of rows of megabytes each."""
_BATCH_BYTES = 16 * 2**20
"""Bytes of the rows of a Parquet file that are decoded at once, if all are as large as the first."""
_BUFFER_BYTES = 2**20
_LARGEST_ROW = 256 * 2**20
"""Most bytes of a row, or characters of a line. A larger one is unreadable: each step of an evaluation holds several copies of it."""

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
            row = WrittenRow()
            for name, text in cells.items():
                if name in types:
                    row[name] = _READ[types[name]](name, text)
                elif kinds[name] == "text":
                    row[name] = text
                else:
                    row[name] = exact(text) if text else None
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
                continue
            number, problems = 0, 0
            first = ""
            for number, row in enumerate(_lines(file) if file.suffix == ".jsonl" else _parquet(file), 1):  # noqa: B007 - it is the count
                problems += isinstance(row, str)
                first = first or (row if isinstance(row, str) else "")
                yield unreadable(row) if isinstance(row, str) else row
            if problems and problems == number:
                raise DataError(first)
        except (OSError, ValueError, TypeError) as error:  # what pyarrow and json raise is a ValueError too
            raise DataError(f"{file} cannot be read: {type(error).__name__}: {error}") from error


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
                row = json.loads(line, object_pairs_hook=_once)
                if not isinstance(row, dict):
                    text = json.dumps(row)
                    raise TypeError(f"found {text if len(text) <= 60 else f'{text[:60]}...'}")
            except (ValueError, TypeError, RecursionError) as error:
                problem = f"line {number}: {type(error).__name__}: {error}"
                yield f"{file} cannot be read: {problem}; expected a JSON object on each line"
            else:
                yield row


def _too_large(unit: str) -> str:
    return f"found more than {_LARGEST_ROW:,} {unit}; expected smaller rows: remove it, or shorten what it holds"


def _once(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"found the key {_repeated(name for name, _ in pairs)!r} more than once")
    return found


def _repeated(names: Iterable[str]) -> str | None:
    return next((name for name, count in Counter(names).items() if count > 1), None)


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
    inner = (_twice(field.type.field(index) for index in range(field.type.num_fields)) for field in fields)
    return _repeated(field.name for field in fields) or next(filter(None, inner), None)


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


@dataclass(frozen=True)
class SplitFolder:
    """A folder `<config>/<split>-*.parquet`; one without subfolders is the config `default`. JSON Lines and CSV are read too."""

    path: str
    """The task's name of the dataset."""
    folder: Path
    subject_count: int
    """Number of the task's subjects. For a single subject, the config `default` may be used."""
    remedy: str
    """Advice for the error message if the folder does not exist."""
    types: Types = field(default_factory=dict)
    """Declared types of columns of CSV files."""

    def check(self, subjects: Sequence[Any], splits: Sequence[str]) -> None:
        """Raise `DatasetNotFoundError` if a file is missing."""
        for subject in subjects:
            for split in splits:
                self.files(subject, split)

    def read(self, subject: Any, splits: Sequence[str]) -> dict[str, list[Row]]:
        """Read the rows of one subject. Raises `DatasetNotFoundError` if a file is missing, and `DataError` if one is damaged."""
        return {split: list(self.rows(subject, split)) for split in splits}

    def rows(self, subject: Any, split: str) -> Iterator[Row]:
        """Read the rows of a split one after the other. Raises as `read` does."""
        return rows_of(self.files(subject, split), self.types)

    def stamp(self, subjects: Sequence[Any], splits: Sequence[str]) -> list[Any]:
        """Return name, size and time of change of every file that would be read, and the declared types."""
        declared = [{name: kind.__name__ for name, kind in self.types.items()}] if self.types else []
        return declared + [
            [str(self.folder), subject_name(subject), split, [file_stamp(file) for file in self.files(subject, split)]]
            for subject in subjects
            for split in splits
        ]

    def source(self) -> DatasetSource:
        """Return the dataset's name; files in a folder have no commit."""
        return DatasetSource(path=self.path, revision=None)

    def size(self, subject: Any, splits: Sequence[str]) -> int:
        """Return the bytes of the files of some splits."""
        return sum(file.stat().st_size for split in splits for file in self.files(subject, split))

    def save(self, subject: Any, split: str, folder: Path) -> None:
        """Copy the files of a split into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".") as unfinished:
            copies = [Path(shutil.copy(file, unfinished)) for file in self.files(subject, split)]
            for copy in copies:
                copy.replace(folder / copy.name)

    def files(self, subject: Any, split: str) -> list[Path]:
        """Return the files of a split. Raises `DatasetNotFoundError` if there are none."""
        name = subject_name(subject)
        if not self.folder.is_dir():
            raise DatasetNotFoundError(f"dataset {self.path} is not there: looked for the folder {self.folder}; {self.remedy}")
        configs = {each.name: each for each in sorted(self.folder.iterdir()) if each.is_dir() and _split_files(each)}
        if not configs and _split_files(self.folder):
            configs = {DEFAULT_CONFIG: self.folder}
        if name in configs:
            folder = configs[name]
        elif self.subject_count == 1 and len(configs) == 1 and DEFAULT_CONFIG in (name, *configs):
            folder = next(iter(configs.values()))
        elif not configs and name == DEFAULT_CONFIG:
            raise DatasetNotFoundError(
                f"dataset {self.path} has no rows: looked for files <split>.parquet, .jsonl and .csv (test.csv say) in {self.folder}, "
                f"which holds {_held(self.folder, {})}"
            )
        else:
            raise DatasetNotFoundError(
                f"dataset {self.path} lacks the config {name!r}: looked for {self.folder / name}{did_you_mean(name, configs)}; "
                f"the dataset has the configs: {', '.join(configs) or 'none'}. SUBJECTS names the configs of a dataset"
            )
        by_split = _split_files(folder)
        if split not in by_split:
            raise DatasetNotFoundError(
                f"dataset {self.path} lacks the split {split!r}: looked for {folder / split}.parquet, .jsonl and .csv, and for several "
                f"files {split}-*.parquet{did_you_mean(split, by_split)}; the folder holds {_held(folder, by_split)}"
            )
        return by_split[split]


def split_names(folder: Path) -> list[str]:
    """The splits whose files are in a folder; none without a folder."""
    return list(_split_files(folder)) if folder.is_dir() else []


def _held(folder: Path, by_split: dict[str, list[Path]]) -> str:
    """The splits of a folder; if it has none, its files."""
    if by_split:
        return f"the splits: {', '.join(sorted(by_split))}"
    files = sorted(file.name for file in folder.iterdir() if file.is_file())
    return f"no split, but the files: {', '.join(files[:_MOST_FILES])}{', ...' if len(files) > _MOST_FILES else ''}" if files else "no file"


def _split_files(folder: Path) -> dict[str, list[Path]]:
    by_split: dict[str, list[Path]] = {}
    for file in sorted(folder.iterdir()):
        if found := _SPLIT_FILE.fullmatch(file.name):
            by_split.setdefault(found["split"], []).append(file)
    return by_split


@dataclass(frozen=True, kw_only=True)
class MirrorPart:
    """Splits of one configuration of a dataset, and their source."""

    path: str
    """Hub id."""
    config: str
    splits: tuple[str, ...]
    origin: Stored

    def folder(self, mirror: Path) -> Path:
        """Its folder in a mirror."""
        return mirror / self.path / self.config

    def missing(self, mirror: Path) -> list[str]:
        """The splits that a mirror lacks."""
        there = split_names(self.folder(mirror))
        return [split for split in self.splits if split not in there]

    def size(self, mirror: Path) -> int | None:
        """Bytes of what a mirror lacks; None if the Hub does not tell."""
        missing = self.missing(mirror)
        return self.origin.size(self.config, missing) if missing else 0

    def write(self, mirror: Path) -> None:
        """Write what a mirror lacks, each split whole or not at all.

        Raises:
            DatasetNotFoundError: The dataset lacks a split.
            DataError: The rows cannot be read.
        """
        for split in self.missing(mirror):
            self.origin.save(self.config, split, self.folder(mirror))


def merged(parts: Sequence[MirrorPart]) -> list[MirrorPart]:
    """Each configuration once, with all of its splits."""
    found: dict[tuple[str, str], MirrorPart] = {}
    for part in parts:
        known = found.get((part.path, part.config))
        splits = tuple(dict.fromkeys([*(known.splits if known else ()), *part.splits]))
        found[part.path, part.config] = MirrorPart(path=part.path, config=part.config, splits=splits, origin=part.origin)
    return list(found.values())
