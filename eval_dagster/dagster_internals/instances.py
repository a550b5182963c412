"""Private names of Dagster for instances, their runs, stores and servers. With its stores they take most of a second to import."""

from dagster._cli.proxy_server_manager import ProxyServerManager
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.definitions.reconstruct import ReconstructableJob
from dagster._core.definitions.repository_definition import SINGLETON_REPOSITORY_NAME
from dagster._core.execution import compute_logs
from dagster._core.execution.api import execute_run
from dagster._core.instance.ref import InstanceRef
from dagster._core.launcher import DefaultRunLauncher
from dagster._core.remote_origin import CodeLocationOrigin, RemoteRepositoryOrigin
from dagster._core.remote_representation.code_location import CodeLocation
from dagster._core.run_coordinator import QueuedRunCoordinator
from dagster._core.storage.event_log import AssetKeyTable, SqlEventLogStorage, SqlEventLogStorageTable, SqliteEventLogStorage
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable, AssetEventTagsTable
from dagster._core.storage.event_log.sqlite.sqlite_event_log import INDEX_SHARD_NAME
from dagster._core.storage.runs import InMemoryRunStorage, SqliteRunStorage
from dagster._core.storage.sqlite import SQLITE_BUSY_TIMEOUT_SECONDS
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load import location_origins_from_yaml_paths
from dagster._core.workspace.load_target import WorkspaceFileTarget
from dagster._daemon.controller import get_daemon_statuses
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import QueuedRunCoordinatorDaemon
from dagster._utils.interrupts import setup_interrupt_handlers
from dagster._utils.log import configure_loggers

__all__ = [
    "INDEX_SHARD_NAME",
    "SINGLETON_REPOSITORY_NAME",
    "SQLITE_BUSY_TIMEOUT_SECONDS",
    "AssetCheckExecutionsTable",
    "AssetEventTagsTable",
    "AssetKeyTable",
    "CodeLocation",
    "CodeLocationOrigin",
    "DefaultRunLauncher",
    "InMemoryJob",
    "InMemoryRunStorage",
    "InstanceRef",
    "ProxyServerManager",
    "QueuedRunCoordinator",
    "QueuedRunCoordinatorDaemon",
    "ReconstructableJob",
    "RemoteRepositoryOrigin",
    "SqlEventLogStorage",
    "SqlEventLogStorageTable",
    "SqliteEventLogStorage",
    "SqliteRunStorage",
    "WorkspaceFileTarget",
    "WorkspaceProcessContext",
    "compute_logs",
    "configure_loggers",
    "execute_run",
    "get_daemon_statuses",
    "location_origins_from_yaml_paths",
    "setup_interrupt_handlers",
]
