"""The catalog, `evals.duckdb`: how it is made (`publishing`), and how it is read.

A session reads results and nothing else. A query that meets a damaged file has the catalog made anew without it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import duckdb

from eval_dagster.errors import LakeError, QueryError
from eval_dagster.lake.files import Lake
from eval_dagster.lake.interruption import StuckQueryError, interruptibly
from eval_dagster.lake.publishing import catalog_path, forget_sources, publish, publish_locked
from eval_dagster.lake.relations import FORMAT, configured_names
from eval_dagster.lake.schemas import TABLES
from eval_dagster.lake.sessions import damage_in, free_session, held_session, is_locked, plain

__all__ = [
    "catalog_path",
    "connect",
    "damages_listed",
    "executed",
    "publish",
    "publish_locked",
    "read_rows",
    "refresh",
    "rows_of",
]


def connect(lake: Lake, *, unsafe: bool = False) -> duckdb.DuckDBPyConnection:
    """Open the catalog for reading.

    Args:
        lake: Whose catalog it is.
        unsafe: Whether statements may read and write all files of this machine and load extensions, instead of reading results alone.

    Raises:
        QueryError: Nothing has been evaluated yet, or the catalog cannot be read, or somebody has it open for writing.
    """
    path = catalog_path(lake)
    if not path.exists():
        raise QueryError(f"there is nothing to query yet: {path} does not exist; run `eval-dagster run` first")
    try:
        session = free_session(lake.home, path) if unsafe else held_session(path, lake.root)
        if session.execute("select count(*) from duckdb_tables() where table_name = '_catalog_format'").fetchall() == [(0,)]:
            session.close()
            raise QueryError(f"{path} was made by an earlier version; have it made anew from the lake: eval-dagster leaderboard")
        return session
    except duckdb.Error as error:
        if is_locked(error):
            raise QueryError(
                f"{path} cannot be opened for reading ({plain(error)}): another session has it open for writing; close that one and open "
                "the file read-only (`duckdb -readonly`); nothing in it needs writing, it is made from the lake"
            ) from error
        raise QueryError(f"{path} cannot be read ({plain(error)}); delete it, it is made anew from the lake: eval-dagster run") from error


def refresh(lake: Lake) -> None:
    """Publish anew where the catalog is missing, damaged, of an earlier version or of another evals.yaml.

    Where there is neither a catalog nor a lake, nothing is written.
    """
    has_catalog = catalog_path(lake).exists()
    if has_catalog and _is_up_to_date(lake):
        return
    if has_catalog or any(True for table in TABLES for _ in lake.partitions(table)):
        with suppress(PermissionError):  # who may only read the home sees the catalog as it is
            forget_sources(lake)
            publish(lake)


@contextmanager
def executed(
    lake: Lake, query: str, parameters: Mapping[str, Any] | None = None, *, unsafe: bool = False
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Ask the catalog; the rows are there to be fetched.

    Where the query meets a damaged file, the catalog is made anew without that one, and asked again.

    Args:
        lake: Whose catalog it is.
        query: One statement or several, of which the last gives the rows.
        parameters: Values of the query's `$names`.
        unsafe: As `connect` has it.

    Raises:
        QueryError: Nothing has been evaluated yet.
        LakeError: A file is damaged, and the catalog cannot be made anew.
        duckdb.Error: The query is wrong.
    """
    session = _asked(lake, query, parameters, unsafe=unsafe)
    try:
        yield session
    except StuckQueryError:
        raise
    except BaseException:
        session.close()
        raise
    session.close()


def _asked(lake: Lake, query: str, parameters: Mapping[str, Any] | None, *, unsafe: bool) -> duckdb.DuckDBPyConnection:
    try:
        return _asked_once(lake, query, parameters, unsafe=unsafe)
    except duckdb.Error as error:
        damage = damage_in(error)
        if damage is None:
            raise
        _publish_without_damage(lake, damage)
    return _asked_once(lake, query, parameters, unsafe=unsafe)


def _asked_once(lake: Lake, query: str, parameters: Mapping[str, Any] | None, *, unsafe: bool) -> duckdb.DuckDBPyConnection:
    session = connect(lake, unsafe=unsafe)
    try:
        interruptibly(session, lambda: session.execute(query, parameters))
    except duckdb.Error:
        session.close()
        raise
    return session


def _publish_without_damage(lake: Lake, damage: str) -> None:
    try:
        forget_sources(lake)
        publish(lake, thorough=True)
    except OSError as error:  # who may only read the home
        raise LakeError(damage) from error


def read_rows(lake: Lake, query: str, parameters: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """The rows of a query of this package on the catalog, by column name.

    Raises:
        QueryError: Nothing has been evaluated yet.
        LakeError: The catalog or a file that it names cannot be read.
    """
    try:
        with executed(lake, query, parameters) as session:
            return rows_of(session)
    except duckdb.Error as error:
        path = catalog_path(lake)
        raise LakeError(f"{path} cannot be asked ({plain(error)}); delete it: it is made anew from the lake by the next command") from error


def rows_of(result: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    """All rows of an executed query, by column name."""
    names = [column[0] for column in result.description or ()]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def damages_listed(lake: Lake) -> list[str]:
    """A message for each damaged file that the catalog leaves out."""
    return [row["message"] for row in read_rows(lake, "select message from damaged_files order by path")]


def _is_up_to_date(lake: Lake) -> bool:
    """Whether the catalog can be read, and was made by this version for the evals and models of today."""
    try:
        with free_session(lake.home, catalog_path(lake)) as session:
            known = session.execute("select kind, name from _configured").fetchall()
            formats = session.execute("select version, lake from _catalog_format").fetchall()
    except duckdb.Error as error:
        return is_locked(error)
    return known == configured_names(lake) and formats == [(FORMAT, str(lake.root))]
