"""The SQLite databases of a Dagster instance: their creation under a lock, the detection of damage, and connections that stay open.

Dagster opens a connection for each event that it stores. To open and close one takes several times as long as to store the event: SQLite
copies its write-ahead log into the database whenever the last connection is closed.
"""

import functools
import logging
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import dagster as dg
import sqlalchemy as sa
import yaml

from eval_dagster.dagster_internals.instances import (
    SQLITE_BUSY_TIMEOUT_SECONDS,
    AssetKeyTable,
    InMemoryRunStorage,
    SqliteEventLogStorage,
    SqliteRunStorage,
)
from eval_dagster.errors import StoreError
from eval_dagster.known_results import ELSEWHERE
from eval_dagster.stores.locks import locked
from eval_dagster.stores.sqlite_files import (
    damage_of,
    has_rows,
    make_empty,
    move_into_place,
    require_writable,
    set_aside,
    settled_damage_of,
    table_names,
)

_DATABASES = {"history/runs.db": "runs", "history/runs/index.db": "event_logs", "schedules/schedules.db": "job_ticks"}
"""Path in the instance's folder -> the table with its rows. The events of each run have a separate database."""

log = logging.getLogger("eval_dagster.instance")
_kept: "WeakKeyDictionary[SqliteEventLogStorage, _Connections]" = WeakKeyDictionary()


def ensure_databases(folder: Path) -> None:
    """Make sure that the databases of an instance exist, are whole and writable, unless dagster.yaml stores them elsewhere.

    They are created in a separate folder and moved into place, so that no process sees them half-made, even if another process creates
    them at the same time or is killed. Damaged databases are moved aside, with a warning.

    Raises:
        StoreError: dagster.yaml cannot be read, or a database cannot be written to.
    """
    if not _keeps_here(folder):
        return
    with locked(folder / ".databases.lock"):
        for name in _DATABASES:
            if damage := settled_damage_of(folder / name, partial(_examine, _DATABASES[name])):
                keep_aside(folder / name, damage)
            require_writable(folder / name, "Dagster's database")
        missing = [name for name in _DATABASES if not (folder / name).exists()]
        if missing:
            _make(folder, missing)


def heal_databases(folder: Path) -> list[str]:
    """Look for damage in all pages of the databases, and move damaged ones aside. Returns a message for each of these."""
    if not _keeps_here(folder):
        return []
    with locked(folder / ".databases.lock"):
        damages = {name: damage_of(folder / name, lambda _: None, thorough=True) for name in _DATABASES}
        return [keep_aside(folder / name, damage) for name, damage in damages.items() if damage]


def keep_aside(path: Path, damage: str) -> str:
    """Rename a damaged database, and log and return a message."""
    message = f"Dagster's database {path} was damaged ({damage}). It is kept as {set_aside(path).name}, and a new one is made."
    log.warning(message)
    return message


def events_file(folder: Path, run_id: str) -> Path:
    """The database of the events of a run."""
    return folder / "history" / "runs" / f"{run_id}.db"


def is_shared(instance: dg.DagsterInstance) -> bool:
    """Whether other machines can use the instance: its runs are in a database of its own, and not in files or in memory."""
    return not isinstance(instance.run_storage, SqliteRunStorage | InMemoryRunStorage)


def lock_database(instance: dg.DagsterInstance) -> str | None:
    """The address of an instance's PostgreSQL database; None if it has another one, or one whose address has no lasting password."""
    storage = instance.run_storage
    has_token = getattr(storage, "_token_provider", None) is not None
    return None if has_token else getattr(storage, "postgres_url", None)


def _keeps_here(folder: Path) -> bool:
    path = folder / "dagster.yaml"
    try:
        settings: Any = yaml.safe_load(path.read_text("utf-8")) if path.exists() else None
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = str(error).splitlines()[0]
        raise StoreError(
            f"Dagster's settings {path} cannot be read ({reason}); correct the file, or delete it to have a new one"
        ) from error
    return not isinstance(settings, dict) or not any(key in settings for key in ELSEWHERE)


