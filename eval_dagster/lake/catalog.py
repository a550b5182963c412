"""`evals.duckdb`: the face of the lake that users open.

Built beside under a lock, then moved into place. Files of the lake never change, so a session sees one consistent state, the one it
opened, and blocks nobody. Scores and metrics are published together: both belong to the same materializations.
"""

import json
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb

from eval_dagster.errors import QueryError
from eval_dagster.lake.archives import archive
from eval_dagster.lake.files import Lake, damage_of
from eval_dagster.lake.relations import build, configured_names, quoted, relation_files
from eval_dagster.lake.schemas import TABLES
from eval_dagster.versions import code_version, file_stamp, stable_hash

_STORAGE_VERSION = "v1.2.0"
"""The oldest command line that may open the file: a 1.x one refuses what DuckDB 2 writes by default."""


def catalog_path(lake: Lake) -> Path:
    """Where users find the catalog."""
    return lake.home / "evals.duckdb"


def publish(lake: Lake) -> list[str]:
    """Make the catalog anew from the files that are current, and move it into place, unless today's was made of just these.

    Returns:
        A message for each damaged file; damaged files are left out, and listed in the relation `damaged_files`.
    """
    with lake.lock("catalog"):
        return publish_locked(lake, archiving=not lake.is_trial)


def publish_locked(lake: Lake, *, archiving: bool = True) -> list[str]:
    """Do what `publish` does, for a caller that holds the lock `catalog`.

    Args:
        lake: What it is made of.
        archiving: Whether the last state of a past day is kept.
    """
    path = catalog_path(lake)
    path.parent.mkdir(parents=True, exist_ok=True)
    sources = _sources(lake)
    if _is_made_of(path, sources):
        return []
    building = path.with_name(".evals.duckdb.building")
    building.unlink(missing_ok=True)
    damages: dict[str, str] = {}
    with duckdb.connect() as connection:
        connection.execute(f"attach '{quoted(building)}' as evals (storage_version '{_STORAGE_VERSION}')")
        connection.execute("use evals")
        while True:
            try:
                build(connection, lake, damages)
                break
            except duckdb.Error:
                found = _damages(lake, known=damages)
                if not found:
                    raise
                damages |= found
        connection.execute("use memory")
        connection.execute("detach evals")
    if archiving:
        archive(path)
    # Nobody is to write to what the next publication replaces; and a log of changes that somebody wrote all the same
    # would be replayed onto the new file, with which it has nothing to do.
    building.chmod(0o444)
    _log_of_changes(path).unlink(missing_ok=True)
    building.replace(path)
    _log_of_changes(path).unlink(missing_ok=True)
    if not damages:  # which are to be said each time
        _note(path).write_text(json.dumps([sources, file_stamp(path)]), "utf-8")
    return list(damages.values())


def connect(lake: Lake) -> duckdb.DuckDBPyConnection:
    """Open the catalog for reading.

    Raises:
        QueryError: Nothing has been evaluated yet, or somebody has the catalog open for writing.
    """
    path = catalog_path(lake)
    if not path.exists():
        raise QueryError(f"there is nothing to query yet: {path} does not exist; run `eval-dagster run` first")
    try:
        return duckdb.connect(str(path), read_only=True)
    except duckdb.Error as error:
        raise QueryError(
            f"{path} cannot be opened for reading ({str(error).splitlines()[0]}); if another session has it open for writing, close "
            "that one and open the file read-only (`duckdb -readonly`); nothing in it needs writing, it is made from the lake"
        ) from error


def refresh(lake: Lake) -> None:
    """Publish anew where evals.yaml has other evals or models than when the catalog was made; nothing where there is no catalog."""
    if not catalog_path(lake).exists():
        return
    with connect(lake) as catalog:
        try:
            known = catalog.execute("select kind, name from _configured").fetchall()
        except duckdb.CatalogException:  # a catalog of an earlier version
            known = None
    if known != configured_names(lake):
        with suppress(OSError):  # who may only read the home sees the catalog as it is
            publish(lake)


def read_rows(lake: Lake, query: str) -> list[dict[str, Any]]:
    """The rows of a query on the catalog, by column name.

    Raises:
        QueryError: Nothing has been evaluated yet.
    """
    with connect(lake) as catalog:
        return rows_of(catalog.execute(query))


def rows_of(result: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    """All rows of an executed query, by column name."""
    names = [column[0] for column in result.description or ()]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def _sources(lake: Lake) -> str:
    """Hash of all that a catalog is made of."""
    stamps: list[Any] = []
    for path in (path for table in TABLES for partition in lake.partitions(table) for path in partition):
        with suppress(FileNotFoundError):  # gone since it was listed
            stamps.append([str(path), file_stamp(path)])
    questions = {name: path.read_text("utf-8") for name, path in relation_files().items()}
    return stable_hash([stamps, questions, configured_names(lake), code_version(build), duckdb.__version__])


def _is_made_of(path: Path, sources: str) -> bool:
    """Whether the catalog was made of these sources today, and nobody wrote to it since."""
    if _log_of_changes(path).exists():
        return False
    with suppress(OSError, ValueError):
        is_of_today = datetime.fromtimestamp(path.stat().st_mtime, UTC).date() == datetime.now(UTC).date()
        return is_of_today and json.loads(_note(path).read_text("utf-8")) == [sources, file_stamp(path)]
    return False


def _note(path: Path) -> Path:
    """Where it stands what the catalog was made of."""
    return path.with_name(f".{path.name}.sources")


def _log_of_changes(path: Path) -> Path:
    return path.with_name(f"{path.name}.wal")


def _damages(lake: Lake, known: dict[str, str]) -> dict[str, str]:
    files = [path for table in TABLES for partition in lake.partitions(table) for path in partition]
    return {str(path): damage for path in files if str(path) not in known and (damage := damage_of(path))}
