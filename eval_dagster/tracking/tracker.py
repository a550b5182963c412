"""Results as MLflow runs: parameters, overall metrics, the dataset, and tables of all metrics and of samples.

All calls use a separate client, so that the current store and run of the process do not change.
"""

import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast
from urllib.parse import unquote, urlsplit
from weakref import WeakValueDictionary

from eval_dagster.addresses import Addresses, shown_address, without_secrets
from eval_dagster.errors import LockLostError, RequirementError, StoreError, TrackingError
from eval_dagster.stores.locks import Hold, SharedLocks, repeated
from eval_dagster.tracking.logged_runs import NAMED_TAG, RESULT_KEY_TAG, LoggedRun, logged_run
from eval_dagster.tracking.own_runs import OwnRuns
from eval_dagster.tracking.process import ProcessEndedError, TrackerProcess
from eval_dagster.tracking.store import (
    artifacts_of,
    ensure_store,
    forget_connections,
    heal_store,
    identity_of,
    one_session,
    quiet,
    store_file,
    with_driver,
)
from eval_dagster.tracking.tracked_result import (
    MOST_CHARACTERS,
    TrackedResult,
    complete_run,
    creation_tags,
    long_names,
    place_of,
    tracked_text,
    write_metrics,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run, RunInfo

P = ParamSpec("P")
T = TypeVar("T")

UI_VARIABLE = "EVAL_DAGSTER_MLFLOW_UI"
"""Environment variable: the address of the MLflow UI for browsers."""

_ABANDONED_S = 3600.0
_MOST_ABANDONED = 100
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_NEW_S = 12 * 3600.0
"""`gc` deletes no run of the last day. A run that is younger than half of it is safe without a mark."""
_MOST_LAST = 1000
"""Runs of results that are known: a night logs a page, and later a picture, to each."""
_PAGE = 500
"""Runs that are listed in one query."""


_processes: WeakValueDictionary[tuple[object, ...], TrackerProcess] = WeakValueDictionary()
"""The processes that write, by process, home, store and experiment."""


class Tracker:
    """Writes results to one MLflow experiment.

    Each method raises `TrackingError` if MLflow cannot be reached or refuses something, or if the run is unknown.
    """

    def __init__(
        self,
        *,
        home: Path,
        tracking_uri: str | None,
        experiment: str,
        locks: SharedLocks | None = None,
        addresses: Addresses | None = None,
    ) -> None:
        """Set the store, which is opened when it is needed.

        Args:
            home: Folder with `mlflow.db`, `mlartifacts` and the lock.
            tracking_uri: A server or a database instead of the home's own `mlflow.db`.
            experiment: Name of the experiment, which is created if needed.
            locks: The locks of the home; by default this machine's.
            addresses: Where browsers reach MLflow; servers that run on the home by default.
        """
        self._make = partial(Tracker, home=home, tracking_uri=tracking_uri, experiment=experiment, locks=locks, addresses=addresses)
        self._key = (os.getpid(), str(home.resolve()), tracking_uri, experiment)
        self._process: TrackerProcess | None = None
        self.may_begin = False
        """Whether results will be logged, so that it is worth while to begin."""
        self._is_over = threading.Event()
        self._home = home.resolve()
        self._locks = locks or SharedLocks(self._home)
        self._addresses = addresses or Addresses(home=self._home)
        self._uri = with_driver(tracking_uri) if tracking_uri else f"sqlite:///{self._home / 'mlflow.db'}"
        self._file = store_file(tracking_uri) if tracking_uri else self._home / "mlflow.db"
        self._experiment = experiment
        self._opened: tuple[int, int] | None = None
        """The store's file when it was opened."""
        self._is_swept = False
        self._own_runs = OwnRuns(self._file if self.own_file else None)
        self._last: dict[str, RunInfo] = {}
        """The runs of the last results. Their pages are logged next, for which MLflow would read the runs again."""

    def begin(self) -> None:
        """Let another process write from now on, since MLflow's import takes seconds. Not if this one has imported it already.

        Trackers of the same store share it.
        """
        if self._aside() is None and "mlflow" not in sys.modules:
            with suppress(Exception):  # whatever hinders it, this process can write
                self._process = _processes[self._key] = TrackerProcess(self._make)

    def close(self) -> None:
        """End the other process after its call."""
        if (process := self._aside()) is not None:
            self._forget_process()
            process.close()

    def stop(self) -> None:
        """Begin nothing more: what waits for a lock fails."""
        self._is_over.set()

    def _aside(self) -> TrackerProcess | None:
        self._process = self._process or _processes.get(self._key)
        return self._process

    def _forget_process(self) -> None:
        _processes.pop(self._key, None)
        self._process = None

    def begin_log(self, result: TrackedResult) -> Callable[[], str]:
        """Begin `log` in the other process, if there is one, and give what waits for its value."""
        return self._begun(self._log, result)

    def log(self, result: TrackedResult) -> str:
        """Make sure that a result is tracked, and return its MLflow run id.

        A finished run with the same key stays as it is; an unfinished one, which a killed process left, is completed. Processes of the
        same home take turns, and so do machines with the same database of locks, so that a key has one run.
        """
        return self.begin_log(result)()

    def _log(self, result: TrackedResult) -> str:
        def write() -> str:
            client = self._client
            from mlflow.exceptions import MlflowException

            with self._lock(result.result_key):
                self._end_abandoned(result.result_key)
                _ = self._experiment_id  # which several processes may create, each in a transaction of its own
                with one_session(client) as commit:
                    try:
                        run = self._run(result.result_key, result.run_name, creation_tags(result))
                    except MlflowException:  # a server may refuse a tag; without it the run can be made, and `complete_run` names it
                        run = self._run(result.result_key, result.run_name, {})
                    commit()  # a run without tables can be completed; nothing would delete tables without a run
                    if run.info.status != "FINISHED":
                        complete_run(client, run, result)
                    elif time.time() - logged_run(run).time.timestamp() > _NEW_S:  # so that `gc` spares it until a file names it
                        client.set_tag(run.info.run_id, NAMED_TAG, str(time.time_ns() // 1_000_000))
                self._last[run.info.run_id] = run.info
                if len(self._last) > _MOST_LAST:
                    del self._last[next(iter(self._last))]
                return str(run.info.run_id)

        with self._failures(f"log {result.run_name!r}"):
            return self._healing(lambda: repeated(write))

    def log_file(self, run_id: str, path: Path) -> None:
        """Add a file to a run, or replace the one of the same name."""
        self.begin_log_file(run_id, path)()

    def begin_log_file(self, run_id: str, path: Path) -> Callable[[], None]:
        """Begin `log_file` in the other process, if there is one, and give what waits for its end."""
        return self._begun(self._log_file, run_id, path)

    def _log_file(self, run_id: str, path: Path) -> None:
        with self._failures(f"add {path.name} to run {run_id}"):
            if (known := self._last.get(run_id)) is not None:
                place_of(known, str(self._client.tracking_uri)).log_artifact(str(path))  # type: ignore[no-untyped-call]
            else:
                self._client.log_artifact(run_id, str(path))

    def log_page(
        self, path: Path, *, key: str, run_name: str, tags: Mapping[str, str], metrics: Mapping[str, float | None] | None = None
    ) -> str:
        """Make sure that a page has its own run, and return the MLflow run id.

        Args:
            path: The page, which replaces one of the same name in the run.
            key: Identifies the page and its run. Contains no quotes.
            run_name: Name of the run in the MLflow UI.
            tags: Tags of the run.
            metrics: Metrics of the run. Missing and infinite values are left out. Names can be any text.
        """
        return self._begun(self._log_page, path, key, run_name, dict(tags), dict(metrics or {}))()

    def _log_page(self, path: Path, key: str, run_name: str, tags: Mapping[str, str], metrics: Mapping[str, float | None]) -> str:
        def write() -> str:
            client = self._client
            with self._lock(key):
                self._end_abandoned(key)
                run = self._run(key, run_name, {**tags, **long_names(metrics)})
                run_id = str(run.info.run_id)
                write_metrics(client, run, metrics)
                client.log_artifact(run_id, str(path))
                client.set_terminated(run_id, "FINISHED")
                return run_id

        with self._failures(f"log {run_name!r}"):
            return self._healing(lambda: repeated(write))

    def logged(self) -> list[LoggedRun]:
        """The runs of results and reports in the experiment, and those in MLflow's trash if they can be deleted for good.

        No store is created.
        """
        if self._file is not None and not self._file.is_file():
            return []
        with self._failures("list its runs"):
            from mlflow.entities import ViewType

            client, token, found = self._client, None, []
            experiment = client.get_experiment_by_name(self._experiment)
            view = ViewType.ACTIVE_ONLY if self.is_server else ViewType.ALL
            while experiment is not None:
                page = client.search_runs([experiment.experiment_id], f"tags.`{RESULT_KEY_TAG}` != ''", view, _PAGE, page_token=token)
                found += [logged_run(run) for run in page]
                token = page.token
                if not token:
                    break
            return found

    def delete(self, run: LoggedRun) -> bool:
        """Delete a run with its artifacts. A server has no call that removes a run for good: there it is marked as deleted.

        It may be repeated after a killed process. Returns False, and deletes nothing, if a new result got the run since it was listed.
        """
        with self._failures(f"delete run {run.run_id}"), self._lock(run.key):
            client = self._client
            known = client.get_run(run.run_id)
            if logged_run(known).time > run.time:
                return False
            if not self.is_server and known.info.lifecycle_stage == "active":
                client.delete_run(run.run_id)  # first, so that no result gets a run without artifacts
            if run.folder is None or run.folder.is_dir():
                place_of(known.info, str(client.tracking_uri)).delete_artifacts()  # type: ignore[no-untyped-call]
            if run.folder is not None:
                with suppress(OSError):  # other files are there
                    run.folder.parent.rmdir()
            if self.is_server:
                client.delete_run(run.run_id)
            else:
                client._tracking_client.store._hard_delete_run(run.run_id)
            return True

    @property
    def own_file(self) -> Path | None:
        """The home's own store. None if runs go to another one, where other projects may log."""
        return self._file if self._file == self._home / "mlflow.db" else None

    def prepare(self) -> str:
        """Create the store if needed, and return its address."""
        with self._failures("open its store"):
            client = self._client
            with self._lock("store"):
                _ = self._experiment_id
            return str(client.tracking_uri)

    def exists(self, run_id: str) -> bool:
        """Whether a run exists and is not deleted. No store is created."""
        if self._file is not None and not self._file.is_file():
            return False
        with self._failures(f"look for run {run_id}"):
            found = self._run_facts(run_id)
            return found is not None and found[1] == "active"

    def run_link(self, run_id: str, *, public: bool = False) -> str | None:
        """The address of a run in the MLflow UI; None if the address of the UI is not known.

        `EVAL_DAGSTER_MLFLOW_UI` sets the address of the UI. With `public`, an address that only this machine can reach does not count.
        """
        with self._failures(f"link to run {run_id}"):
            found = self._run_facts(run_id)
            if found is None:
                raise TrackingError(f"MLflow at {self.shown_uri} has no run {run_id}")
            base = self.page(public=public)
            return f"{base}/#/experiments/{found[0]}/runs/{run_id}" if base else None

    def page(self, *, public: bool = False) -> str | None:
        """The address of the MLflow UI for browsers, as in `run_link`: the set one, the server's, or of a server that runs on the home."""
        addresses = self._addresses.everywhere() if public else self._addresses
        known = os.environ.get(UI_VARIABLE) or self._addresses.public.get("mlflow")
        found = known or (shown_address(self._uri).replace("//***@", "//") if self.is_server else addresses.of("mlflow"))
        return found.rstrip("/") if found else None

    @property
    def is_server(self) -> bool:
        """Whether runs go to a tracking server, which has its own UI, and not to a store."""
        return urlsplit(self._uri).scheme in ("http", "https")

    @property
    def shown_uri(self) -> str:
        """The address of store or server, without a user and a password."""
        return shown_address(self._uri)

    @cached_property
    def _client(self) -> "MlflowClient":
        # Without these variables, MLflow would send usage data to its makers and print links into a command's output.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        # imported lazily: slow to import
        from mlflow import MlflowClient

        if self.is_server:
            import requests  # which MLflow imports, too

            # To fail within seconds: MLflow would retry for minutes if a server is down. As MLflow asks: a user and a password of the
            # address are sent as such.
            requests.get(f"{self._uri.rstrip('/')}/health", timeout=10, stream=True).close()
        if self._file is not None:
            ensure_store(self._file)
        # Processes that open a new database at the same time would all create its tables, and fail.
        with self._lock("store"), quiet():
            client = MlflowClient(tracking_uri=self._uri)
            self._opened = identity_of(self._file)
            return client

    def _begun(self, method: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> Callable[[], T]:
        """Begin a method in the other process, and give what waits for its value. It is called here if there is none, or it is killed."""
        here = partial(method, *arguments, **named)
        process = self._aside()
        if process is None:
            return here
        call = process.call(method.__name__, *arguments, **named)

        def value() -> T:
            try:
                return cast(T, call.result())
            except ProcessEndedError:
                self._forget_process()
                return here()

        return value

    def _healing(self, action: Callable[[], str]) -> str:
        """The result of an action, which is repeated if it fails because of damage in the store."""
        try:
            return action()
        except (LockLostError, StoreError):
            raise
        except Exception:
            if self._file is None or not heal_store(self._file):
                raise
            self._reopen(self._file)
            return action()

    def _reopen(self, file: Path) -> None:
        forget_connections(file)
        for name in ("_client", "_experiment_id"):
            self.__dict__.pop(name, None)
        self._last.clear()

    def _end_abandoned(self, key: str) -> None:
        """Mark runs as killed whose process was killed while it wrote them, once in a process. Who logs one again completes it.

        The home's own store has one lock on one machine, so that no other run can be at work. Elsewhere runs count that began an hour ago.
        """
        if self._is_swept:
            return
        self._is_swept = True
        now, is_alone = time.time(), not self._locks.across_machines
        try:
            with self._own_runs.database() as database:
                found = database.execute(
                    "select run_uuid from runs join tags using (run_uuid) where status = 'RUNNING' and experiment_id = ? and key = ? "
                    "and value != ? and start_time < ?",
                    [self._experiment_id, RESULT_KEY_TAG, key, int((now - (0 if is_alone else _ABANDONED_S)) * 1000)],
                ).fetchall()
            abandoned = [str(run_id) for (run_id,) in found]
        except (FileNotFoundError, sqlite3.Error):  # a server or another database
            query = f"attributes.status = 'RUNNING' and attributes.start_time < {int((now - _ABANDONED_S) * 1000)}"
            running = self._client.search_runs([self._experiment_id], query, max_results=_MOST_ABANDONED)
            abandoned = [run.info.run_id for run in running if run.data.tags.get(RESULT_KEY_TAG, key) != key]
        for run_id in abandoned:
            self._client.set_terminated(run_id, "KILLED")

    @contextmanager
    def _lock(self, key: str) -> Iterator[Hold]:
        """Hold the lock of one result. Without a database, all results have one lock, as the store is one file."""
        with self._locks.hold(f"mlflow {self._experiment} {key}", file="mlflow.lock") as hold:
            if self._is_over.is_set():
                raise TrackingError("the evaluation has ended")
            yield hold

    @contextmanager
    def _failures(self, what: str) -> Iterator[None]:
        try:
            # A home that was deleted or restored has another file, and a connection to the old one would fail, or lose what it writes.
            if self._file is not None and "_client" in self.__dict__ and self._opened != identity_of(self._file):
                self._reopen(self._file)
            yield
        except TrackingError:
            raise
        except (LockLostError, RequirementError, StoreError) as error:
            raise TrackingError(str(error)) from error
        except ModuleNotFoundError as error:
            raise TrackingError(
                f"MLflow at {self.shown_uri} needs the package {error.name}, which is not installed; "
                "install it: pip install 'eval_dagster[postgres]' has what PostgreSQL needs"
            ) from error
        # MLflow raises errors of its database driver, of HTTP and of the file system. None of them may cost a result.
        except Exception as error:
            reason = without_secrets((str(error).strip() or "no message").splitlines()[0], self._uri)
            # The error's own text may hold a password, and Dagster keeps the texts of causes.
            cause = error if self.shown_uri == self._uri else None
            raise TrackingError(f"MLflow at {self.shown_uri} could not {what}: {type(error).__name__}: {reason}") from cause

    @cached_property
    def _experiment_id(self) -> str:
        experiment = self._client.get_experiment_by_name(self._experiment)
        if experiment is None:
            is_database = urlsplit(self._uri).scheme.split("+")[0] in _DATABASES
            location = artifacts_of(self._home / "mlflow.db") if is_database else None
            from mlflow.exceptions import MlflowException

            try:
                return str(self._client.create_experiment(self._experiment, artifact_location=location))
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":  # the lock of a result does not keep others from creating it
                    raise
                return self._experiment_id
        if experiment.lifecycle_stage != "active":
            raise TrackingError(
                f"MLflow at {self.shown_uri} holds the experiment {self._experiment!r} as deleted; restore it with "
                f"`mlflow experiments restore --experiment-id {experiment.experiment_id}`, or set mlflow.experiment in evals.yaml"
            )
        artifacts = urlsplit(str(experiment.artifact_location))
        if artifacts.scheme == "file":
            folder = Path(unquote(artifacts.path))
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise TrackingError(
                    f"MLflow at {self.shown_uri} keeps the artifacts of the experiment {self._experiment!r} in {folder}, which cannot be "
                    f"made ({error.strerror}); it was set when the experiment was made. Make that folder, or set mlflow.experiment in "
                    "evals.yaml to a new name"
                ) from error
        return str(experiment.experiment_id)

    def _run(self, key: str, name: str, tags: Mapping[str, str]) -> "Run":
        """The run of a key, which is created if needed."""
        experiment_id = self._experiment_id
        try:
            with self._own_runs.database() as database:
                oldest = database.execute(
                    "select run_uuid from tags join runs using (run_uuid) where key = ? and value = ? and experiment_id = ? "
                    "and lifecycle_stage = 'active' order by start_time limit 1",
                    [RESULT_KEY_TAG, key, experiment_id],
                ).fetchone()
            run = oldest and self._client.get_run(str(oldest[0]))
        except (FileNotFoundError, sqlite3.Error):  # a server or another database
            query = f"tags.`{RESULT_KEY_TAG}` = '{key}'"
            run = next(iter(self._client.search_runs([experiment_id], query, max_results=1, order_by=["attributes.start_time ASC"])), None)
        if run:
            return run
        name = tracked_text(name)[:MOST_CHARACTERS]
        return self._client.create_run(experiment_id, tags={**tags, RESULT_KEY_TAG: key}, run_name=name)

    def _run_facts(self, run_id: str) -> tuple[str, str] | None:
        """The experiment of a run, and `active` or `deleted`; None if the run is unknown."""
        try:
            return self._own_runs.facts(run_id)
        except (FileNotFoundError, sqlite3.Error):  # a server or another database, no store yet, or tables of another MLflow
            pass
        return self._begun(self._facts_by_client, run_id)()

    def _facts_by_client(self, run_id: str) -> tuple[str, str] | None:
        with self._failures(f"look for run {run_id}"):
            from mlflow.exceptions import MlflowException

            try:
                info = self._client.get_run(run_id).info
            except MlflowException as error:
                if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                    return None
                raise
            return str(info.experiment_id), str(info.lifecycle_stage)
