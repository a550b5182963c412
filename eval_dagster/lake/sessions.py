"""Sessions of DuckDB. A held session reads results and does nothing else. A free session may do everything."""

import re
from pathlib import Path

import duckdb
import psutil

from eval_dagster.errors import LakeError
from eval_dagster.lake.file_system import LakeFileSystem

_MEMORY_SHARE = 0.8
"""The share of free memory that a query may use. A query that needs more fails with an error."""
_DAMAGE = f"{LakeError.__module__}.{LakeError.__qualname__}: "
_HELD: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
    "allow_persistent_secrets": False,
    "python_enable_replacements": False,
    "temp_directory": "",
}


def free_session(home: Path, catalog: Path | None = None) -> duckdb.DuckDBPyConnection:
    """A session that may read and write whatever this process may. What does not fit into memory goes to `<home>/tmp`.

    Args:
        home: The folder of all state.
        catalog: What is opened for reading, if anything.

    Raises:
        duckdb.Error: The catalog cannot be opened.
    """
    session = duckdb.connect(config={"temp_directory": str(home / "tmp"), **_memory_limit()})
    return session if catalog is None else _attached(session, catalog)


def held_session(catalog: Path, lake: Path) -> duckdb.DuckDBPyConnection:
    """A session that reads a catalog and the lake's files, whatever it is asked.

    It writes no file, reads no other one, opens no connection, loads no extension, attaches no database and takes no variable of Python
    for a table; and none of that can be changed by a statement. DuckDB's own setting for this (`enable_external_access`) would admit
    `copy ... to` in a folder that may be read. So the file system of the machine is switched off once the catalog is open, and
    `LakeFileSystem` serves the lake.

    Raises:
        duckdb.Error: The catalog cannot be opened.
    """
    session = _attached(duckdb.connect(config=_HELD | _memory_limit()), catalog)
    session.register_filesystem(LakeFileSystem(lake))
    session.execute("set disabled_filesystems = 'LocalFileSystem'")
    session.execute("set lock_configuration = true")
    return session


def _attached(session: duckdb.DuckDBPyConnection, catalog: Path) -> duckdb.DuckDBPyConnection:
    path = str(catalog).replace("'", "''")
    try:
        session.execute(f"attach '{path}' as evals (read_only)")
        session.execute("use evals")
    except duckdb.Error:
        session.close()
        raise
    return session


def is_locked(error: duckdb.Error) -> bool:
    """Whether a catalog could not be opened because another process has it open for writing."""
    return "lock on file" in str(error)


def damage_in(error: duckdb.Error) -> str | None:
    """The message about a damaged file, where such a file caused an error of a session; else None."""
    message = plain(error)
    if message.startswith(_DAMAGE):
        return message.removeprefix(_DAMAGE)
    return message if "orrupt" in message or "checksum" in message else None


def plain(error: duckdb.Error) -> str:
    """The message of an error, without the frames of Python that DuckDB puts before it."""
    text = str(error)
    if "Traceback (most recent call last)" not in text:
        return text.splitlines()[0] if text else type(error).__name__
    found = re.findall(r"^(?:[a-zA-Z_]\w*\.)*[A-Z]\w*(?:Error|Exception): .*", text, re.MULTILINE)
    return found[-1] if found else text.splitlines()[-1]


def _memory_limit() -> dict[str, str]:
    return {"memory_limit": f"{max(256, int(psutil.virtual_memory().available * _MEMORY_SHARE / 2**20))}MiB"}
