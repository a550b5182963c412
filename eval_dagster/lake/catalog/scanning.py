"""Finds what changed in a lake since its index was written, and describes a lake by its index.

A folder's modification time changes with each file that is added, deleted or renamed in it. So only folders with another time are listed,
and only their new files are read. A new file is verified whole if relations show its rows; otherwise only its footer is verified.
"""

import json
import os
import sqlite3
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from eval_dagster.errors import LakeError
from eval_dagster.lake.catalog.index import Index, copied_index, empty_index, info_of
from eval_dagster.lake.catalog.sessions import free_session
from eval_dagster.lake.files import Lake, catalog_path
from eval_dagster.lake.format.damage import content_id, damage_named, foreign_file, require_sound, require_sound_footer
from eval_dagster.lake.format.parquet_files import INFO_KEY, FileInfo, is_listed, is_name, read_head, unlisted_folder
from eval_dagster.lake.tables.schemas import TABLES
from eval_dagster.versions.hashes import file_stamp, stable_hash

_COARSE_NS = 60 * 10**9
"""A folder that changed less than a minute ago is listed again next time, because folder times are coarse and clocks differ."""
_WORKERS = 4
_READ_WHEN_NEWEST = ("samples", "prompts", "responses", "scores")
"""Tables whose older files are verified when read. Other tables are read whole into the catalog."""
_KEPT_INFO = ("fingerprint", "version", "run_id", "materialized_at", "inputs")
_Examined = tuple[str, str | None, str | None, str | None, str | None]
"""Path, damage, hash of the columns, information, checksums."""


@dataclass(kw_only=True)
class Changes:
    """Changes by table. Paths are relative to the lake's folder."""

    tables: set[str] = field(default_factory=set)
    """Tables with any changed file, pack or message."""
    gone: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Files that were deleted, damaged or written again."""
    new: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Sound files that are new or were written again."""

    def add(self, later: "Changes") -> None:
        """Add later changes."""
        self.tables |= later.tables
        for mine, theirs in ((self.gone, later.gone), (self.new, later.new)):
            for table, paths in theirs.items():
                mine[table] |= paths


@dataclass(frozen=True, kw_only=True)
class _Found:
    """A file in a listed folder."""

    path: str
    folder: str
    size: int
    modified: int
    changed: int
    is_foreign: bool


def scan(lake: Lake, index: Index, *, without: Collection[str] = (), thorough: bool = False) -> Changes:
    """Bring the index up to date, and return the changes.

    The files in `without` count as deleted until the next scan. With `thorough`, all folders are listed.
    """
    changes = Changes()
    excluded = set(without)
    begin = time.time_ns()
    for folder, modified in _changed_folders(lake, index, {path.rpartition("/")[0] for path in excluded}, listing_all=thorough):
        if modified is None:
            index.write("delete from folders where path = ?", [(folder,)])
            _note_gone(folder.partition("/")[0], index.column("select path from files where folder = ?", folder), changes)
            index.write("delete from files where folder = ?", [(folder,)])
            continue
        is_settled = modified < begin - _COARSE_NS and not any(path.rpartition("/")[0] == folder for path in excluded)
        is_listed = _compare(lake, index, folder, excluded, changes)
        index.write("insert or replace into folders values (?, ?)", [(folder, modified if is_settled and is_listed else 0)])
    _read_unread(lake, index, changes)
    # Damaged files are verified again, because each may have been restored in place.
    known = dict(index.rows("select path, damage from files where damage is not null and not is_foreign"))
    found = _examined(lake, [(path, True) for path in known], again=True)
    _enter(index, [each for each in found if each[1] != known[each[0]]], changes)
    foreign = index.rows("select path, damage from files where is_foreign and path != folder")
    changed = [(foreign_file(lake.root / path), path) for path, damage in foreign if damage != foreign_file(lake.root / path)]
    index.write("update files set damage = ? where path = ?", changed)
    changes.tables.update(path.partition("/")[0] for _, path in changed)
    return changes


