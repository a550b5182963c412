"""Ends runs whose process was killed. Dagster would count them as running for ever, and they would block the queue."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
from sqlalchemy.exc import DatabaseError

from eval_dagster.assets.instance_store import events_file, keep_aside
from eval_dagster.assets.tags import HOME_TAG, home_tags
from eval_dagster.locks import locked
from eval_dagster.sqlite_files import damage_of

_SETTLED_S = 2.0
"""A younger lock file may not be locked yet."""
_LOST_S = 900.0
"""A run without a lock for this long has died; its start and its end take seconds."""
_SUSPECT = ".lost"
_held: set[Path] = set()
"""Locks of runs that this process holds."""


@contextmanager
def alive(home: Path, run_id: str) -> Iterator[None]:
    """Hold a lock within the block. The operating system releases it when the process dies.

    Nested blocks of the same process for the same run do nothing.
    """
    path = _folder(home) / run_id
    if path in _held:
        yield
        return
    with locked(path):
        _held.add(path)
        try:
            yield
        finally:
            _held.discard(path)
            path.unlink(missing_ok=True)


@contextmanager
def at_work(context: dg.OpExecutionContext, home: Path) -> Iterator[None]:
    """Mark a run as one of a home, and as alive within the block.

    Runs of chosen assets that start on Dagster's pages do not have the tags of a job.
    """
    if HOME_TAG not in context.run.tags:
        context.instance.add_run_tags(context.run_id, home_tags(home))
    with alive(home, context.run_id):
        yield


def end_dead_runs(instance: dg.DagsterInstance, home: Path) -> list[str]:
    """Mark runs of a home as failed if no process holds their lock. Returns their ids.

    Runs of other homes have their locks elsewhere, and do not change.
    """
    folder = _folder(home)
    _suspect(instance, home)
    ended: list[str] = []
    for path in sorted(folder.glob("*")):
        patience = _LOST_S if path.suffix == _SUSPECT else _SETTLED_S
        if time.time() - path.stat().st_mtime < patience or not _is_abandoned(path):
            continue
        run = instance.get_run_by_id(path.stem)
        if run is not None and not run.is_finished:
            _report_killed(instance, run)
            ended.append(run.run_id)
        path.unlink(missing_ok=True)
    return ended


def _report_killed(instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
    message = "The process of this run was killed. The answers that it had flushed are kept."
    try:
        instance.report_run_failed(run, message)
    except DatabaseError:
        events = events_file(Path(instance.root_directory), run.run_id)
        damage = damage_of(events, lambda _: None, thorough=True)
        if damage is None:
            raise
        keep_aside(events, damage)
        instance.report_run_failed(run, message)


def _suspect(instance: dg.DagsterInstance, home: Path) -> None:
    """Note the runs of a home that are at work and have no lock: a process can be killed before it takes the lock or after it releases it.

    A run that starts on Dagster's pages has the tag of its home only when its step works. If it is killed earlier it is not ended here,
    since it may belong to another project on the instance; end it in the UI.
    """
    folder = _folder(home)
    statuses = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
    working = {run.run_id for run in instance.get_runs(dg.RunsFilter(statuses=statuses, tags=home_tags(home)))}
    lockless = {run_id for run_id in working if not (folder / run_id).exists()}
    for path in folder.glob(f"*{_SUSPECT}"):
        if path.stem not in lockless:
            path.unlink(missing_ok=True)
    for run_id in lockless:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{run_id}{_SUSPECT}").open("a").close()  # the time of an existing file does not change


def _is_abandoned(path: Path) -> bool:
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, FileNotFoundError):
        return False
    return True


def _folder(home: Path) -> Path:
    return home / "locks" / "runs"
