"""Queries on the catalog `evals.duckdb`, which `publishing` makes.

A session can only read results. If a query meets a damaged file, the catalog is made again without that file. A long-lived process has a
reader, whose later queries read a catalog that was published meanwhile.
"""

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from eval_dagster.errors import LakeError, QueryError
from eval_dagster.lake.catalog.archives import files_named_by
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.catalog.relations import FORMAT, configured_names
from eval_dagster.lake.catalog.sessions import (
    StuckQueryError,
    adapt_older_views,
    damage_in,
    free_session,
    held_session,
    interruptibly,
    is_locked,
    plain,
)
from eval_dagster.lake.files import Lake, catalog_path, trial_lake
from eval_dagster.lake.format.damage import require_sound
from eval_dagster.lake.format.parquet_files import rows_of_table
from eval_dagster.lake.tables.columns import MetricRow
from eval_dagster.lake.tables.schemas import TABLES
from eval_dagster.versions.hashes import file_stamp

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
    names: list[tuple[str, str]] | None = None
    if catalog_path(lake).exists():
        try:
            with free_session(lake.home, catalog_path(lake)) as session:
                known = session.execute("select kind, name from internal._configured").fetchall()
                formats = session.execute("select version, lake from internal._catalog_format").fetchall()
            names = known if formats == [(FORMAT, str(lake.root))] else None  # the catalog may be of another version or lake
        except duckdb.Error as error:
            names = configured_names(lake) if is_locked(error) else None
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
            try:
                require_sound(lake.root / name)
            except LakeError as error:
                raise _unreadable(past, str(error)) from error
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
            try:
                named = _NAMED.search(damage)
                if named is None or thorough:
                    publish(lake, thorough=True, anew=True)
                else:
                    publish(lake, suspects=[Path(named[1])])
            except OSError as failure:  # this user has read-only access to the home
                raise LakeError(damage) from failure
    session = session or _executed_once(lake, query, parameters, unsafe=unsafe)
    try:
        yield session
    except StuckQueryError:
        raise
    except BaseException:
        session.close()
        raise
    session.close()


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


def read_rows(lake: Lake, query: str, parameters: Mapping[str, Any] | None = None, *, past: Path | None = None) -> list[Any]:
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


def rows_of(result: duckdb.DuckDBPyConnection) -> list[Any]:
    """All rows of an executed query, by column name."""
    names = [column[0] for column in result.description or ()]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def metrics_by_file(lake: Lake, eval_name: str, model: str, *, since: datetime) -> dict[Path, list[MetricRow]]:
    """The rows of the files of metrics since a time that the catalog has, as `read_rows` of the files gives them.

    They are as they were when the files were published. The query takes less time than to read a dozen files. A file that is not published
    yet is missing, and so are all if there is no catalog.
    """
    columns = "* exclude (_file, scores_file, named_scores_file), named_scores_file as scores_file, _file"
    where = "eval = $name and model = $model and materialized_at >= $since"
    query = f"select {columns} from internal._metrics_files where {where} order by rowid"  # noqa: S608 - bound values
    found: dict[Path, list[MetricRow]] = {}
    if not catalog_path(lake).exists():
        return found
    with suppress(duckdb.Error, pa.ArrowException), free_session(lake.home, catalog_path(lake)) as session:
        table = session.sql(query, params={"name": eval_name, "model": model, "since": since}).to_arrow_table()
        schema = TABLES["metrics"]
        rows = rows_of_table(table.select(schema.names).cast(schema))
        for name, row in zip(table["_file"].to_pylist(), rows, strict=True):
            found.setdefault(lake.root / name, []).append(row)
    return found


def damages_listed(lake: Lake, *, past: Path | None = None) -> list[str]:
    """A message for each damaged file that the catalog, or a past day's catalog, leaves out."""
    return [row["message"] for row in read_rows(lake, "select message from damaged_files order by path", past=past)]


class CatalogState:
    """One state of the catalog, for the queries of one page."""

    def __init__(self, lake: Lake, session: duckdb.DuckDBPyConnection) -> None:
        self.lake = lake
        self._session = session

    def rows(self, query: str, parameters: Mapping[str, Any] | None = None) -> list[Any]:
        """The rows of a query by column name; `parameters` are the values of its `$names`.

        Raises:
            LakeError: A file that the query reads is damaged or deleted.
            duckdb.Error: The query is wrong.
        """
        with _naming_damages():
            return rows_of(self._session.execute(query, parameters))

    def columns(self, query: str, parameters: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The columns of a query as arrays by name. Takes the arguments of `rows` and raises the same errors."""
        with _naming_damages():
            return dict(self._session.execute(query, parameters).fetchnumpy())


@contextmanager
def _naming_damages() -> Iterator[None]:
    """Raise an error of DuckDB about a damaged or deleted file as a `LakeError`."""
    try:
        yield
    except duckdb.Error as error:
        if (damage := damage_in(error)) is not None:
            raise LakeError(damage) from error
        if isinstance(error, duckdb.IOException):
            raise LakeError(plain(error)) from error
        raise


class _Open:
    """A session on one file of the catalog, and the number of pages that use it."""

    def __init__(self, stamp: object, session: duckdb.DuckDBPyConnection) -> None:
        self.stamp = stamp
        self.session = session
        self.users = 0


class CatalogReader:
    """Reads the catalog of a lake from many threads. Sessions can only read results, like `held_session`."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self._lock = threading.Lock()
        self._open: _Open | None = None

    @contextmanager
    def state(self) -> Iterator[CatalogState]:
        """The current state of the catalog. It stays the same within the block, even if a run publishes another one.

        Raises:
            QueryError: Nothing has been evaluated yet, or the catalog cannot be read.
        """
        with self._lock:
            if self._open is None or self._open.stamp != self._stamp():
                # If the file is replaced meanwhile, the old stamp makes the next page open it again.
                stamp = self._stamp()
                old, self._open = self._open, _Open(stamp, connect(self.lake))
                if old is not None and not old.users:
                    old.session.close()
            opened = self._open
            opened.users += 1
        try:
            # A cursor is a separate connection to the same database; it does not inherit the choice made by `use`.
            with opened.session.cursor() as cursor:
                cursor.execute("use evals")
                adapt_older_views(cursor)
                # A relation of the schema `internal` gets its name from before format 9, when the schema did not exist.
                query = "select 1 from duckdb_views() where schema_name = 'internal' and database_name = 'evals' limit 1"
                if cursor.execute(query).fetchall():
                    cursor.execute("create temp view _metrics_files as select * from internal._metrics_files")
                yield CatalogState(self.lake, cursor)
        finally:
            with self._lock:
                opened.users -= 1
                if not opened.users and opened is not self._open:
                    opened.session.close()

    def close(self) -> None:
        """Close the session if no page uses it."""
        with self._lock:
            opened, self._open = self._open, None
            if opened is not None and not opened.users:
                opened.session.close()

    def _stamp(self) -> object:
        path = catalog_path(self.lake)
        return file_stamp(path) if path.exists() else None