def _changed_folders(lake: Lake, index: Index, suspects: Collection[str], *, listing_all: bool) -> Iterable[tuple[str, int | None]]:
    """Folders whose times differ from the index, with their times; null for a missing folder. New folders are found on the way.

    An unreadable folder has the time 0. The folders in it count as missing.
    """
    known = dict(index.rows("select path, modified from folders"))
    root = str(lake.root)
    waiting = [*known, *(table for table in TABLES if table not in known)]
    unreadable: set[str] = set()
    while waiting:
        unlisted: list[str] = []
        for folder in waiting:
            try:
                modified = os.stat(f"{root}/{folder}").st_mtime_ns  # noqa: PTH116 - tens of thousands of folders
            except (FileNotFoundError, NotADirectoryError):
                if folder in known:
                    yield folder, None
                continue
            except OSError:
                unreadable.add(folder)
                yield folder, None if folder.rpartition("/")[0] in unreadable else 0
                continue
            if listing_all or modified != known.get(folder) or folder in suspects:
                yield folder, modified
                unlisted += [each for each in _folders_in(root, folder) if each not in known]
        waiting = unlisted


def _folders_in(root: str, folder: str) -> list[str]:
    """The folders in a folder, but no links to folders; and anything else in the place of a partition's folder."""
    found: list[str] = []
    with suppress(OSError), os.scandir(f"{root}/{folder}") as entries:
        for entry in entries:
            try:
                is_folder = entry.is_dir(follow_symlinks=False) or ("=" in entry.name and not entry.is_dir())
            except OSError:  # a loop of links
                is_folder = True
            if is_folder:
                found.append(f"{folder}/{entry.name}")
        return found
    return []


def _note_gone(table: str, paths: Sequence[str], changes: Changes) -> None:
    if paths:
        changes.tables.add(table)
        changes.gone[table].update(paths)


def _compare(lake: Lake, index: Index, folder: str, excluded: set[str], changes: Changes) -> bool:
    """Compare the files of a folder with the index. New and changed files are entered unread: without the hash of their columns.

    A folder that cannot be listed is entered in place of its files, as damaged. Returns whether it could be listed.
    """
    table = folder.partition("/")[0]
    query = "select path, size, modified, changed from files where folder = ?"
    known = {path: (size, modified, changed) for path, size, modified, changed in index.rows(query, folder)}
    fault: OSError | None = None
    try:
        found = {each.path: each for each in _listed(str(lake.root), folder) if each.path not in excluded}
    except OSError as error:
        fault, found = error, {folder: _Found(path=folder, folder=folder, size=0, modified=0, changed=0, is_foreign=True)}
    gone = [path for path in known if path not in found]
    new = [each for path, each in found.items() if path not in known]
    touched = [each for path, each in found.items() if path in known and known[path] != _stamp(each)]
    if not gone and not new and not touched:
        return fault is None
    _note_gone(table, gone, changes)
    changes.tables.add(table)
    index.write("delete from files where path = ?", [(path,) for path in gone])
    rows = [(each.path, table, folder, each.size, each.modified, each.changed, each.is_foreign) for each in new]
    index.write("insert into files (path, tab, folder, size, modified, changed, is_foreign) values (?, ?, ?, ?, ?, ?, ?)", rows)
    again = "update files set size = ?, modified = ?, changed = ?, columns = null, damage = null where path = ?"
    index.write(again, [(*_stamp(each), each.path) for each in touched])
    if fault is not None:
        index.write("update files set damage = ? where path = ?", [(unlisted_folder(lake.root / folder, fault), folder)])
    _mark_newest(index, folder)
    return fault is None


def _mark_newest(index: Index, folder: str) -> None:
    """Mark the newest file of a folder."""
    [newest] = index.column("select coalesce(max(path), '') from files where folder = ? and not is_foreign", folder)
    index.write("update files set is_newest = (path = ?) where folder = ? and is_newest != (path = ?)", [(newest, folder, newest)])


def _stamp(each: _Found) -> tuple[int, int, int]:
    return each.size, each.modified, each.changed


