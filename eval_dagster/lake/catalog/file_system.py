"""The file system of a held session of DuckDB. It serves only the files of a lake, read-only, and verifies each one first."""

import glob
import io
import os
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fsspec import AbstractFileSystem

from eval_dagster.lake.format.damage import damage_named, require_sound

ANY_SCHEME, HELD_SCHEME = "file://", "lake://"


def url_of(path: Path) -> str:
    """A path as a URL that any session opens. Relations name files by it: held sessions ask `LakeFileSystem`, others open the path."""
    return f"{ANY_SCHEME}{path}"


def held_url_of(path: Path) -> str:
    """The URL of a file in held sessions, as in the column `filename` of `read_parquet`.

    DuckDB 2.0.1 asks `LakeFileSystem` which files a `file://` URL stands for, but opens such URLs with its own local file system. Held
    sessions switch that off. So the answer has a scheme that no version of DuckDB opens by itself.
    """
    return f"{HELD_SCHEME}{path}"


class LakeFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Serves the Parquet files below a folder to DuckDB, and refuses everything else."""

    protocol = (HELD_SCHEME.removesuffix("://"), ANY_SCHEME.removesuffix("://"))
    cachable = False

    def __init__(self, root: Path) -> None:
        """Serve the files below `root`."""
        super().__init__()
        self._root = Path(os.path.normpath(root))
        self._places: dict[str, Path] = {}

    def open(self, path: str, mode: str = "rb", **_settings: Any) -> "FileReader":
        """Open a file.

        Raises:
            LakeError: It is damaged or missing.
            PermissionError: It is opened for writing, or is outside the folder.
        """
        if mode != "rb":
            raise PermissionError(f"{path} cannot be written: sessions on the results only read")
        place = self._place(path)
        require_sound(place)
        with damage_named(place):
            return FileReader(place)

    def glob(self, path: str, **_settings: Any) -> list[str]:
        """The files that match a pattern. If a file has the pattern as its name, only this file."""
        pattern = self._place(path)
        if pattern.exists() or not glob.has_magic(str(pattern)):
            return [held_url_of(pattern)]
        return [held_url_of(Path(found)) for found in sorted(glob.glob(str(pattern), recursive=True)) if found.endswith(".parquet")]  # noqa: PTH207

    def exists(self, path: str, **_settings: Any) -> bool:
        """Whether the file exists."""
        return self._place(path).is_file()

    def info(self, path: str, **_settings: Any) -> dict[str, Any]:
        """Name, size in bytes and kind of a file."""
        place = self._place(path)
        with damage_named(place):
            return {"name": held_url_of(place), "size": place.stat().st_size, "type": "file"}

    def modified(self, path: str) -> datetime:
        """The time at which a file was written; UTC."""
        place = self._place(path)
        with damage_named(place):
            return datetime.fromtimestamp(place.stat().st_mtime, UTC)

    def _place(self, path: str) -> Path:
        if path not in self._places:
            place = Path(os.path.normpath(path.removeprefix(HELD_SCHEME if path.startswith(HELD_SCHEME) else ANY_SCHEME)))
            if not place.is_relative_to(self._root) or place.suffix != ".parquet":
                raise PermissionError(
                    f"{path} cannot be read: sessions on the results read the Parquet files in {self._root}, and no others"
                )
            self._places[path] = place
        return self._places[path]


class FileReader(io.RawIOBase):
    """A file that several threads read at once. Each thread has its own position."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._position = threading.local()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position of this thread, in bytes."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self.tell(), os.SEEK_END: os.fstat(self._descriptor).st_size}[whence]
        self._position.value = base + offset
        return base + offset

    def tell(self) -> int:
        """The position of this thread, in bytes."""
        return getattr(self._position, "value", 0)

    def read(self, size: int = -1) -> bytes:
        """The next `size` bytes; fewer only at the end of the file."""
        wanted = os.fstat(self._descriptor).st_size if size < 0 else size
        blocks: list[bytes] = []
        while wanted > 0 and (block := os.pread(self._descriptor, wanted, self.tell())):
            blocks.append(block)
            wanted -= len(block)
            self.seek(len(block), os.SEEK_CUR)
        return b"".join(blocks)

    def close(self) -> None:
        """Close the file."""
        if not self.closed:
            os.close(self._descriptor)
        super().close()
