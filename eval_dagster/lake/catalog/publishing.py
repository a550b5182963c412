"""`evals.duckdb`, the database file that users open to query the lake.

It is built under a lock as a file beside the current one, then moved into place. Files of the lake never change, so a session sees one
state, the one it opened, and blocks no other process. Scores and metrics are published together, because they belong to the same
materializations.

The index of the lake tells what changed since the last publication. These changes are applied to a copy of the last catalog. The catalog is
made from nothing if it is missing, was made by another version, was changed by others, or if files have other columns.
"""

import shutil
from collections.abc import Collection
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import duckdb

from eval_dagster.errors import LakeError
from eval_dagster.lake.catalog.archives import archive, keep_night
from eval_dagster.lake.catalog.index import DamagedIndexError, Index, open_index
from eval_dagster.lake.catalog.packs import forget_damaged, maintain
from eval_dagster.lake.catalog.relations import FORMAT, build, configured_names, damages_of, relation_files
from eval_dagster.lake.catalog.scanning import Changes, scan, verify_again
from eval_dagster.lake.catalog.sessions import free_session, plain, quoted
from eval_dagster.lake.files import Lake, catalog_path
from eval_dagster.lake.tables.schemas import TABLES
from eval_dagster.versions.hashes import code_version, file_stamp, stable_hash

_STORAGE_VERSION = "v1.2.0"
"""The oldest version of DuckDB that can open the file. A 1.x version cannot read the default format of DuckDB 2."""
_GROWTH, _ALLOWED = 2, 32 * 2**20
"""A catalog that grew by this factor and these bytes since it was made from nothing is mostly free space, and is made again."""


def publish(lake: Lake, *, thorough: bool = False, anew: bool = False, suspects: Collection[Path] = ()) -> list[str]:
    """Bring the catalog up to date with the files of the lake and move it into place, unless nothing changed.

    Verifies new files, damaged files and `suspects`. With `thorough`, it verifies all files of the lake; with `anew`, it makes the catalog
    from nothing. Damaged files are left out, and listed in the relation `damaged_files`. Returns a message for each.

    Raises:
        LakeError: No catalog can be made from the files.
    """
    with lake.lock("catalog"):
        return publish_locked(lake, archiving=not lake.is_trial, thorough=thorough, anew=anew, suspects=suspects)


def publish_locked(
    lake: Lake,
    *,
    archiving: bool = True,
    thorough: bool = False,
    anew: bool = False,
    suspects: Collection[Path] = (),
    without: Collection[Path] = (),
) -> list[str]:
    """Publish as `publish` does, for a caller that holds the lock `catalog`.

    With `archiving`, the last state of a past day is kept. The files in `without` count as deleted.
    """
    catalog_path(lake).parent.mkdir(parents=True, exist_ok=True)
    going, suspected = (
        {str(path.relative_to(lake.root)) for path in paths if path.is_relative_to(lake.root)} for paths in (without, suspects)
    )
    for _ in range(2):
        try:
            lake.pull()
            if archiving:
                keep_night(lake)
            with open_index(lake) as index:
                changes = _changes(lake, index, thorough=thorough, suspects=suspected, without=going)
                return _publish(lake, index, changes, archiving=archiving, anew=anew, without=going)
        except DamagedIndexError:
            continue
    raise LakeError(f"the index below {lake.root} is damaged whenever it is written; check the disk that it is on")


def _changes(lake: Lake, index: Index, *, thorough: bool, suspects: Collection[str] = (), without: Collection[str] = ()) -> Changes:
    """Bring the index and the packs up to date, and return the changes."""
    changes = scan(lake, index, without=without, thorough=thorough)
    if thorough or suspects:
        verify_again(lake, index, changes, None if thorough else suspects)
        forget_damaged(lake, index, changes, None if thorough else suspects)
    maintain(lake, index, changes)
    return changes


