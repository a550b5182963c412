"""The index of a lake: its folders and files as the last publication found them, and the contents of their footers.

It is derived from the files. It is one SQLite file below `lake/packs`, made again if it is missing or unreadable.
"""

import errno
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval_dagster.errors import LakeError
from eval_dagster.lake.files import Lake
from eval_dagster.lake.format.damage import PACKS
from eval_dagster.lake.format.parquet_files import FileInfo

NEWEST_ALONE = ("samples", "prompts", "responses", "sample_changes", "looks")
"""Tables whose relations show only the newest file of each partition."""
_VERSION = 1
_TABLES = """
create table folders (path text primary key, modified integer not null) without rowid;
create table files (
    path text primary key, tab text not null, folder text not null, size integer not null, modified integer not null,
    changed integer not null, is_foreign integer not null,
    is_newest integer not null default 0, damage text, columns text, info text, content text, pack text
) without rowid;
create index files_by_folder on files (folder);
create index files_by_table on files (tab, pack);
create index files_with_damage on files (path) where damage is not null;
create table packs (
    path text primary key, tab text not null, columns text not null, stamp text not null, size integer not null,
    ended real
) without rowid;
create table members (source text not null, pack text not null, primary key (pack, source)) without rowid;
create table state (name text primary key, value text) without rowid;
"""
_SHOWN = f"f.damage is null and (f.is_newest or f.tab not in {NEWEST_ALONE})"


class DamagedIndexError(LakeError):
    """The index was damaged and has been deleted."""


@dataclass(frozen=True, kw_only=True)
class Indexed:
    """A file of the lake in the index."""

    path: str
    """Relative to the lake's folder."""
    columns: str
    """Hash of the names and types of its columns."""


@dataclass(frozen=True, kw_only=True)
class Pack:
    """A file with the rows of many files of one table with the same columns."""

    path: str
    columns: str
    size: int
    members: int
    shown: int
    """Number of members that a relation shows; the others have been replaced or deleted."""


def index_path(lake: Lake) -> Path:
    """The path of the index."""
    return lake.root / PACKS / "index.sqlite"


@contextmanager
def open_index(lake: Lake) -> Iterator["Index"]:
    """The index of a lake in a transaction, which is committed at the end of the block.

    Raises:
        LakeError: It cannot be written.
    """
    path = index_path(lake)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with closing(_opened(path)) as connection:
            try:
                yield Index(connection)
                connection.execute("commit")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("rollback")
                raise
    except sqlite3.DatabaseError as error:
        if not isinstance(error, sqlite3.OperationalError):
            _delete(path)
            raise DamagedIndexError(
                f"the index {path} was damaged ({error}) and is deleted; try again: it is made from the lake"
            ) from error
        if error.sqlite_errorname == "SQLITE_FULL":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
        raise LakeError(f"the index {path} cannot be written ({error}); make room or delete it: it is made again from the lake") from error


def copied_index(lake: Lake) -> sqlite3.Connection:
    """A copy of the index in memory, empty if the index is missing or unreadable. Damaged pages are copied undetected."""
    path = index_path(lake)
    if path.exists():
        copy = sqlite3.connect(":memory:", isolation_level=None)
        with suppress(sqlite3.DatabaseError), closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=60)) as source:
            if source.execute("pragma user_version").fetchone() == (_VERSION,):
                source.backup(copy)
                return copy
        copy.close()
    return empty_index()


