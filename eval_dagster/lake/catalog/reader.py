"""Queries of a long-lived process on the catalog. A publication replaces the file of the catalog; later queries read the new one."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import duckdb

from eval_dagster.errors import LakeError
from eval_dagster.lake.catalog.catalog import connect, rows_of
from eval_dagster.lake.catalog.sessions import adapt_older_views, damage_in, plain
from eval_dagster.lake.files import Lake, catalog_path
from eval_dagster.versions.hashes import file_stamp


class CatalogState:
    """One state of the catalog, for the queries of one page."""

    def __init__(self, lake: Lake, session: duckdb.DuckDBPyConnection) -> None:
        self.lake = lake
        self._session = session

    def rows(self, query: str, parameters: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
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
        opened = self._enter()
        try:
            # A cursor is a separate connection to the same database; it does not inherit the choice made by `use`.
            with opened.session.cursor() as cursor:
                cursor.execute("use evals")
                adapt_older_views(cursor)
                _name_internal(cursor)
                yield CatalogState(self.lake, cursor)
        finally:
            self._leave(opened)

    def close(self) -> None:
        """Close the session if no page uses it."""
        with self._lock:
            opened, self._open = self._open, None
            if opened is not None and not opened.users:
                opened.session.close()

    def _enter(self) -> _Open:
        with self._lock:
            if self._open is None or self._open.stamp != self._stamp():
                self._renew()
            assert self._open is not None
            self._open.users += 1
            return self._open

    def _renew(self) -> None:
        """Open the current file of the catalog. If it is replaced meanwhile, the old stamp makes the next page open it again."""
        stamp = self._stamp()
        old, self._open = self._open, _Open(stamp, connect(self.lake))
        if old is not None and not old.users:
            old.session.close()

    def _leave(self, opened: _Open) -> None:
        with self._lock:
            opened.users -= 1
            if not opened.users and opened is not self._open:
                opened.session.close()

    def _stamp(self) -> object:
        path = catalog_path(self.lake)
        return file_stamp(path) if path.exists() else None


def _name_internal(session: duckdb.DuckDBPyConnection) -> None:
    """Give a relation of the schema `internal` its name from before format 9, when the schema did not exist."""
    if session.execute("select 1 from duckdb_views() where schema_name = 'internal' and database_name = 'evals' limit 1").fetchall():
        session.execute("create temp view _metrics_files as select * from internal._metrics_files")