def _publish(lake: Lake, index: Index, changes: Changes, *, archiving: bool, anew: bool, without: Collection[str]) -> list[str]:
    path = catalog_path(lake)
    names = [list(each) for each in configured_names(lake)]
    # Everything that shapes a catalog except the files.
    questions = {name: relation.read_text("utf-8") for name, relation in relation_files().items()}
    made_by = stable_hash([questions, FORMAT, str(lake.root), code_version(build), duckdb.__version__])
    is_ours = path.exists() and not _log_of_changes(path).exists() and file_stamp(path) == index["catalog"]
    anew = _has_other_columns(index) or anew or index["made_by"] != made_by or not is_ours
    if anew:  # its rows are read again, from loose files and from packs
        verify_again(lake, index, changes, {each.path for table in TABLES for each in index.loose(table)})
        forget_damaged(lake, index, changes)
        maintain(lake, index, changes)
    elif (
        not changes.tables
        and names == index["configured"]
        and datetime.fromtimestamp(path.stat().st_mtime, UTC).date() == datetime.now(UTC).date()
    ):
        return list(damages_of(lake, index).values())
    building = path.with_name(".evals.duckdb.building")
    known = _missing(index)
    try:
        is_whole = _build(lake, index, building, path, None if anew else changes, without)
        if lake.mirror is not None and not _missing(index) <= known:
            # The store was listed while others wrote or deleted. A file counts as missing only if it is missing again.
            lake.pull()
            changes.add(_changes(lake, index, thorough=False, without=without))
            is_whole = _build(lake, index, building, path, None if anew or _has_other_columns(index) else changes, without)
        _move(building, path, archiving=archiving)
    except BaseException as error:
        _remove(building)  # it may be what fills the disk
        if isinstance(error, duckdb.Error):
            raise LakeError(f"the catalog {path} cannot be written: {' '.join(str(error).split())}") from error
        raise
    size = path.stat().st_size
    if is_whole:
        index["size"] = size
    index["made_by"] = made_by if size < _GROWTH * index["size"] + _ALLOWED else None
    index["configured"], index["catalog"] = names, file_stamp(path)
    return list(damages_of(lake, index).values())


def _missing(index: Index) -> set[str]:
    """The missing files that others name, as of the last catalog."""
    return {*(index["missing_scores"] or {}), *(index["missing_judgements"] or [])}


def _has_other_columns(index: Index) -> bool:
    """Whether the columns of any table's files differ from the last publication: new ones, or missing ones.

    Enters the columns of all tables as known.
    """
    found: dict[str, list[str]] = {}
    for table, columns in index.rows("select distinct tab, columns from files where columns is not null and damage is null order by 1, 2"):
        found.setdefault(table, []).append(columns)
    is_other: bool = found != index["columns"]
    index["columns"] = found
    return is_other


def _move(building: Path, path: Path, *, archiving: bool) -> None:
    """Replace the catalog with a new one."""
    if archiving:
        archive(path)
    # The file is read-only, because the next publication replaces it. DuckDB would apply a write-ahead log of the old file to the new one.
    building.chmod(0o444)
    _log_of_changes(path).unlink(missing_ok=True)
    building.replace(path)
    _log_of_changes(path).unlink(missing_ok=True)
    path.with_name(f".{path.name}.sources").unlink(missing_ok=True)  # earlier versions identified a catalog by it


def _log_of_changes(path: Path) -> Path:
    return path.with_name(f"{path.name}.wal")


def _build(lake: Lake, index: Index, building: Path, path: Path, changes: Changes | None, without: Collection[str]) -> bool:
    """Make a catalog in a separate file, from the last one and the changes or from nothing. Returns whether it was made from nothing.

    If that fails, another process may have deleted a file meanwhile, so the lake is scanned again. If it fails once more, all files are
    verified.
    """
    try:
        _build_once(lake, index, building, path, changes)
        return changes is None
    except duckdb.Error as error:
        failure = error
    found = _changes(lake, index, thorough=False, without=without)
    if found.tables and (changes is None or not _has_other_columns(index)):
        if changes is not None:
            changes.add(found)
        with suppress(duckdb.Error):
            _build_once(lake, index, building, path, changes)
            return changes is None
    if not _changes(lake, index, thorough=True, without=without).tables and changes is None:
        raise failure
    try:
        _build_once(lake, index, building, path, None)
    except duckdb.Error as error:
        raise LakeError(f"no catalog can be made of the files in {lake.root}: {plain(error)}") from error
    return True


def _build_once(lake: Lake, index: Index, building: Path, path: Path, changes: Changes | None) -> None:
    _remove(building)
    if changes is not None:
        shutil.copyfile(path, building)
    with free_session(lake.home) as session:
        options = f" (storage_version '{_STORAGE_VERSION}')" if changes is None else ""
        session.execute(f"attach '{quoted(building)}' as evals{options}")
        session.execute("use evals")
        build(session, lake, index, changes)
        session.execute("use memory")
        session.execute("detach evals")


def _remove(building: Path) -> None:
    """Remove an unfinished catalog with its write-ahead log, which DuckDB would apply to the next one."""
    for path in (building, _log_of_changes(building)):
        path.unlink(missing_ok=True)
