"""Private names of Dagster for its daemon and queue."""

from dagster._core.run_coordinator import QueuedRunCoordinator
from dagster._daemon.controller import get_daemon_statuses
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import QueuedRunCoordinatorDaemon

__all__ = [
    "QueuedRunCoordinator",
    "QueuedRunCoordinatorDaemon",
    "get_daemon_statuses",
]