def _listed(root: str, folder: str) -> Iterable[_Found]:
    """The Parquet files of a folder, including other programs' files, which have other names. Raises OSError if it cannot be listed."""
    with suppress(FileNotFoundError), os.scandir(f"{root}/{folder}") as entries:
        for entry in entries:
            if not entry.name.endswith(".parquet") or entry.name.startswith("."):
                continue
            with suppress(FileNotFoundError):
                try:
                    stat = entry.stat()
                except FileNotFoundError:
                    raise
                except OSError:  # it cannot be read, which its verification reports
                    stat = entry.stat(follow_symlinks=False)
                yield _Found(
                    path=f"{folder}/{entry.name}",
                    folder=folder,
                    size=stat.st_size,
                    modified=stat.st_mtime_ns,
                    changed=stat.st_ctime_ns,
                    is_foreign=not is_name(entry.name),
                )


def _read_unread(lake: Lake, index: Index, changes: Changes) -> None:
    """Verify the unread files, and enter the contents of their footers. Removes files that have disappeared."""
    query = (
        f"select path, is_newest or tab not in {_READ_WHEN_NEWEST}, content from files "
        "where columns is null and damage is null and not is_foreign"
    )
    unread = index.rows(query)
    examined = _examined(lake, [(path, bool(whole)) for path, whole, _ in unread])
    known = {path: content for path, _, content in unread if content is not None}
    untouched = {each[0] for each in examined if known.get(each[0]) == each[4] is not None}
    _enter(index, [each for each in examined if each[0] not in untouched], changes)
    rows = [(each[2], each[3], each[0]) for each in examined if each[0] in untouched]
    index.write("update files set columns = ?, info = ? where path = ?", rows)
    gone = {path for path, *_ in unread} - {each[0] for each in examined}
    index.write("delete from files where path = ?", [(path,) for path in gone])
    for path in gone:
        _note_gone(path.partition("/")[0], [path], changes)
    for folder in {path.rpartition("/")[0] for path in gone}:
        _mark_newest(index, folder)


def verify_again(lake: Lake, index: Index, changes: Changes, suspects: Collection[str] | None = None) -> None:
    """Verify all sound files, or only `suspects`, and enter the damaged ones."""
    paths = index.column("select path from files where damage is null and not is_foreign")
    paths = [path for path in paths if suspects is None or path in suspects]
    damaged = [each for each in _examined(lake, [(path, True) for path in paths], again=True) if each[1] is not None]
    _enter(index, damaged, changes)


def _examined(lake: Lake, paths: Sequence[tuple[str, bool]], *, again: bool = False) -> list[_Examined]:
    """The content of each file; if its second value is true, it is verified whole. Skips files that have disappeared."""

    def examine(each: tuple[str, bool]) -> _Examined | None:
        name, whole = each
        path = lake.root / name
        try:
            if whole:
                require_sound(path, again=again)
            else:
                require_sound_footer(path)
            with damage_named(path):
                schema = pq.read_schema(path)
                content = content_id(path)
                info = json.loads((schema.metadata or {}).get(INFO_KEY, b"null"))
        except LakeError as error:
            return (name, str(error), None, None, None) if is_listed(path) else None
        kept = None if info is None else json.dumps({key: info[key] for key in _KEPT_INFO if key in info})
        return name, None, columns_hash(schema), kept, content

    with ThreadPoolExecutor(_WORKERS) as pool:
        found = pool.map(examine, paths)
        return [each for each in found if each is not None]


def columns_hash(schema: pa.Schema) -> str:
    """Hash of the names and types of columns. A dictionary counts as its values, because both are the same in a file."""
    return stable_hash([[each.name, str(plain_type(each.type))] for each in schema])


def plain_type(form: pa.DataType) -> pa.DataType:
    """The type without dictionary encoding."""
    return form.value_type if pa.types.is_dictionary(form) else form


