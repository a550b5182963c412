"""Sessions of DuckDB. A held session can only read results. A free session may do everything."""

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import duckdb
import psutil

from eval_dagster.errors import LakeError, QueryError
from eval_dagster.lake.catalog.file_system import ANY_SCHEME, HELD_SCHEME, LakeFileSystem, url_of

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
        _require_walls(session, catalog, lake)
        adapt_older_views(session)
    except BaseException:
        session.close()
        raise
    return session


def _require_walls(session: duckdb.DuckDBPyConnection, catalog: Path, lake: Path) -> None:
    """Check that this version of DuckDB opens the files of the lake through `LakeFileSystem`, and no other file."""
    opened = "select size from read_blob($path)"
    try:
        session.execute(opened, {"path": url_of(lake / "no such file.parquet")}).fetchall()
    except duckdb.Error as error:
        # The error of `LakeFileSystem` about a missing file.
        if damage_in(error) is None:
            raise _unfit("read the lake") from error
    for other in (str(catalog), f"file:{catalog}", url_of(catalog)):
        try:
            session.execute(opened, {"path": other}).fetchall()
        except duckdb.Error:
            continue
        raise _unfit("keep queries from other files")


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
