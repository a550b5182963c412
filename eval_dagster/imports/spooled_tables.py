"""Parts of Arrow tables on the disk, until their versions are known and they can be written."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import pyarrow as pa
import pyarrow.ipc

from eval_dagster.errors import LakeError
from eval_dagster.lake.format.parquet_files import TableParts
from eval_dagster.lake.tables.rows import with_constants
from eval_dagster.lake.tables.schemas import TABLES

_COMPRESSED = pyarrow.ipc.IpcWriteOptions(compression="lz4")
_GROUP_BYTES = 16 * 2**20
"""About the bytes of a part that is read. Each becomes a row group, and small ones take longer to write and to read."""


def packed(table: pa.Table) -> bytes:
    """A table as bytes."""
    sink = io.BytesIO()
    with pyarrow.ipc.new_stream(sink, table.schema, options=_COMPRESSED) as stream:
        stream.write_table(table)
    return sink.getvalue()


def unpacked(content: bytes) -> pa.Table:
    """The table of `packed`."""
    with pyarrow.ipc.open_stream(content) as stream:
        return stream.read_all()


class SpooledTable:
    """A table of the lake in a file without a name, so that a killed process leaves nothing."""

    def __init__(self, table: str, folder: Path) -> None:
        """Begin with no row, in a folder on a disk with space for the table. Raises `LakeError` if it cannot be written to."""
        self._schema, self._folder = TABLES[table], folder
        with self._writing():
            folder.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = TemporaryFile(dir=folder)  # noqa: SIM115
        self._sizes: list[int] = []

    def add(self, content: bytes) -> None:
        """Add rows, as `packed` gives them. Raises `LakeError` if they cannot be written."""
        with self._writing():
            self._file.write(content)
        self._sizes.append(len(content))

    def rows(self, **constants: str) -> TableParts:
        """All rows. `constants` are the values of columns that are the same in all rows, and known at the end alone."""

        def read() -> Iterator[pa.Table]:
            self._file.flush()
            start, held = 0, [self._schema.empty_table()]
            for size in self._sizes:
                held.append(unpacked(os.pread(self._file.fileno(), size, start)))
                start += size
                if sum(each.nbytes for each in held) >= _GROUP_BYTES:
                    yield with_constants(pa.concat_tables(held), **constants)
                    held = []
            if held:
                yield with_constants(pa.concat_tables(held), **constants)

        return TableParts(schema=self._schema, read=read)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LakeError(f"{self._folder} cannot be written to: {error}") from error

    def close(self) -> None:
        """Delete the rows."""
        self._file.close()
