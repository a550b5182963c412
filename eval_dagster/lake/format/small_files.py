"""Small files of the lake that stay in memory, since a night opens each of them a dozen times, which takes longer than to read it."""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_MOST_FILE_BYTES, _MOST_TABLE_BYTES, _MOST_ROWS = 2**18, 2**21, 2_000
"""Most bytes and rows of a small file, and most bytes of its columns."""
_MOST_BYTES = 2**24
"""Most bytes that are held, about."""
_COLUMN_BYTES = 4_000
"""Bytes of Arrow's objects for a column, about."""
_MOST_HELD_ROWS = 10_000
"""Most rows that are held as dictionaries, about 3 KB each."""


class SmallFile:
    """A file in memory, with the columns that were read. Threads may share it."""

    def __init__(self, file: pq.ParquetFile) -> None:
        """`file` has its content in memory."""
        self._file = file
        self.schema: pa.Schema = file.schema_arrow
        self._columns: dict[str, pa.ChunkedArray] = {}
        self._lock = threading.Lock()

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Some columns or all, in the given order. Those that the file lacks are left out."""
        names = self.schema.names if columns is None else [name for name in columns if name in self.schema.names]
        with self._lock:
            new = [name for name in names if name not in self._columns]
            if new or not names:
                table = self._file.read(columns=new, use_threads=False)
                if not names:  # which has a number of rows, too
                    return table
                self._columns.update(zip(table.column_names, table.columns, strict=True))
            fields = pa.schema([self.schema.field(name) for name in names], metadata=self.schema.metadata)
            return pa.Table.from_arrays([self._columns[name] for name in names], schema=fields)


@dataclass(frozen=True, kw_only=True)
class _Held:
    stamp: Sequence[Any]
    file: SmallFile | None
    """Null for one that is not small."""
    n_bytes: int
    """Bytes of its content, its columns and its objects, about."""


class SmallFiles:
    """The small files that were used last."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._files: OrderedDict[Path, _Held] = OrderedDict()
        self._n_bytes = 0
        self._lock = threading.Lock()

    def find(self, path: Path, stamp: Sequence[Any]) -> SmallFile | None:
        """The file that has a `file_stamp`; None if it is not small.

        Raises:
            OSError: It cannot be read.
            pyarrow.ArrowException: It is damaged.
        """
        size: int = stamp[1]
        if size > _MOST_FILE_BYTES:
            return None
        with self._lock:
            known = self._files.get(path)
            if known is not None and known.stamp == stamp:
                self._files.move_to_end(path)
                return known.file
        file = pq.ParquetFile(pa.BufferReader(path.read_bytes()))
        table_bytes = sum(file.metadata.row_group(number).total_byte_size for number in range(file.num_row_groups))
        is_small = file.metadata.num_rows <= _MOST_ROWS and table_bytes <= _MOST_TABLE_BYTES
        n_bytes = size + table_bytes + _COLUMN_BYTES * file.metadata.num_columns if is_small else _COLUMN_BYTES
        found = _Held(stamp=stamp, file=SmallFile(file) if is_small else None, n_bytes=n_bytes)
        with self._lock:
            if (replaced := self._files.pop(path, None)) is not None:
                self._n_bytes -= replaced.n_bytes
            self._files[path] = found
            self._n_bytes += found.n_bytes
            while self._n_bytes > self._most_bytes and len(self._files) > 1:
                self._n_bytes -= self._files.popitem(last=False)[1].n_bytes
        return found.file

    def forget(self) -> None:
        """Hold nothing. A process that was forked has no thread that would free a lock."""
        self._lock = threading.Lock()
        self._files, self._n_bytes = OrderedDict(), 0


class FewRows:
    """The rows of the files of few rows that were read last."""

    def __init__(self, most_rows: int = _MOST_HELD_ROWS) -> None:
        self._most_rows = most_rows
        self.forget()

    def find(self, path: Path, stamp: Sequence[Any], read: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        """The rows of the file that has a `file_stamp`, which `read` reads if they are not known. They are not to be changed."""
        with self._lock:
            known = self._files.get(path)
            if known is not None and known[0] == stamp:
                self._files.move_to_end(path)
                return known[1]
        rows = read()
        with self._lock:
            if (replaced := self._files.pop(path, None)) is not None:
                self._n_rows -= len(replaced[1])
            self._files[path] = stamp, rows
            self._n_rows += len(rows)
            while self._n_rows > self._most_rows and len(self._files) > 1:
                self._n_rows -= len(self._files.popitem(last=False)[1][1])
        return rows

    def forget(self) -> None:
        """Hold nothing. A process that was forked has no thread that would free a lock."""
        self._lock = threading.Lock()
        self._files: OrderedDict[Path, tuple[Sequence[Any], Sequence[Any]]] = OrderedDict()
        self._n_rows = 0


SMALL_FILES, FEW_ROWS = SmallFiles(), FewRows()
os.register_at_fork(after_in_child=SMALL_FILES.forget)
os.register_at_fork(after_in_child=FEW_ROWS.forget)
