"""Ends runs whose process was killed. Dagster would count them as running for ever, and they would block the queue.

This sees the processes of its own machine. Runs that Dagster's launchers start on other machines are ended by Dagster's run monitoring.
"""

import fcntl
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import dagster as dg
from sqlalchemy.exc import DatabaseError

from eval_dagster.assets.instance.instance_store import events_file, is_shared, keep_aside, kept_connections
from eval_dagster.assets.tags import MACHINE_TAG, home_tags
from eval_dagster.dagster_internals.instances import DefaultRunLauncher
from eval_dagster.lake.files import Lake
from eval_dagster.lake.records import add_attempts
from eval_dagster.lake.tables.events import Attempt
from eval_dagster.stores.locks import locked
from eval_dagster.stores.sqlite_files import damage_of
from eval_dagster.users_code import Death, Place, deaths, record_in, recorded

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_SETTLED_S = 2.0
"""A younger lock file may not be locked yet."""
_LOST_S = 900.0
"""A run without a lock for this long has died; its start and its end take seconds."""
_SUSPECT = ".lost"
_KILLED = "The process of this run was killed"
_ENDED = "The process ended or was killed"
_held: set[Path] = set()
"""Locks of runs that this process holds."""


def place_of(folder: Path) -> str:
    """The name of this machine, its start, and an existing folder: `<name> <boot> <device>:<inode>`.

    Containers of one host have names of their own, and share the kernel. Those that mount one folder respect each other's locks there.
    """
    facts = folder.stat()
    return f"{socket.gethostname()} {_boot()} {facts.st_dev}:{facts.st_ino}"


def sees_locks_of(place: str, folder: Path) -> bool:
    """Whether a lock that was taken at a place shows in a folder of this process, or ended with an earlier start of this machine."""
    if not place:
        return True
    name, boot, _ = place.split(" ", 2)
    own_name, own_boot, _ = (own := place_of(folder)).split(" ", 2)
    return own.partition(" ")[2] == place.partition(" ")[2] if boot == own_boot else name == own_name


@cache
def _boot() -> str:
    return _BOOT.read_text().strip() if _BOOT.exists() else "unknown"


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
        path.write_text(place_of(path.parent), "utf-8")
        _held.add(path)
        try:
            with recorded(_record_of(home, run_id), run_id):
                yield
        finally:
            _held.discard(path)
            path.unlink(missing_ok=True)


@contextmanager
def at_work(context: dg.OpExecutionContext, home: Path) -> Iterator[None]:
    """Mark a run as one of a home, and as alive within the block.

    Runs of chosen assets that start on Dagster's pages do not have the tags of a job.
    """
    own = {**home_tags(home), MACHINE_TAG: run_place(home)}
    missing = {name: value for name, value in own.items() if name not in context.run.tags}
    if missing:
        context.instance.add_run_tags(context.run_id, missing)
    with alive(home, context.run_id), kept_connections(context.instance):
        yield


def end_dead_runs(instance: dg.DagsterInstance, home: Path) -> list[str]:
    """Mark runs of a home as failed if no process holds their lock. Returns their ids.

    Runs of other homes have their locks elsewhere, and do not change; nor do runs of other machines.
    """
    folder = _folder(home)
    _suspect(instance, home)
    ended: list[str] = []
    known = {death.place.run_id: death for death in deaths()}
    for path in sorted(folder.glob("*")):
        patience = _LOST_S if path.suffix == _SUSPECT else 0.0 if path.stem in known else _SETTLED_S
        if time.time() - path.stat().st_mtime < patience and not _is_finished(instance, path):
            continue
        if not _is_abandoned(path, is_shared(instance)):
            _end_overdue(home, path)
            continue
        death = known.get(path.stem) or _death_in(home, path.stem)
        if death is not None and path.stem not in known:  # of a process that no command watched
            add_attempts(Lake(home), _attempts(death.place, path.stem, death.message))
        run = instance.get_run_by_id(path.stem)
        if run is not None and not run.is_finished:
            _report_killed(instance, run, death)
            ended.append(run.run_id)
        _record_of(home, path.stem).unlink(missing_ok=True)
        path.unlink(missing_ok=True)
    return ended


