"""SQLite files of MLflow and Dagster: built beside the old file and moved into place, examined, and renamed if damaged."""

import hashlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from eval_dagster.errors import StoreError
from eval_dagster.stores.whole_files import replaced, user_cache

_COMPANIONS = ("-wal", "-shm", "-journal")
"""Suffixes of the files that SQLite keeps beside a database."""
_AT_WORK_S = 5.0
"""Seconds. A process without a lock may still be writing an unfinished file that was changed within this time."""
_LOCKED_S = 5.0
_WORTH_BYTES = 2**20
"""Less free space in a database is not worth writing it anew: the next rows take it."""

Examination = Callable[[sqlite3.Connection], str | None]
"""Returns the fault of a readable database, such as missing tables; None for a sound one."""


def connect(path: Path, mode: str = "rw") -> sqlite3.Connection:
    """Open an existing database, whatever characters its path has."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, timeout=_LOCKED_S)


def damage_of(path: Path, examine: Examination, *, thorough: bool = False) -> str | None:
    """The fault of a file. None for a sound or missing file, or one that another process has locked.

    Args:
        path: The database.
        examine: Distinguishes an unfinished database from a whole one.
        thorough: Whether to read all pages, instead of only the header and the schema.
    """
    if path.is_dir():
        return "it is a folder"
    try:
        if path.stat().st_size == 0:
            return "it is empty"
        with closing(connect(path)) as database:
            if thorough and (found := str(database.execute("pragma quick_check(1)").fetchone()[0])) != "ok":
                return found.splitlines()[-1]
            return examine(database)
    except (FileNotFoundError, sqlite3.OperationalError):  # for example, another process has locked the database
        return None
    except sqlite3.DatabaseError as error:
        return str(error)


def settled_damage_of(path: Path, examine: Examination) -> str | None:
    """The fault of a file, after the last write to it has ended."""
    while (damage := damage_of(path, examine)) and path.is_file() and 0 <= time.time() - path.stat().st_mtime < _AT_WORK_S:
        time.sleep(0.2)
    return damage


def table_names(database: sqlite3.Connection) -> set[str]:
    """The tables of a database."""
    return {name for (name,) in database.execute("select name from sqlite_master where type = 'table'")}


def has_rows(database: sqlite3.Connection, table: str) -> bool:
    """Whether a table exists and is not empty."""
    return table in table_names(database) and database.execute(f'select 1 from "{table}" limit 1').fetchone() is not None  # noqa: S608 - a name of this package


def require_writable(path: Path, what: str) -> None:
    """Raise `StoreError` if a database, or the folder for a new one, is not writable; `what` names the database."""
    folder = path.parent
    if not path.exists():
        while not folder.exists():
            folder = folder.parent
        if not os.access(folder, os.W_OK | os.X_OK):
            raise StoreError(f"{what} cannot be made: {folder} may not be written to; give this user the right to write there")
        return
    try:
        with closing(connect(path)) as database:
            version = database.execute("pragma user_version").fetchone()[0]
            database.execute("begin")
            database.execute(f"pragma user_version = {version}")
            database.rollback()
    except sqlite3.OperationalError as error:
        if "locked" not in str(error):
            raise StoreError(
                f"{what}, {path}, cannot be written to ({error}); make it and its folder writable, or move it away: "
                "the next run makes a new one"
            ) from error


def set_aside(path: Path) -> Path:
    """Rename a damaged file or folder, together with SQLite's companion files. Returns the new path."""
    kept = path.with_name(f"{path.name}.damaged-{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}")
    # The companions first, because SQLite would use them for a new database of the same name.
    for ending in _COMPANIONS:
        with suppress(FileNotFoundError):
            path.with_name(path.name + ending).rename(f"{kept}{ending}")
    path.rename(kept)
    return kept


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """A path in the same folder for a new database, to be moved by `move_into_place`. A file left there is removed.

    The caller holds a lock, so only one process builds at a time.
    """
    building = path.with_name(f".{path.name}.building")
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove(building)
    try:
        yield building
    finally:
        _remove(building)


def make_empty(path: Path, name: str, make: Callable[[Path], None]) -> None:
    """Create a database that is the same in each new home: a copy from the user's cache, or by `make`, whose result the cache then keeps.

    Creating the tables takes seconds, a copy takes none. A kept file has the hash of its content in its name, so a damaged one is not used.

    Args:
        path: The new database, which does not exist yet.
        name: What the content depends on, such as a package and its release.
        make: Creates the database at a path.
    """
    with suppress(OSError, RuntimeError):  # a cache that cannot be read, a user without a home
        for kept in (user_cache() / "stores").glob(f"{name}-*.db"):
            content = kept.read_bytes()
            if kept.stem == f"{name}-{hashlib.sha256(content).hexdigest()[:32]}":
                path.write_bytes(content)
                return
    _remove(path)  # half of a copy, if the disk is full
    make(path)
    with suppress(OSError, RuntimeError, sqlite3.Error):
        _checkpoint(path)
        content = path.read_bytes()
        folder = user_cache() / "stores"
        folder.mkdir(parents=True, exist_ok=True)
        with replaced(folder / f"{name}-{hashlib.sha256(content).hexdigest()[:32]}.db") as temporary:
            temporary.write_bytes(content)


def move_into_place(building: Path, path: Path) -> None:
    """Move a database that no process has open to `path`, replacing the file there."""
    _checkpoint(building)
    with building.open("rb") as file:
        os.fsync(file.fileno())
    for ending in _COMPANIONS:
        path.with_name(path.name + ending).unlink(missing_ok=True)
    building.replace(path)


def shrink(path: Path) -> str | None:
    """Give a database's free pages back to the disk, if there are many. Returns the reason if that fails: nothing is lost by it."""
    try:
        with closing(connect(path)) as database:
            free, size = (int(database.execute(f"pragma {name}").fetchone()[0]) for name in ("freelist_count", "page_size"))
            if free * size >= _WORTH_BYTES:
                database.execute("vacuum")
                database.execute("pragma wal_checkpoint(truncate)")
    except sqlite3.OperationalError as error:
        return f"{path} stays as large as it is: {error}"
    return None


def _checkpoint(path: Path) -> None:
    """Write what SQLite's log beside a database holds into the database."""
    with closing(connect(path)) as database:
        database.execute("pragma wal_checkpoint(truncate)")


def _remove(path: Path) -> None:
    for ending in ("", *_COMPANIONS):
        path.with_name(path.name + ending).unlink(missing_ok=True)
