"""Private names of Dagster for the stores of an instance."""

from dagster._core.storage.event_log import SqlEventLogStorageTable, SqliteEventLogStorage
from dagster._core.storage.event_log.sqlite.sqlite_event_log import INDEX_SHARD_NAME
from dagster._core.storage.runs import InMemoryRunStorage, SqliteRunStorage
from dagster._core.storage.sqlite import SQLITE_BUSY_TIMEOUT_SECONDS

__all__ = [
    "INDEX_SHARD_NAME",
    "SQLITE_BUSY_TIMEOUT_SECONDS",
    "InMemoryRunStorage",
    "SqlEventLogStorageTable",
    "SqliteEventLogStorage",
    "SqliteRunStorage",
]
