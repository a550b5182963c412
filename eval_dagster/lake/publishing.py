"""`evals.duckdb`, the database file that users open to query the lake.

It is built under a lock as a file beside the current one, then moved into place. Files of the lake never change, so a session sees the one
state that it opened, and blocks no other process. Scores and metrics are published together: both belong to the same materializations.
"""

import json
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb

from eval_dagster.errors import LakeError
from eval_dagster.lake.archives import archive
from eval_dagster.lake.damage import damages_of, foreign_file
from eval_dagster.lake.files import Lake
from eval_dagster.lake.relations import NATIVE_TABLES, build, configured_names, quoted, relation_files
from eval_dagster.lake.schemas import TABLES
from eval_dagster.lake.sessions import free_session, plain
from eval_dagster.versions import code_version, file_stamp, stable_hash

_STORAGE_VERSION = "v1.2.0"
"""The oldest version of DuckDB that can open the file. A 1.x version cannot read the default format of DuckDB 2."""


def catalog_path(lake: Lake) -> Path:
    """The path of the catalog."""
    return lake.home / "evals.duckdb"


def publish(lake: Lake, *, thorough: bool = False) -> list[str]:
    """Make the catalog from the current files and move it into place, unless today's catalog was made of the same files.

    With `thorough`, all files of the lake are verified, instead of the current ones and those that tables are made of. Damaged files are
    left out, and listed in the relation `damaged_files`. Returns a message for each of them.

    Raises:
        LakeError: No catalog can be made of the files.
    """
    with lake.lock("catalog"):
        return publish_locked(lake, archiving=not lake.is_trial, thorough=thorough)


def publish_locked(lake: Lake, *, archiving: bool = True, thorough: bool = False) -> list[str]:
    """Publish as `publish` does, for a caller that holds the lock `catalog`. With `archiving`, the last state of a past day is kept."""
    path = catalog_path(lake)
    path.parent.mkdir(parents=True, exist_ok=True)
    sources = _sources(lake)
    damages = _damages(lake, thorough=thorough)
    if not damages and _is_made_of(path, sources):
        return []
    building = path.with_name(".evals.duckdb.building")
    _remove(building)
    try:
        _build(lake, building, damages)
    except BaseException as error:
        _remove(building)  # it may be what fills the disk
        if isinstance(error, duckdb.Error):
            raise LakeError(f"the catalog {path} cannot be written: {' '.join(str(error).split())}") from error
        raise
    if archiving:
        archive(path)
    # The file is read-only, because the next publication replaces it. DuckDB would apply a write-ahead log of the old file to the new one.
    building.chmod(0o444)
    _log_of_changes(path).unlink(missing_ok=True)
    building.replace(path)
    _log_of_changes(path).unlink(missing_ok=True)
    if damages:  # so that every publication reports them
        _note(path).unlink(missing_ok=True)
    else:
        _note(path).write_text(json.dumps([sources, file_stamp(path)]), "utf-8")
    return list(damages.values())


def _sources(lake: Lake) -> str:
    """Hash of all sources of a catalog."""
    stamps: list[Any] = []
    for path in (path for table in TABLES for partition in lake.partitions(table) for path in partition):
        with suppress(FileNotFoundError):  # deleted since it was listed
            stamps.append([str(path), file_stamp(path)])
    questions = {name: path.read_text("utf-8") for name, path in relation_files().items()}
    return stable_hash([stamps, questions, configured_names(lake), code_version(build), duckdb.__version__])


def _is_made_of(path: Path, sources: str) -> bool:
    """Whether the catalog was made of these sources today and is unchanged since."""
    if _log_of_changes(path).exists():
        return False
    with suppress(OSError, ValueError):
        is_of_today = datetime.fromtimestamp(path.stat().st_mtime, UTC).date() == datetime.now(UTC).date()
        return is_of_today and json.loads(_note(path).read_text("utf-8")) == [sources, file_stamp(path)]
    return False


def _note(path: Path) -> Path:
    """The file that holds the hash of the sources of the catalog."""
    return path.with_name(f".{path.name}.sources")


def _log_of_changes(path: Path) -> Path:
    return path.with_name(f"{path.name}.wal")


def _build(lake: Lake, building: Path, damages: dict[str, str]) -> None:
    """Make a catalog in a file of its own. Damage that is found on the way is added to `damages`."""
    with free_session(lake.home) as session:
        session.execute(f"attach '{quoted(building)}' as evals (storage_version '{_STORAGE_VERSION}')")
        session.execute("use evals")
        while True:
            try:
                build(session, lake, damages)
                break
            except duckdb.Error as error:
                found = _damages(lake, thorough=True)
                if found.keys() <= damages.keys():
                    raise LakeError(f"no catalog can be made of the files in {lake.root}: {plain(error)}") from error
                damages |= found
        session.execute("use memory")
        session.execute("detach evals")


def _remove(building: Path) -> None:
    """Remove a half-made catalog with its write-ahead log, which DuckDB would apply to the next one."""
    for path in (building, _log_of_changes(building)):
        path.unlink(missing_ok=True)


def forget_sources(lake: Lake) -> None:
    """Force the next publication to make the catalog again."""
    _note(catalog_path(lake)).unlink(missing_ok=True)


def _damages(lake: Lake, *, thorough: bool) -> dict[str, str]:
    """A message for each damaged file by path.

    With `thorough`, all files are verified, also those that this process verified less than an hour ago. Otherwise these are verified:
    the newest file of each partition, all files of `NATIVE_TABLES`, and the files that were damaged when the catalog was made.
    """
    files = {
        path
        for table in TABLES
        for partition in lake.partitions(table)
        for path in (partition if thorough or table in NATIVE_TABLES else partition[-1:])
    }
    known = [path for path in _known_damaged(lake) if path not in files]
    found = damages_of(sorted(files), again=thorough) | damages_of(known, again=True)
    foreign = {str(path): foreign_file(path) for path in lake.foreign_files()}
    return {path: damage for path, damage in found.items() if Path(path).exists()} | foreign


def _known_damaged(lake: Lake) -> list[Path]:
    with suppress(duckdb.Error), free_session(lake.home, catalog_path(lake)) as session:
        return [Path(path) for (path,) in session.execute("select path from damaged_files").fetchall()]
    return []