def _examine(table: str, database: sqlite3.Connection) -> str | None:
    """The damage of a database whose creation was interrupted; None if it is complete, or if Dagster completes it."""
    if has_rows(database, table):
        return None
    is_whole = table in table_names(database) and has_rows(database, "alembic_version") and has_rows(database, "secondary_indexes")
    return None if is_whole else "a process was killed while it made the tables"


def _make(folder: Path, names: list[str]) -> None:
    building = folder / ".building"
    shutil.rmtree(building, ignore_errors=True)
    try:
        for name in names:
            (building / name).parent.mkdir(parents=True, exist_ok=True)
            make_empty(building / name, f"dagster-{dg.__version__}-{Path(name).stem}", partial(_make_with_dagster, building / "new", name))
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            move_into_place(building / name, folder / name)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _make_with_dagster(instance: Path, name: str, path: Path) -> None:
    """Let Dagster create the databases of an instance in a folder, and move one of them to a path."""
    if not instance.exists():
        instance.mkdir()
        (instance / "dagster.yaml").touch()  # without one Dagster prints that it has none
        with dg.DagsterInstance.local_temp(str(instance)):
            pass
    move_into_place(instance / name, path)


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
        "_has_asset_key_col_on_connection": connections.has_asset_column,
        "_store_asset_event": connections.store_asset_event,
    }
    vars(storage).update(methods)
    _kept[storage] = connections
    try:
        yield
    finally:
        del _kept[storage]
        for name in methods:
            del vars(storage)[name]
        connections.close()


def last_stored(instance: dg.DagsterInstance, key: dg.AssetKey, partition: str) -> int | None:
    """The id of the last event that this process stored by kept connections, if it is of this partition."""
    storage = instance.event_log_storage
    connections = _kept.get(storage) if isinstance(storage, SqliteEventLogStorage) else None
    known = None if connections is None else connections.last_event
    return known[2] if known is not None and known[:2] == (key, partition) else None


class _Connections:
    """The engines of a storage, one for each file."""

    def __init__(self, storage: SqliteEventLogStorage) -> None:
        self._storage = storage
        self._engines: dict[str, tuple[sa.Engine, int | None]] = {}
        """For each file its engine, and its inode when the engine was made."""
        self._has_asset_column = storage._has_asset_key_col_on_connection
        self._store_asset_event = storage._store_asset_event
        self._asset_columns: dict[str, bool] = {}
        self.last_event: tuple[dg.AssetKey, str | None, int] | None = None
        """The asset, the partition and the id of the event that was stored last."""

    @contextmanager
    def connect(self, shard: str) -> Iterator[sa.Connection]:
        """A connection in a transaction, as the method of Dagster's storage gives it."""
        with self._storage._db_lock, self._kept(shard).begin() as connection:
            yield connection

    def has_asset_column(self, connection: sa.Connection, name: str) -> bool:
        """Whether the table of asset keys has a column, as the method of Dagster's storage says it, which asks for each event."""
        if name not in self._asset_columns:
            self._asset_columns[name] = self._has_asset_column(connection, name)
        return self._asset_columns[name]

    def store_asset_event(self, connection: sa.Connection, event: dg.EventLogEntry, event_id: int) -> None:
        """Keep an event as the newest one of its asset. The method of Dagster's storage tries to insert the asset anew each time."""
        key = event.dagster_event.asset_key if event.dagster_event else None
        if key is None:
            return
        self.last_event = key, event.dagster_event.partition if event.dagster_event else None, event_id
        values = self._storage._get_asset_entry_values(event, event_id, self._storage._has_asset_key_index_cols_on_connection(connection))
        known = AssetKeyTable.update().where(AssetKeyTable.c.asset_key == key.to_string())
        if values and not connection.execute(known.values(**values)).rowcount:
            self._store_asset_event(connection, event, event_id)

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