def _enter(index: Index, examined: Sequence[_Examined], changes: Changes) -> None:
    index.write("update files set damage = ?2, columns = ?3, info = ?4, content = ?5, pack = null where path = ?1", examined)
    for path, damage, *_ in examined:
        table = path.partition("/")[0]
        changes.tables.add(table)
        changes.gone[table].add(path)  # the rows that it had before, if any
        if damage is None:
            changes.new[table].add(path)


def mark_damaged(index: Index, path: str, damage: str, changes: Changes) -> None:
    """Mark a file as damaged."""
    _enter(index, [(path, damage, None, None, None)], changes)


class IndexedLake(Lake):
    """The files of a lake at the time of this object's creation. Nothing is written."""

    def __init__(self, lake: Lake) -> None:
        super().__init__(lake.home, answers=None if lake.answers is lake else lake.answers, configured=lake.configured)
        try:
            self._read(lake, copied_index(lake))
        except sqlite3.DatabaseError:  # the index is damaged; the next publication makes it again
            self._read(lake, empty_index())

    def _read(self, lake: Lake, connection: sqlite3.Connection) -> None:
        with closing(connection):
            index = Index(connection)
            scan(lake, index)
            self._is_catalog_current = catalog_path(lake).exists() and file_stamp(catalog_path(lake)) == index["catalog"]
            query = "select folder, path, size, damage, info from files where not is_foreign order by folder, path"
            self._files = {path: (size, damage, info) for _, path, size, damage, info in index.rows(query)}
            rows = index.rows("select folder, path from files where not is_foreign order by folder, path")
        self._folders = {folder: [self.root / path for _, path in group] for folder, group in groupby(rows, key=lambda row: row[0])}
        self._tables: dict[str, list[str]] = defaultdict(list)
        for folder in self._folders:
            self._tables[folder.partition("/")[0]].append(folder)
        self._infos: dict[str, FileInfo] = {}

    def partitions(self, table: str) -> Iterator[list[Path]]:
        """The files of each partition of a table, oldest first."""
        yield from (self._folders[folder] for folder in self._tables.get(table, ()))

    def files(self, folder: Path) -> list[Path]:
        """The files in a folder, the oldest first."""
        return self._folders.get(self._name(folder), [])

    def beside(self, path: Path, table: str) -> list[Path]:
        """Another table's files for the same partition, or for the same eval if that table has no models."""
        _, eval_part, *rest = self._name(path).split("/")
        return self._folders.get("/".join([table, eval_part, *rest[:-1]]), []) or self._folders.get(f"{table}/{eval_part}", [])

    def _newest(self, table: str, folder: Path) -> list[Path]:  # noqa: ARG002 - all files are here
        return self.files(folder)

    def info(self, path: Path) -> FileInfo:
        """The information of a file, without counts and notes. Raises LakeError if the file is damaged."""
        name = self._name(path)
        if name in self._infos:
            return self._infos[name]
        _, damage, text = self._files.get(name, (0, None, None))
        if damage is not None:
            raise LakeError(damage)
        self._infos[name] = found = super().info(path) if text is None else info_of(text)
        return found

    def size(self, path: Path) -> int:
        """Size of a file in bytes. Raises FileNotFoundError if it does not exist."""
        found = self._files.get(self._name(path))
        return found[0] if found is not None else path.stat().st_size

    def scores_file(self, metrics: Path) -> str | None:
        """The file of scores behind metrics, relative to the lake's folder. Raises LakeError if the metrics are damaged."""
        name = self._name(metrics)
        if name in self._scores_files:
            return self._scores_files[name]
        return next((str(row["scores_file"]) for row in read_head(metrics, 1, ["scores_file"])), None)

    @cached_property
    def _scores_files(self) -> dict[str, str]:
        """The files of scores by file of metrics, from the catalog. Empty if the catalog does not match the index."""
        if self._is_catalog_current:
            with suppress(duckdb.Error), free_session(self.home, catalog_path(self)) as session:
                return dict(session.execute("select distinct _file, named_scores_file from internal._metrics_files").fetchall())
        return {}

    def _name(self, path: Path) -> str:
        return str(path)[len(str(self.root)) + 1 :]