def empty_index() -> sqlite3.Connection:
    """An empty index in memory."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    _create(connection)
    return connection


def _create(connection: sqlite3.Connection) -> None:
    for statement in _TABLES.split(";"):
        connection.execute(statement)
    connection.execute(f"pragma user_version = {_VERSION}")


def _opened(path: Path) -> sqlite3.Connection:
    """Open the index; make it again if it is damaged or of another version."""
    for _ in range(2):
        connection = sqlite3.connect(path, timeout=60, isolation_level=None)
        try:
            connection.execute("begin immediate")
            (version,) = connection.execute("pragma user_version").fetchone()
            if version == _VERSION:
                return connection
            is_new = version == 0 and not connection.execute("select 1 from sqlite_master").fetchone()
            if is_new:
                _create(connection)
                return connection
        except sqlite3.OperationalError:
            connection.close()
            raise
        except sqlite3.DatabaseError:
            pass
        connection.close()
        _delete(path)
    raise LakeError(f"the index {path} cannot be made; check the disk that it is on")


def _delete(path: Path) -> None:
    for each in (path, path.with_name(f"{path.name}-journal")):
        each.unlink(missing_ok=True)


class Index:
    """Reads and writes the index. All paths are relative to the lake's folder."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def rows(self, query: str, *values: Any) -> list[Any]:
        """The rows of a query."""
        return self.connection.execute(query, values).fetchall()

    def column(self, query: str, *values: Any) -> list[Any]:
        """The first column of a query."""
        return [row[0] for row in self.connection.execute(query, values)]

    def write(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Execute a statement for each row of values."""
        self.connection.executemany(statement, rows)

    def __getitem__(self, name: str) -> Any:
        found = self.column("select value from state where name = ?", name)
        return json.loads(found[0]) if found else None

    def __setitem__(self, name: str, value: Any) -> None:
        text = json.dumps(value)
        if self.column("select value from state where name = ?", name) != [text]:
            self.write("insert or replace into state values (?, ?)", [(name, text)])

    def damages(self) -> dict[str, str]:
        """The message for each damaged or foreign file."""
        return dict(self.rows("select path, damage from files where damage is not null order by path"))

    def loose(self, table: str, *, newest: bool = False) -> list[Indexed]:
        """The files of a table that relations show and that are not in a pack. With `newest`, only files of the current state."""
        of_newest = "and f.is_newest" if newest else ""
        query = f"select path, columns from files f where tab = ? and pack is null and {_SHOWN} {of_newest} order by path"
        return [Indexed(path=path, columns=columns) for path, columns in self.rows(query, table)]

    def newest(self, table: str) -> list[tuple[str, str | None, str | None]]:
        """Path, columns and damage of the newest file of each partition."""
        return self.rows("select path, columns, damage from files where tab = ? and is_newest order by path", table)

    def sound(self, table: str) -> list[str]:
        """All undamaged files of a table."""
        return self.column("select path from files where tab = ? and damage is null", table)

    def of_paths(self, paths: Iterable[str]) -> list[Indexed]:
        """The files among `paths` that are sound."""
        query = "select path, columns from files where path = ? and damage is null"
        found = (self.rows(query, path) for path in paths)
        return [Indexed(path=path, columns=columns) for rows in found for path, columns in rows]

    def existing(self, paths: Iterable[str]) -> set[str]:
        """The paths that exist, damaged or not."""
        return {path for path in paths if self.column("select 1 from files where path = ?", path)}

    def packs(self, table: str) -> list[Pack]:
        """The packs of a table that relations read."""
        query = (
            f"select p.path, p.columns, p.size, count(*), sum(case when {_SHOWN} then 1 else 0 end) from packs p "
            "join members m on m.pack = p.path left join files f on f.path = m.source and f.pack = p.path "
            "where p.tab = ? and p.ended is null group by p.path order by p.path"
        )
        found = self.rows(query, table)
        return [Pack(path=path, columns=columns, size=size, members=n, shown=shown) for path, columns, size, n, shown in found]

    def hidden(self, table: str) -> list[str]:
        """Members of packs whose rows no relation shows: their files were replaced, deleted, damaged or written again."""
        query = (
            "select m.source from packs p join members m on m.pack = p.path left join files f on f.path = m.source and f.pack = p.path "
            f"where p.tab = ? and p.ended is null and not coalesce({_SHOWN}, 0) order by 1"
        )
        return self.column(query, table)

    def shown_in(self, pack: str) -> list[str]:
        """The files of a pack that relations show."""
        return self.column(f"select path from files f where pack = ? and {_SHOWN}", pack)


def info_of(text: str) -> FileInfo:
    """The information of a file, without counts and notes, which the index leaves out."""
    return FileInfo(**json.loads(text))
