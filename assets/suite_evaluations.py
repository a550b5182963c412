"""The evaluations of a suite: which runs belong to each, whether all have ended, and whether the results were judged.

An evaluation is a tick of the suite's schedule, which starts a run for each model, or one run of the suite's job that somebody launched or
re-executed. A re-executed run bears the tags of the first one; it is an evaluation of its own, and no part of an earlier tick.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import dagster as dg

from assets.jobs import gate_job_name, is_whole, suite_job_name
from assets.tags import JUDGED_BY_TAG, PLANNED_TAG, SINCE_TAG, suite_tags
from eval_dagster.project import Project

_PATIENCE_S = 600.0
"""How long the rest of an interrupted tick, or the gate of one that is over, is waited for: the daemon resumes within seconds."""
_PAGE = 200
"""Runs that are read at a time."""
_CLOCKS_DIFFER = timedelta(minutes=2)
"""By which the clock that dates runs may be behind the one that dates ticks."""


@dataclass(frozen=True, kw_only=True)
class SuiteEvaluation:
    """One evaluation of a suite."""

    since: str
    """Its name: the time of the tick, or of the launch, in ISO 8601."""
    began: datetime
    """When it began. A tick may be tried in the UI under a time to come; it began when its first run was made."""
    planned: int
    """How many runs it asks for."""
    is_whole: bool
    """Whether it evaluates all of the suite."""
    is_judged_by_command: bool
    """Whether the command that started it also judges it."""
    records: Sequence[dg.RunRecord]
    """Its runs, the oldest first."""
    gate: dg.RunRecord | None
    """The run that judges the results, if it has been started."""

    @property
    def n_ended(self) -> int:
        """How many runs have ended, however they ended."""
        return sum(record.dagster_run.is_finished for record in self.records)

    @property
    def is_over(self) -> bool:
        """Whether all runs have ended; a daemon that is killed between one run and the next may never ask for the rest."""
        return self.n_ended == len(self.records) and (self.n_ended >= self.planned or self._is_settled)

    @property
    def awaits_gate(self) -> bool:
        """Whether the gate is about to be started."""
        return self.is_over and self.gate is None and not self.is_judged_by_command and not self._is_settled

    @property
    def covers_earlier_ones(self) -> bool:
        """Whether nothing is left to judge of the evaluations before it."""
        return self.is_whole and self.is_over and (self.gate is not None or not self.is_judged_by_command)

    @property
    def _is_settled(self) -> bool:
        return time.time() - max(record.end_time or 0.0 for record in self.records) > _PATIENCE_S


def unjudged(instance: dg.DagsterInstance, project: Project, suite: str) -> list[SuiteEvaluation]:
    """The evaluations that a gate is still to judge, or that are at work, the oldest first.

    What a later evaluation of the whole suite covers is judged with that one.
    """

    def covered_before(found: Sequence[SuiteEvaluation]) -> datetime | None:
        return next((evaluation.began for evaluation in found if evaluation.covers_earlier_ones), None)

    found = _read(instance, project, suite, covered_before)
    return [evaluation for evaluation in reversed(found) if evaluation.gate is None and not evaluation.is_judged_by_command]


def find_evaluation(instance: dg.DagsterInstance, project: Project, suite: str, since: str) -> SuiteEvaluation | None:
    """The evaluation of a name; None where no run of it is left."""
    time = _parsed(since)
    found = _read(instance, project, suite, lambda _: time)
    return next((evaluation for evaluation in found if evaluation.since == since), None)


def why_busy(instance: dg.DagsterInstance, project: Project, suite: str, since: str) -> str | None:
    """Why a tick at `since` has to be left out: an earlier one, or somebody else's run of the suite, is not done.

    Runs of the tick itself are no reason: the daemon may have been killed in the middle of asking for them, and asks again.
    """
    statuses = [status for status in dg.DagsterRunStatus if status not in _ENDED]
    filters = dg.RunsFilter(tags=dict(suite_tags(project.home, suite)), statuses=statuses)
    unfinished = [record.dagster_run for record in instance.get_run_records(filters) if _name(record) != since]
    if unfinished:
        runs = ", ".join(f"{run.job_name} {run.run_id[:8]} ({run.status.value.lower()})" for run in reversed(unfinished))
        return f"{len(unfinished)} runs of the suite {suite} have not ended: {runs}"
    waiting = [each for each in unjudged(instance, project, suite) if each.since != since and each.awaits_gate]
    return f"the results of {waiting[-1].since} are about to be judged" if waiting else None


_ENDED = {dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED}


def _read(
    instance: dg.DagsterInstance, project: Project, suite: str, back_to: Callable[[Sequence[SuiteEvaluation]], datetime | None]
) -> list[SuiteEvaluation]:
    """Evaluations, the latest first, back to the one that began at the time that `back_to` gives; all of them where it gives none.

    No run is older than the evaluation that it belongs to, so that all evaluations since a time are known once the runs since then are.
    """
    records: list[dg.RunRecord] = []
    found: list[SuiteEvaluation] = []
    for page in _pages(instance, dg.RunsFilter(tags=dict(suite_tags(project.home, suite)))):
        records += page
        found = _grouped(records, suite)
        earliest = back_to(found)
        if earliest is not None and page[-1].create_timestamp < earliest - _CLOCKS_DIFFER:
            break
    earliest = back_to(found)
    return [evaluation for evaluation in found if earliest is None or evaluation.began >= earliest]


def _pages(instance: dg.DagsterInstance, filters: dg.RunsFilter) -> Iterator[Sequence[dg.RunRecord]]:
    """Runs, the newest first."""
    cursor: str | None = None
    while page := instance.get_run_records(filters, limit=_PAGE, cursor=cursor):
        yield page
        cursor = page[-1].dagster_run.run_id


def _grouped(records: Sequence[dg.RunRecord], suite: str) -> list[SuiteEvaluation]:
    """The evaluations that runs of a suite make up, the latest first."""
    by_name: dict[str, list[dg.RunRecord]] = defaultdict(list)
    gates: dict[str, dg.RunRecord] = {}
    for record in reversed(records):
        if record.dagster_run.job_name == suite_job_name(suite):
            by_name[_name(record)].append(record)
        elif record.dagster_run.job_name == gate_job_name(suite) and SINCE_TAG in record.dagster_run.tags:
            gates[record.dagster_run.tags[SINCE_TAG]] = record
    found = [_evaluation(name, of_one, gates.get(name)) for name, of_one in by_name.items()]
    return sorted(found, key=lambda evaluation: evaluation.began, reverse=True)


def _evaluation(name: str, records: Sequence[dg.RunRecord], gate: dg.RunRecord | None) -> SuiteEvaluation:
    first = records[0].dagster_run
    created = records[0].create_timestamp
    tags = first.tags if _is_named(first) else {}
    planned = tags.get(PLANNED_TAG)
    return SuiteEvaluation(
        since=name,
        began=min(_parsed(name) or created, created),
        planned=int(planned) if planned is not None else 1,
        is_whole=planned is not None or is_whole(first),
        is_judged_by_command=JUDGED_BY_TAG in tags,
        records=records,
        gate=gate,
    )


def _name(record: dg.RunRecord) -> str:
    """The evaluation that a run belongs to."""
    run = record.dagster_run
    return run.tags[SINCE_TAG] if _is_named(run) else record.create_timestamp.astimezone(UTC).isoformat()


def _is_named(run: dg.DagsterRun) -> bool:
    """Whether the run's own tags tell to which evaluation it belongs."""
    return run.parent_run_id is None and _parsed(run.tags.get(SINCE_TAG, "")) is not None


def _parsed(text: str) -> datetime | None:
    """A time with its zone; None for anything else."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if time.tzinfo is None else time
