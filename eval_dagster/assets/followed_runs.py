"""Follows runs of other processes until they end, by what Dagster records of them."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import dagster as dg

from eval_dagster.assets.run_summaries import RunEvents
from eval_dagster.assets.tags import MODEL_TAG

_POLL_S = 1.0
_EVERY_S = 10.0
"""Interval of a run's lines of progress."""
_PAGE = 1000
_TELLING = {
    dg.DagsterEventType.ASSET_MATERIALIZATION,
    dg.DagsterEventType.ENGINE_EVENT,
    dg.DagsterEventType.RUN_FAILURE,
    dg.DagsterEventType.STEP_FAILURE,
}
"""The events from which an outcome is read."""


@dataclass(kw_only=True)
class Followed:
    """A run, and how far its log has been read."""

    run_id: str
    name: str
    """Its name in lines of progress."""
    status: dg.DagsterRunStatus | None = None
    cursor: str | None = None
    told_at: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, run: dg.DagsterRun) -> "Followed":
        """A run that is named by its model."""
        return cls(run_id=run.run_id, name=run.tags.get(MODEL_TAG, run.job_name))


def follow(instance: dg.DagsterInstance, runs: Sequence[Followed], tell: Callable[[str], None]) -> list[RunEvents]:
    """Wait until all runs have ended, and return their events.

    Changes of their status, warnings, errors, and a line of progress every few seconds are shown by `tell`.
    """
    waiting = list(runs)
    while waiting:
        found = {run.run_id: run for run in instance.get_runs(dg.RunsFilter(run_ids=[each.run_id for each in waiting]))}
        for each in waiting:
            run = found.get(each.run_id)
            _tell_log(instance, each, tell)
            if run is not None and run.status is not each.status:
                each.status = run.status
                tell(f"{each.name}: {run.status.value.lower()} ({each.run_id[:8]})")
        waiting = [each for each in waiting if each.run_id in found and not found[each.run_id].is_finished]
        if waiting:
            time.sleep(_POLL_S)
    return [_events(instance, each.run_id) for each in runs]


def _tell_log(instance: dg.DagsterInstance, run: Followed, tell: Callable[[str], None]) -> None:
    """Show the warnings and errors that a run has logged since the last look, and its last line of progress if it is time for one."""
    progress = ""
    while True:
        page = instance.get_records_for_run(run.run_id, cursor=run.cursor, limit=_PAGE)
        run.cursor = page.cursor
        for record in page.records:
            entry = record.event_log_entry
            if entry.dagster_event is not None:
                continue
            level = entry.level if isinstance(entry.level, int) else logging.INFO
            if level >= logging.WARNING:
                tell(f"{run.name}: {entry.user_message}")
            elif level >= logging.INFO:
                progress = entry.user_message
        if not page.has_more:
            break
    now = time.monotonic()
    if progress and now - run.told_at >= _EVERY_S:
        run.told_at = now
        tell(f"{run.name}: {progress}")


def _events(instance: dg.DagsterInstance, run_id: str) -> RunEvents:
    run = instance.get_run_by_id(run_id)
    events = [entry.dagster_event for entry in instance.all_logs(run_id, of_type=_TELLING) if entry.dagster_event]
    if run is None:
        return RunEvents(run_id=run_id, succeeded=False, events=events, in_process=False)
    return RunEvents(run_id=run_id, succeeded=run.status is dg.DagsterRunStatus.SUCCESS, events=events, in_process=False)
