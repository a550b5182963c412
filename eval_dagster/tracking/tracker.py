"""Results as MLflow runs: parameters, overall metrics, the dataset, and tables of all metrics and of samples.

All calls use a separate client, so that the current store and run of the process do not change.
"""

import os
import re
import sqlite3
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from eval_dagster.errors import StoreError, TrackingError
from eval_dagster.locks import locked
from eval_dagster.tracking.names import MOST_CHARACTERS, tracked_text
from eval_dagster.tracking.store import ensure_store, forget_connections, heal_store, quiet, store_file
from eval_dagster.tracking.tracked_result import TrackedResult
from eval_dagster.tracking.tracked_run import complete_run

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

RESULT_KEY_TAG = "eval_dagster.result_key"
"""The tag that identifies a result's run."""
UI_VARIABLE = "EVAL_DAGSTER_MLFLOW_UI"
"""Environment variable: the address of the MLflow UI for browsers."""

_DEFAULT_UI = "http://127.0.0.1:5000"
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")


class Tracker:
    """Writes results to one MLflow experiment.

    Each method raises `TrackingError` if MLflow cannot be reached or refuses something, or if there is no such run.
    """

    def __init__(self, *, home: Path, tracking_uri: str | None, experiment: str) -> None:
        """Set the store, which is opened when it is needed.

        Args:
            home: Folder with `mlflow.db`, `mlartifacts` and the lock.
            tracking_uri: A server or a database instead of the home's own `mlflow.db`.
            experiment: Name of the experiment, which is created if needed.
        """
        self._home = home.resolve()
        self._uri = tracking_uri or f"sqlite:///{self._home / 'mlflow.db'}"
        self._file = store_file(tracking_uri) if tracking_uri else self._home / "mlflow.db"
        self._experiment = experiment

    def log(self, result: TrackedResult) -> str:
        """Make sure that a result is tracked, and return its MLflow run id.

        A finished run with the same key stays as it is; an unfinished one, which a killed process left, is completed. Processes of the
        same home take turns, so that a key has one run.
        """
        with self._failures(f"log {result.run_name!r}"):
            return self._healing(lambda: self._log(result))

    def log_file(self, run_id: str, path: Path) -> None:
        """Add a file to a run, or replace the one of the same name."""
        with self._failures(f"add {path.name} to run {run_id}"):
            self._client.log_artifact(run_id, str(path))

    def log_page(self, path: Path, *, key: str, run_name: str, tags: Mapping[str, str]) -> str:
        """Make sure that a page has its own run, and return the MLflow run id.

        Args:
            path: The page, which replaces one of the same name in the run.
            key: Identifies the page and its run. Contains no quotes.
            run_name: Name of the run in the MLflow UI.
            tags: Tags of the run.
        """
        with self._failures(f"log {run_name!r}"):
            return self._healing(lambda: self._log_page(path, key, run_name, tags))

    def prepare(self) -> str:
        """Create the store if needed, and return its address."""
        with self._failures("open its store"):
            client = self._client
            with self._lock():
                self._experiment_id()
            return str(client.tracking_uri)

    def exists(self, run_id: str) -> bool:
        """Whether a run exists and is not deleted."""
        with self._failures(f"look for run {run_id}"):
            found = self._run_facts(run_id)
            return found is not None and found[1] == "active"

    def run_link(self, run_id: str) -> str:
        """The address of a run in the MLflow UI, whose own address `EVAL_DAGSTER_MLFLOW_UI` can set."""
        with self._failures(f"link to run {run_id}"):
            found = self._run_facts(run_id)
            if found is None:
                raise TrackingError(f"MLflow at {self.shown_uri} has no run {run_id}")
            base = os.environ.get(UI_VARIABLE) or (re.sub("//[^/@]*@", "//", self._uri) if self.is_server else _DEFAULT_UI)
            return f"{base.rstrip('/')}/#/experiments/{found[0]}/runs/{run_id}"

    @property
    def is_server(self) -> bool:
        """Whether runs go to a tracking server, which has its own UI, and not to a store."""
        return urlsplit(self._uri).scheme in ("http", "https")

    @property
    def shown_uri(self) -> str:
        """The address of store or server, without a password."""
        return re.sub(r"//[^/@]*@", "//***@", self._uri)

    @cached_property
    def _client(self) -> "MlflowClient":
        # Without these variables, MLflow would send usage data to its makers and print links into a command's output.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        # imported lazily: slow to import
        from mlflow import MlflowClient

        if self.is_server:
            _require_reachable(self._uri)
        if self._file is not None:
            ensure_store(self._file)
        # Processes that open a new database at the same time would all create its tables, and fail.
        with self._lock(), quiet():
            return MlflowClient(tracking_uri=self._uri)

    def _healing(self, action: Callable[[], str]) -> str:
        """The result of an action, which is repeated if it fails because of damage in the store."""
        try:
            return action()
        except StoreError:
            raise
        except Exception:
            if self._file is None or not heal_store(self._file):
                raise
            forget_connections(self._file)
            self.__dict__.pop("_client", None)
            return action()

    def _log(self, result: TrackedResult) -> str:
        client = self._client
        with self._lock():
            run = self._run(result.result_key, result.run_name, {})
            if run.info.status != "FINISHED":
                complete_run(client, run, result)
            return str(run.info.run_id)

    def _log_page(self, path: Path, key: str, run_name: str, tags: Mapping[str, str]) -> str:
        client = self._client
        with self._lock():
            run_id = str(self._run(key, run_name, tags).info.run_id)
            client.log_artifact(run_id, str(path))
            client.set_terminated(run_id, "FINISHED")
            return run_id

    def _lock(self) -> AbstractContextManager[None]:
        return locked(self._home / "mlflow.lock")

    @contextmanager
    def _failures(self, what: str) -> Iterator[None]:
        try:
            yield
        except TrackingError:
            raise
        except StoreError as error:
            raise TrackingError(str(error)) from error
        # MLflow raises errors of its database driver, of HTTP and of the file system. None of them may cost a result.
        except Exception as error:
            reason = (str(error).strip() or "no message").splitlines()[0]
            raise TrackingError(f"MLflow at {self.shown_uri} could not {what}: {type(error).__name__}: {reason}") from error

    def _experiment_id(self) -> str:
        experiment = self._client.get_experiment_by_name(self._experiment)
        if experiment is None:
            is_database = urlsplit(self._uri).scheme.split("+")[0] in _DATABASES
            location = (self._home / "mlartifacts").as_uri() if is_database else None
            return str(self._client.create_experiment(self._experiment, artifact_location=location))
        if experiment.lifecycle_stage != "active":
            raise TrackingError(
                f"MLflow at {self.shown_uri} holds the experiment {self._experiment!r} as deleted; restore it with "
                f"`mlflow experiments restore --experiment-id {experiment.experiment_id}`, or set mlflow.experiment in evals.yaml"
            )
        return str(experiment.experiment_id)

    def _run(self, key: str, name: str, tags: Mapping[str, str]) -> "Run":
        """The run of a key, which is created if needed."""
        experiment_id = self._experiment_id()
        found = self._client.search_runs(
            [experiment_id], f"tags.`{RESULT_KEY_TAG}` = '{key}'", max_results=1, order_by=["attributes.start_time ASC"]
        )
        if found:
            return found[0]
        name = tracked_text(name)[:MOST_CHARACTERS]
        return self._client.create_run(experiment_id, tags={**tags, RESULT_KEY_TAG: key}, run_name=name)

    def _run_facts(self, run_id: str) -> tuple[str, str] | None:
        """The experiment of a run, and `active` or `deleted`; None if there is no such run."""
        try:
            return self._read_run(run_id)
        except (FileNotFoundError, sqlite3.Error):  # a server or another database, no store yet, or tables of another MLflow
            pass
        from mlflow.exceptions import MlflowException

        client = self._client
        try:
            info = client.get_run(run_id).info
            return str(info.experiment_id), str(info.lifecycle_stage)
        except MlflowException as error:
            if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                return None
            raise

    def _read_run(self, run_id: str) -> tuple[str, str] | None:
        """`_run_facts` from the home's own database, without MLflow, whose import takes a third of the time of a run without new results.

        Raises:
            FileNotFoundError: Runs are not in this database, or it does not exist.
            sqlite3.Error: The database cannot be read.
        """
        file = self._home / "mlflow.db"
        if self._uri != f"sqlite:///{file}" or not file.is_file():
            raise FileNotFoundError(file)
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as database:
            row = database.execute("select experiment_id, lifecycle_stage from runs where run_uuid = ?", [run_id]).fetchone()
        return None if row is None else (str(row[0]), str(row[1]))


def _require_reachable(uri: str) -> None:
    """Fail within seconds: MLflow would retry for minutes if a server is down."""
    try:
        urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=10).close()  # noqa: S310 - http or https, as the caller checked
    except urllib.error.HTTPError:
        return
