"""The rows of a stage as they come: a table of any size in bounded memory, and its version."""

import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import pyarrow as pa
import pyarrow.ipc

from eval_dagster.lake.format.parquet_files import TableParts
from eval_dagster.lake.tables.rows import to_table, with_constants
from eval_dagster.lake.tables.schemas import TABLES
from eval_dagster.versions.hashes import ListHash

_MOST_ROWS = 10_000
"""Rows that are held as dictionaries."""
_FIRST_ROWS = 200
"""The same, until the size of a row is known."""
_BATCH_BYTES = 4 * 2**20
"""Bytes of a batch in Arrow's form. Its rows take about five times as much as dictionaries."""
_HELD_BYTES = 32 * 2**20
"""Bytes that are held in Arrow's form. What is more goes to a file."""
_SETTLED_BYTES = 2**20
"""The same, of a table that waits for others."""
_COMPRESSED = pyarrow.ipc.IpcWriteOptions(compression="lz4")


class StageTable:
    """The rows of a table of the lake as they come, and their version.

    A large table is kept in a file of the home without a name, so that a killed process leaves nothing.
    """

    def __init__(self, table: str, folder: Path, content: Sequence[str] = ()) -> None:
        """Begin with no row.

        Args:
            table: The table of the lake.
            folder: A folder on a disk with space for the table.
            content: The columns that the version covers.
        """
        self._schema = TABLES[table]
        self._folder = folder
        self._content = content
        self._version = ListHash()
        self._rows: list[Mapping[str, object]] = []
        self._most_rows = _FIRST_ROWS
        self._batches: list[pa.Table] = []
        self._held = 0
        """Bytes of the batches."""
        self._file: IO[bytes] | None = None
        """The parts before the batches, each as a stream of Arrow."""
        self._written = 0
        """Parts in the file."""

    def add(self, row: Mapping[str, object]) -> None:
        """Add the next row."""
        if self._content:
            self._version.add([row[name] for name in self._content])
        self._rows.append(row)
        if len(self._rows) >= self._most_rows:
            self._to_batch()

    def version(self) -> str:
        """The version of all rows so far: the hash of the list of their contents."""
        return self._version.value()

    def rows(self, **constants: str) -> TableParts:
        """All rows so far. `constants` are the values of columns that are the same in all rows, and known at the end alone."""
        self._to_batch()

        def read() -> Iterator[pa.Table]:
            for part in self.parts():
                yield with_constants(part, **constants)

        return TableParts(schema=self._schema, read=read)

    def settle(self) -> None:
        """Take little memory from now on, since no more rows are expected for a while."""
        self._to_batch()
        if self._held > _SETTLED_BYTES:
            self._to_file()

    def parts(self) -> Iterator[pa.Table]:
        """All rows so far, in at least one part. Each fits in the memory."""
        self._to_batch()
        if self._file is not None:
            self._file.seek(0)
            for _ in range(self._written):
                with pyarrow.ipc.open_stream(self._file) as stream:
                    yield stream.read_all()
        if self._batches or not self._written:
            yield pa.concat_tables([self._schema.empty_table(), *self._batches])

    def _to_batch(self) -> None:
        if not self._rows:
            return
        batch = to_table(self._rows, self._schema)
        self._rows = []
        self._batches.append(batch)
        self._held += batch.nbytes
        self._most_rows = min(max(_BATCH_BYTES * len(batch) // max(batch.nbytes, 1), 1), _MOST_ROWS)
        if self._held > _HELD_BYTES:
            self._to_file()

    def _to_file(self) -> None:
        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file = TemporaryFile(dir=self._folder)  # noqa: SIM115
            weakref.finalize(self, self._file.close)  # it ends with the table
        self._file.seek(0, os.SEEK_END)
        with pyarrow.ipc.new_stream(self._file, self._schema, options=_COMPRESSED) as stream:
            for batch in self._batches:
                stream.write_table(batch)
        self._batches, self._held, self._written = [], 0, self._written + 1
