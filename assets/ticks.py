"""The nights of a suite: which runs a tick of its schedule started, whether all have ended, and whether they were judged."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import dagster as dg

from assets.jobs import PLANNED_TAG, SINCE_TAG, SUITE_TAG, gate_job_name

_PATIENCE_S = 600.0
"""How long the rest of an interrupted tick, or the gate of one that is over, is waited for: the daemon resumes within seconds."""
_MOST_RUNS = 200
"""Runs of a suite that are looked at, the newest first."""


@dataclass(frozen=True, kw_only=True)
class Tick:
    """What one tick of a suite's schedule started."""

    suite: str
    since: str
    """The tick's time, as its runs are tagged."""
    planned: int
    """Runs that the tick asks for."""
    records: Sequence[dg.RunRecord]
    gate: dg.RunRecord | None
    """The run that judges the results, if it has been started."""

    @property
    def n_ended(self) -> int:
        """How many evaluations have ended, however they ended."""
        return sum(record.dagster_run.is_finished for record in self.records)

    @property
    def is_over(self) -> bool:
        """Whether all evaluations have ended; a daemon that is killed between one run and the next may never ask for the rest."""
        return self.n_ended == len(self.records) and (self.n_ended >= self.planned or self._is_settled)

    @property
    def awaits_gate(self) -> bool:
        """Whether the gate is about to be started."""
        return self.is_over and self.gate is None and not self._is_settled

    @property
    def _is_settled(self) -> bool:
        return time.time() - max(record.end_time or 0.0 for record in self.records) > _PATIENCE_S


def newest_tick(instance: dg.DagsterInstance, suite: str) -> Tick | None:
    """The last tick of a suite's schedule that started runs; None where there is none."""
    records = _records(instance, suite)
    newest = next((record.dagster_run.tags for record in records if PLANNED_TAG in record.dagster_run.tags), None)
    if newest is None:
        return None
    since = newest[SINCE_TAG]
    of_tick = [record for record in records if record.dagster_run.tags.get(SINCE_TAG) == since]
    return Tick(
        suite=suite,
        since=since,
        planned=int(newest[PLANNED_TAG]),
        records=[record for record in of_tick if PLANNED_TAG in record.dagster_run.tags],
        gate=next((record for record in of_tick if record.dagster_run.job_name == gate_job_name(suite)), None),
    )


def why_busy(instance: dg.DagsterInstance, suite: str, since: str) -> str | None:
    """Why a tick at `since` has to be left out: an earlier one, or somebody else's run of the suite, is not done.

    Runs of the tick itself are no reason: the daemon may have been killed in the middle of asking for them, and asks again.
    """
    others = [record.dagster_run for record in _records(instance, suite) if record.dagster_run.tags.get(SINCE_TAG) != since]
    unfinished = [run for run in others if not run.is_finished]
    if unfinished:
        runs = ", ".join(f"{run.job_name} {run.run_id[:8]} ({run.status.value.lower()})" for run in reversed(unfinished))
        return f"{len(unfinished)} runs of the suite {suite} have not ended: {runs}"
    tick = newest_tick(instance, suite)
    if tick is not None and tick.since != since and tick.awaits_gate:
        return f"the results of {tick.since} are about to be judged"
    return None


def evaluation_runs(instance: dg.DagsterInstance, suite: str, since: str) -> list[dg.DagsterRun]:
    """The runs of one evaluation of a suite that have ended, the oldest first, without its gate."""
    runs = [record.dagster_run for record in _records(instance, suite)]
    return [run for run in reversed(runs) if run.tags.get(SINCE_TAG) == since and run.is_finished and run.job_name != gate_job_name(suite)]


def _records(instance: dg.DagsterInstance, suite: str) -> Sequence[dg.RunRecord]:
    """The runs of a suite, of any job, the newest first."""
    return instance.get_run_records(dg.RunsFilter(tags={SUITE_TAG: suite}), limit=_MOST_RUNS)
