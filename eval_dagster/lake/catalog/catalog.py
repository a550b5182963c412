"""Queries on the catalog `evals.duckdb`, which `publishing` makes.

A session can only read results. If a query meets a damaged file, the catalog is made again without that file.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb

from eval_dagster.errors import LakeError, QueryError
from eval_dagster.lake.catalog.archives import files_named_by
from eval_dagster.lake.catalog.interruption import StuckQueryError, interruptibly
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.catalog.relations import FORMAT, configured_names
from eval_dagster.lake.catalog.sessions import damage_in, free_session, held_session, is_locked, plain
from eval_dagster.lake.files import Lake, catalog_path, trial_lake
from eval_dagster.lake.format.damage import require_sound
from eval_dagster.lake.tables.schemas import TABLES

_NAMED = re.compile(r"the lake file (.+?\.parquet) (?:is|cannot)")
"""The damaged file named in the message of a `LakeError`."""


def connect(lake: Lake, *, unsafe: bool = False, past: Path | None = None) -> duckdb.DuckDBPyConnection:
    """Open the catalog, or a past day's catalog, for reading.

    With `unsafe`, statements may read and write all files of this machine and load extensions. Otherwise they can only read results.

    Raises:
        QueryError: Nothing has been evaluated yet, the catalog cannot be read, or another session has it open for writing.
    """
    path = past or catalog_path(lake)
    if not path.exists():
        trials = "; there are trials, which --trial shows" if past is None and catalog_path(trial_lake(lake)).exists() else ""
        raise QueryError(f"there is nothing to query yet: {path} does not exist; run `eval-dagster run` first{trials}")
    try:
        return free_session(lake.home, path) if unsafe else held_session(path, lake.root)
    except duckdb.Error as error:
        if is_locked(error):
            raise QueryError(
                f"{path} cannot be opened for reading ({plain(error)}): another session has it open for writing; close that one and open "
                "the file read-only (`duckdb -readonly`); nothing in it needs writing, it is made from the lake"
            ) from error
        raise QueryError(f"{path} cannot be read ({plain(error)}); delete it: eval-dagster run makes it again from the lake") from error


def refresh(lake: Lake) -> bool:
    """Publish again if the catalog is missing, damaged, or made by another version or for another evals.yaml.

    A catalog for another evals.yaml is updated, not rebuilt. Without a catalog and a lake, nothing is written.

    Returns:
        False for a user with read-only access to the home, who sees the catalog as it is.
    """
    names = _names_in_catalog(lake) if catalog_path(lake).exists() else None
    if names == configured_names(lake) and lake.mirror is None:
        return True
    if catalog_path(lake).exists() or lake.mirror is not None or any(map(lake.has, TABLES)):
        try:
            publish(lake, anew=names is None)
        except PermissionError:
            return False
    return True


@contextmanager
def executed(
    lake: Lake, query: str, parameters: Mapping[str, Any] | None = None, *, unsafe: bool = False, past: Path | None = None
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Execute a query on the catalog; the rows are ready to be fetched.

    A query may have several statements; the last one gives the rows. `parameters` are the values of its `$names`, and `unsafe` is as in
    `connect`. If the query meets a damaged file, a catalog without it is published, and the query is repeated. If it meets another damaged
    file, all files are verified. A past day's catalog cannot be made again, so the query fails.

    Raises:
        QueryError: Nothing has been evaluated yet.
        LakeError: A file is damaged, and the catalog cannot be made again.
        duckdb.Error: The query is wrong.
    """
    if past is not None and unsafe:  # such a session does not compare files with their checksums
        for name in sorted(files_named_by(past)):
            _require_of(past, lake.root / name)
    session = None
    for thorough in (False, True):
        try:
            session = _executed_once(lake, query, parameters, unsafe=unsafe, past=past)
            break
        except duckdb.Error as error:
            damage = damage_in(error)
            if damage is None:
                raise
            if past is not None:
                raise _unreadable(past, damage) from error
            _publish_without_damage(lake, damage, thorough=thorough)
    session = session or _executed_once(lake, query, parameters, unsafe=unsafe)
    try:
        yield session
    except StuckQueryError:
        raise
    except BaseException:
        session.close()
        raise
    session.close()


def _require_of(past: Path, path: Path) -> None:
    """Compare a file of a past day's catalog with its checksums."""
    try:
        require_sound(path)
    except LakeError as error:
        raise _unreadable(past, str(error)) from error


def _unreadable(past: Path, damage: str) -> LakeError:
    seen = damage.partition("; ")[0]
    return LakeError(f"the state of {past.stem} cannot be read whole: {seen}; restore that file from a backup, or query another day")


def _executed_once(
    lake: Lake, query: str, parameters: Mapping[str, Any] | None, *, unsafe: bool, past: Path | None = None
) -> duckdb.DuckDBPyConnection:
    session = connect(lake, unsafe=unsafe, past=past)
    try:
        interruptibly(session, lambda: session.execute(query, parameters))
    except duckdb.Error:
        session.close()
        raise
    return session


def _publish_without_damage(lake: Lake, damage: str, *, thorough: bool) -> None:
    """Publish without the damaged file in the message, or with `thorough` without any damaged file."""
    try:
        named = _NAMED.search(damage)
        if named is None or thorough:
            publish(lake, thorough=True, anew=True)
        else:
            publish(lake, suspects=[Path(named[1])])
    except OSError as error:  # this user has read-only access to the home
        raise LakeError(damage) from error


def read_rows(lake: Lake, query: str, parameters: Mapping[str, Any] | None = None, *, past: Path | None = None) -> list[dict[str, Any]]:
    """The rows of a query on the catalog, or on a past day's catalog, by column name.

    Raises:
        QueryError: Nothing has been evaluated yet.
        LakeError: The catalog or one of its files cannot be read.
    """
    try:
        with executed(lake, query, parameters, past=past) as session:
            return rows_of(session)
    except duckdb.Error as error:
        path = past or catalog_path(lake)
        raise LakeError(f"{path} cannot be queried ({plain(error)}); delete it: the next command makes it again from the lake") from error


def rows_of(result: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    """All rows of an executed query, by column name."""
    names = [column[0] for column in result.description or ()]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def damages_listed(lake: Lake, *, past: Path | None = None) -> list[str]:
    """A message for each damaged file that the catalog, or a past day's catalog, leaves out."""
    return [row["message"] for row in read_rows(lake, "select message from damaged_files order by path", past=past)]


def _names_in_catalog(lake: Lake) -> list[tuple[str, str]] | None:
    """The evals and models of the catalog. None if it cannot be read, or belongs to another version or lake."""
    try:
        with free_session(lake.home, catalog_path(lake)) as session:
            known = session.execute("select kind, name from internal._configured").fetchall()
            formats = session.execute("select version, lake from internal._catalog_format").fetchall()
    except duckdb.Error as error:
        return configured_names(lake) if is_locked(error) else None
    return known if formats == [(FORMAT, str(lake.root))] else None
