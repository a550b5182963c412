"""Sessions of DuckDB. A held session can only read results. A free session may do everything.

A held session reads files through a file system of its own, which serves only the files of a lake and verifies each one first. Queries of
both end at once on Ctrl-C.
"""

import glob
import io
import os
import re
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import psutil
from fsspec import AbstractFileSystem

from eval_dagster.errors import LakeError, QueryError
from eval_dagster.lake.format.damage import damage_named, require_sound

ANY_SCHEME, HELD_SCHEME = "file://", "lake://"
_MEMORY_SHARE = 0.8
"""The share of free memory that a query may use. A query that needs more fails with an error."""
_LOCAL_FILES = "LocalFileSystem"
"""DuckDB's name for its own file system of this machine."""
_DAMAGE = re.compile(rf"(?:{re.escape(LakeError.__module__)}\.)?{LakeError.__qualname__}: ")
_HELD: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
    "allow_persistent_secrets": False,
    "python_enable_replacements": False,
    "temp_directory": "",
}
T = TypeVar("T")
_LOOK_S = 0.1
_END_S = 2.0
"""Seconds to wait for the end of an interrupted query."""


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


def free_session(home: Path, catalog: Path | None = None, **settings: str | int) -> duckdb.DuckDBPyConnection:
    """A session with all rights of this process. If a catalog is given, it is open for reading.

    Data that does not fit into memory is written to `<home>/tmp`. `settings` are DuckDB settings.

    Raises:
        duckdb.Error: The catalog cannot be opened.
    """
    session = duckdb.connect(config={"temp_directory": str(home / "tmp"), **_memory_limit(), **settings})
    with suppress(duckdb.Error):  # a notebook without widgets refuses it, and shows no progress bar
        session.execute("set enable_progress_bar = false")
    return session if catalog is None else _attached(session, catalog)


def held_session(catalog: Path, lake: Path) -> duckdb.DuckDBPyConnection:
    """A session that can only read a catalog and the lake's files.

    It cannot write files, read other files, open connections, load extensions, attach databases, or read Python variables as tables. No
    statement can change these settings. DuckDB's own setting for this (`enable_external_access`) would allow `copy ... to` in a readable
    folder. So the local file system is switched off after the catalog is opened, and `LakeFileSystem` serves the lake.

    Raises:
        QueryError: This version of DuckDB cannot restrict the session, or does not let it read the lake.
        duckdb.Error: The catalog cannot be opened.
    """
    session = _attached(duckdb.connect(config=_HELD | _memory_limit()), catalog)
    try:
        session.register_filesystem(LakeFileSystem(lake))
        session.execute(f"set disabled_filesystems = '{_LOCAL_FILES}'")
        session.execute("set lock_configuration = true")
        # Check that this version of DuckDB opens the files of the lake through `LakeFileSystem`, and no other file.
        opened = "select size from read_blob($path)"
        try:
            session.execute(opened, {"path": url_of(lake / "no such file.parquet")}).fetchall()
        except duckdb.Error as error:
            if damage_in(error) is None:  # other than the error of `LakeFileSystem` about a missing file
                raise _unfit("read the lake") from error
        for other in (str(catalog), f"file:{catalog}", url_of(catalog)):
            try:
                session.execute(opened, {"path": other}).fetchall()
            except duckdb.Error:
                continue
            raise _unfit("keep queries from other files")
        adapt_older_views(session)
    except BaseException:
        session.close()
        raise
    return session


def _unfit(purpose: str) -> QueryError:
    return QueryError(
        f"with DuckDB {duckdb.__version__}, which is installed, sessions cannot {purpose}; install a version that was tried: "
        "pip install duckdb==2.0.1"
    )


def adapt_older_views(session: duckdb.DuckDBPyConnection) -> None:
    """Replace views of a catalog from before format 6, in this connection only; a cursor of it is another connection.

    These views find the name of a file in its URL, with the scheme that held sessions used then. If a file that a view reads is damaged or
    deleted, the view stays as it is. A query of it fails, and names the file.

    Raises:
        duckdb.Error: A view cannot be replaced for another reason.
    """
    views = session.execute(
        "select sql from duckdb_views() where database_name = 'evals' and contains(sql, $scheme)", {"scheme": f"'{ANY_SCHEME}'"}
    ).fetchall()
    for (sql,) in views:
        adapted = sql.replace(f"'{ANY_SCHEME}'", f"'{HELD_SCHEME}'")
        try:
            session.execute(adapted.replace("CREATE VIEW", "CREATE TEMP VIEW", 1))
        except duckdb.Error as error:
            if damage_in(error) is None:
                raise


def _attached(session: duckdb.DuckDBPyConnection, catalog: Path) -> duckdb.DuckDBPyConnection:
    try:
        session.execute(f"attach '{quoted(catalog)}' as evals (read_only)")
        session.execute("use evals")
    except duckdb.Error:
        session.close()
        raise
    return session


def quoted(path: Path | str) -> str:
    """A path or URL, escaped for use between single quotes in SQL."""
    return str(path).replace("'", "''")


def quoted_list(paths: Iterable[Path | str]) -> str:
    """Paths or URLs as a list in SQL."""
    listed = ", ".join(f"'{quoted(path)}'" for path in paths)
    return f"[{listed}]"


def is_locked(error: duckdb.Error) -> bool:
    """Whether a catalog could not be opened because another process has it open for writing."""
    return "lock on file" in str(error)


def damage_in(error: duckdb.Error) -> str | None:
    """The message about the damaged file that caused an error. None if damage did not cause it."""
    message = plain(error)
    if found := _DAMAGE.match(message):
        return message[found.end() :]
    return message if "orrupt" in message or "checksum" in message else None


def plain(error: duckdb.Error) -> str:
    """The message of an error without the Python traceback that DuckDB puts before it."""
    text = str(error)
    if "Traceback (most recent call last)" not in text:
        return text.splitlines()[0] if text else type(error).__name__
    found = re.findall(r"^(?:[a-zA-Z_]\w*\.)*[A-Z]\w*(?:Error|Exception): .*", text, re.MULTILINE)
    return found[-1] if found else text.splitlines()[-1]


def _memory_limit() -> dict[str, str]:
    return {"memory_limit": f"{max(256, int(psutil.virtual_memory().available * _MEMORY_SHARE / 2**20))}MiB"}


class StuckQueryError(KeyboardInterrupt):
    """An interrupt after which the session is still busy. Closing the session would wait for the query."""


def interruptibly(session: duckdb.DuckDBPyConnection, call: Callable[[], T]) -> T:
    """Call a function that uses a session in a separate thread, and wait for it. `KeyboardInterrupt` cancels the query."""
    results: list[T] = []
    problems: list[BaseException] = []

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=work, name="query", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_LOOK_S)
    except KeyboardInterrupt:
        session.interrupt()
        thread.join(_END_S)
        if thread.is_alive():
            raise StuckQueryError from None
        raise
    if problems:
        raise problems[0]
    return results[0]
