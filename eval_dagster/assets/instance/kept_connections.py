"""Connections to the SQLite files of a Dagster instance that stay open while a run works.

Dagster opens a connection for each event that it stores. To open and close one takes several times as long as to store the event: SQLite
copies its write-ahead log into the database whenever the last connection is closed.
"""

import functools
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import dagster as dg
import sqlalchemy as sa

from eval_dagster.dagster_internals.storage import (
    INDEX_SHARD_NAME,
    SQLITE_BUSY_TIMEOUT_SECONDS,
    SqlEventLogStorageTable,
    SqliteEventLogStorage,
)


@contextmanager
def kept_connections(instance: dg.DagsterInstance) -> Iterator[None]:
    """Keep one connection to each file of events open within the block. Instances with other databases, and nested blocks, do not change.

    A commit does not wait for the disk. So a killed process loses no event; a power failure can lose the last seconds. Results
    are in the lake by then, and the next run reports them as current.
    """
    storage = instance.event_log_storage
    if not isinstance(storage, SqliteEventLogStorage) or "_connect" in vars(storage):
        yield
        return
    connections = _Connections(storage)
    # Methods of the instance alone, since Dagster makes the storage from the settings of the instance.
    methods = {
        "_connect": connections.connect,
        "has_table": functools.cache(storage.has_table),
        "store_event_batch": connections.store_planned,
    }
    vars(storage).update(methods)
    try:
        yield
    finally:
        for name in methods:
            del vars(storage)[name]
        connections.close()


class _Connections:
    """The engines of a storage, one for each file."""

    def __init__(self, storage: SqliteEventLogStorage) -> None:
        self._storage = storage
        self._engines: dict[str, tuple[sa.Engine, int | None]] = {}
        """For each file its engine, and its inode when the engine was made."""

    @contextmanager
    def connect(self, shard: str) -> Iterator[sa.Connection]:
        """A connection in a transaction, as the method of Dagster's storage gives it."""
        with self._storage._db_lock, self._kept(shard).begin() as connection:
            yield connection

    def store_planned(self, events: Sequence[dg.EventLogEntry]) -> None:
        """Store the events of one run about planned materializations in a transaction for each file. Others are stored one by one."""
        storage, planned = self._storage, dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED
        if len({event.run_id for event in events}) != 1 or any(event.dagster_event_type is not planned for event in events):
            for event in events:
                storage.store_event(event)
            return
        newest = {event.get_dagster_event().asset_key: event for event in events}
        for shard in (events[0].run_id, INDEX_SHARD_NAME):
            with self.connect(shard) as connection:
                connection.execute(SqlEventLogStorageTable.insert(), [storage._event_to_row(event) for event in events])
                for event in newest.values() if shard == INDEX_SHARD_NAME else ():
                    storage._store_asset_event(connection, event, 0)  # the id is not stored for planned ones

    def close(self) -> None:
        """Close all connections."""
        for engine, _ in self._engines.values():
            engine.dispose()

    def _kept(self, shard: str) -> sa.Engine:
        """The engine of a file, made anew if the file was replaced: another command moves a damaged one away."""
        engine, inode = self._engines.get(shard, (None, None))
        if engine is None or inode != self._inode(shard):
            if engine is not None:
                engine.dispose()
                self._storage._initialized_dbs.discard(shard)
            engine = self._engine(shard)
            self._engines[shard] = engine, self._inode(shard)
        return engine

    def _inode(self, shard: str) -> int | None:
        with suppress(FileNotFoundError):
            return os.stat(self._storage.path_for_shard(shard)).st_ino  # noqa: PTH116 - for each event
        return None

    def _engine(self, shard: str) -> sa.Engine:
        address = self._storage.conn_string_for_shard(shard)
        engine = sa.create_engine(address, connect_args={"timeout": SQLITE_BUSY_TIMEOUT_SECONDS})
        sa.event.listen(engine, "connect", _wait_for_no_disk)
        if shard not in self._storage._initialized_dbs:
            self._storage._initdb(engine)
            self._storage._initialized_dbs.add(shard)
        return engine


def _wait_for_no_disk(connection: sqlite3.Connection, _record: object) -> None:
    connection.execute("pragma synchronous = normal")
