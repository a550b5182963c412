"""Small files of the lake that stay in memory, since a night opens each of them a dozen times, which takes longer than to read it."""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

T = TypeVar("T")

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


class _LastUsed(Generic[T]):
    """Things made of the files that were used last, up to a total size. Threads may share it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.forget()
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """Hold nothing. A process that was forked has no thread that would free a lock."""
        self._lock = threading.Lock()
        self._held: OrderedDict[Path, tuple[Sequence[Any], T, int]] = OrderedDict()
        self._size = 0

    def _of(self, path: Path, stamp: Sequence[Any], make: Callable[[], tuple[T, int]]) -> T:
        """The thing made of a file with a `file_stamp`: known, or made now by `make`, which gives it with its size."""
        with self._lock:
            known = self._held.get(path)
            if known is not None and known[0] == stamp:
                self._held.move_to_end(path)
                return known[1]
        made, size = make()
        with self._lock:
            if (replaced := self._held.pop(path, None)) is not None:
                self._size -= replaced[2]
            self._held[path] = stamp, made, size
            self._size += size
            while self._size > self._most and len(self._held) > 1:
                self._size -= self._held.popitem(last=False)[1][2]
        return made


class SmallFiles(_LastUsed[SmallFile | None]):
    """The small files that were used last."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        super().__init__(most_bytes)

    def find(self, path: Path, stamp: Sequence[Any]) -> SmallFile | None:
        """The file that has a `file_stamp`; None if it is not small.

        Raises:
            OSError: It cannot be read.
            pyarrow.ArrowException: It is damaged.
        """
        size: int = stamp[1]
        return None if size > _MOST_FILE_BYTES else self._of(path, stamp, lambda: _opened(path, size))


def _opened(path: Path, size: int) -> tuple[SmallFile | None, int]:
    """A file in memory, or None if it is not small, with the bytes of its content, its columns and its objects, about."""
    file = pq.ParquetFile(pa.BufferReader(path.read_bytes()))
    table_bytes = sum(file.metadata.row_group(number).total_byte_size for number in range(file.num_row_groups))
    if file.metadata.num_rows > _MOST_ROWS or table_bytes > _MOST_TABLE_BYTES:
        return None, _COLUMN_BYTES
    return SmallFile(file), size + table_bytes + _COLUMN_BYTES * file.metadata.num_columns


class FewRows(_LastUsed[Sequence[Any]]):
    """The rows of the files of few rows that were read last."""

    def __init__(self, most_rows: int = _MOST_HELD_ROWS) -> None:
        super().__init__(most_rows)

    def find(self, path: Path, stamp: Sequence[Any], read: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        """The rows of the file that has a `file_stamp`, which `read` reads if they are not known. They are not to be changed."""

        def counted() -> tuple[Sequence[Any], int]:
            rows = read()
            return rows, len(rows)

        return self._of(path, stamp, counted)


SMALL_FILES, FEW_ROWS = SmallFiles(), FewRows()