def _is_finished(instance: dg.DagsterInstance, path: Path) -> bool:
    """Whether Dagster knows that the run of a lock has ended: of a dead process it may learn first."""
    run = None if path.suffix == _SUSPECT else instance.get_run_by_id(path.stem)
    return run is not None and run.is_finished


def end_unstarted_runs(instance: dg.DagsterInstance, home: Path) -> None:
    """End the runs of a home whose process was about to start when the code server that starts them was killed.

    They would hold up the queue for a quarter of an hour. Runs that a launcher starts on other machines are left alone.
    """
    if not isinstance(instance.run_launcher, DefaultRunLauncher):
        return
    folder = _folder(home)
    for run in instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTING], tags=home_tags(home))):
        if _is_ours(instance, run, folder) and not (folder / run.run_id).exists():
            _report_killed(instance, run, None)


def _death_in(home: Path, run_id: str) -> Death | None:
    """How the process of a run ended that nobody waited for, if it wrote what it did."""
    record = record_in(_record_of(home, run_id))
    if record is None or not (place := record.place()).stage:
        return None
    return Death(place=place, how="when its time was over (code_timeout)" if record.is_stopped else "or was killed")


def _attempts(place: Place, run_id: str, message: str) -> list[Attempt]:
    """The failures that a process left in its place. If it worked on all evals of a model, all of them failed."""
    if place.model is None:
        return []  # no eval without a model is a row
    now = datetime.now(UTC)
    return [
        Attempt(
            eval=name, model=place.model, run_id=run_id, finished_at=now, status="failed", stage=place.stage, message=message, cached=False
        )
        for name in place.evals
    ]


def _end_overdue(home: Path, path: Path) -> None:
    """Kill the process of a run whose users' code takes longer than it may. A command that watches its own process does that itself."""
    record = record_in(_record_of(home, path.stem))
    if record is not None and 0 < record.deadline < time.monotonic() and path.read_text("utf-8") == place_of(path.parent):
        record.stop()
        with suppress(ProcessLookupError):
            os.kill(record.process, signal.SIGKILL)


def was_killed(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Whether a run failed because its process was killed."""
    if run.status is not dg.DagsterRunStatus.FAILURE:
        return False
    entries = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.RUN_FAILURE)
    return any((entry.dagster_event.message or "").startswith((_KILLED, _ENDED)) for entry in entries if entry.dagster_event)


def _report_killed(instance: dg.DagsterInstance, run: dg.DagsterRun, death: Death | None) -> None:
    message = _KILLED if death is None else death.message[0].upper() + death.message[1:]
    message += ". The answers that it had flushed are kept."
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
    folder.mkdir(parents=True, exist_ok=True)
    statuses = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
    working = {
        run.run_id for run in instance.get_runs(dg.RunsFilter(statuses=statuses, tags=home_tags(home))) if _is_ours(instance, run, folder)
    }
    lockless = {run_id for run_id in working if not (folder / run_id).exists()}
    for path in folder.glob(f"*{_SUSPECT}"):
        if path.stem not in lockless:
            path.unlink(missing_ok=True)
    for run_id in lockless:
        (folder / f"{run_id}{_SUSPECT}").open("a").close()  # the time of an existing file does not change


def run_place(home: Path) -> str:
    """The place of the locks of this process's runs."""
    folder = _folder(home)
    folder.mkdir(parents=True, exist_ok=True)
    return place_of(folder)


def _is_ours(instance: dg.DagsterInstance, run: dg.DagsterRun, folder: Path) -> bool:
    """Whether the process of a run is one of this machine.

    An instance with a database of its own may have launched it anywhere. Another one is of one machine, whose name and devices can change.
    """
    place = run.tags.get(MACHINE_TAG)
    return not is_shared(instance) or (place is not None and sees_locks_of(place, folder))


def _is_abandoned(path: Path, is_shared: bool) -> bool:
    """Whether no process holds the lock. Locks of other machines that share the instance are not seen here, so theirs count as held."""
    try:
        with path.open() as file:
            if is_shared and not sees_locks_of(file.read(), path.parent):
                return False
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, FileNotFoundError):
        return False
    return True


def _folder(home: Path) -> Path:
    return home / "locks" / "runs"


def _record_of(home: Path, run_id: str) -> Path:
    """The file in which the process of a run writes what it does."""
    folder = home / "locks" / "places"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / run_id
