"""The project as each step opens it, the reporter of a step's progress, and resources for assets of other projects."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import duckdb

from eval_dagster.assets.instance.instance_store import lock_database
from eval_dagster.lake.catalog.catalog import connect
from eval_dagster.lake.files import Lake
from eval_dagster.progress.reporting import CombinedReporter, LogReporter, Reporter, current_reporter
from eval_dagster.project import Project
from eval_dagster.texts.visible_text import visible

if TYPE_CHECKING:
    import mlflow

_LIBRARY = logging.getLogger("eval_dagster")


class _Forwarder(logging.Handler):
    def __init__(self, log: logging.Logger) -> None:
        super().__init__(logging.INFO)
        self._run_log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._run_log.log(record.levelno, visible(self.format(record)))


@contextmanager
def library_log(log: logging.Logger) -> Iterator[None]:
    """Forward the library's lines, from INFO upwards, to `log` within the block.

    The step adds its own handler, so that nothing in the user's dagster.yaml is needed.
    """
    forwarder, level = _Forwarder(log), _LIBRARY.level
    _LIBRARY.addHandler(forwarder)
    _LIBRARY.setLevel(logging.INFO)
    try:
        yield
    finally:
        _LIBRARY.removeHandler(forwarder)
        _LIBRARY.setLevel(level)


@dataclass(frozen=True, kw_only=True)
class ProjectFile:
    """The evals, models and suites of an evals.yaml with the home of their results. Each step and each sensor reads the file anew."""

    config_path: str
    """Path of evals.yaml."""
    home: str
    """Folder of all state."""
    key_prefix: tuple[str, ...] = ()
    """The prefix of the names in Dagster."""

    @classmethod
    def of(cls, project: Project) -> "ProjectFile":
        """The file of a project."""
        return cls(config_path=str(project.config_path), home=str(project.home), key_prefix=project.config.dagster.key_prefix)

    def open(self, instance: dg.DagsterInstance | None = None) -> Project:
        """Open the project. If the instance has its storage in PostgreSQL, the project's locks are there, too."""
        project = Project.open(config_path=Path(self.config_path), home=Path(self.home), key_prefix=self.key_prefix)
        address = None if instance is None else lock_database(instance)
        return project.sharing_locks(address) if address else project


class ResultsResource(dg.ConfigurableResource[duckdb.DuckDBPyConnection]):
    """The results of a home, for assets of your own. They can only be read: no statement writes a file or opens another one."""

    home: str
    """The folder of the results."""

    def connect(self) -> duckdb.DuckDBPyConnection:
        """Open the relations that `eval-dagster sql` queries. Close the connection, or use it in a `with` statement.

        Raises:
            QueryError: Nothing has been evaluated there yet, or the catalog cannot be read.
        """
        return connect(Lake(Path(self.home).resolve()))


class MlflowResource(dg.ConfigurableResource["mlflow.MlflowClient"]):
    """The runs of a project in MLflow, for assets of your own."""

    config_path: str
    """Path of evals.yaml."""

    def client(self) -> "mlflow.MlflowClient":
        """A client of the store that holds the project's runs. Raises TrackingError if it cannot be opened."""
        from mlflow import MlflowClient  # imported lazily: slow

        return MlflowClient(Project.open(config_path=Path(self.config_path)).tracker.prepare())


_LEAST_S = 1.0
"""Seconds of work that has a line in the log of a run. Each line is an event in Dagster's database."""


def reporter_for(context: dg.AssetExecutionContext | dg.OpExecutionContext) -> Reporter:
    """Reports progress to the starter of the run, and as lines in its log."""
    return CombinedReporter(current_reporter(), LogReporter(context.log.info, least_s=_LEAST_S))
