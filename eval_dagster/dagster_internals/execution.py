"""Private names of Dagster for runs in this process."""

from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.definitions.repository_definition import SINGLETON_REPOSITORY_NAME
from dagster._core.execution import compute_logs
from dagster._core.execution.api import execute_run

__all__ = [
    "SINGLETON_REPOSITORY_NAME",
    "InMemoryJob",
    "compute_logs",
    "execute_run",
]
