"""The evaluations of a suite: the runs of each, whether all have ended, and whether the results were judged.

An evaluation is a tick of the suite's schedule, which starts a run for each model, or one run of the suite's job that a person launched or
re-executed. Three kinds of runs have the tags of a tick and do not belong to it: a re-executed run, a run that was launched after the tick
was judged, and a run that was launched before the time of the tick, as the UI allows when it tests a schedule.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import dagster as dg

from eval_dagster.assets.evaluation import is_whole
from eval_dagster.assets.names import Names, shown_job
from eval_dagster.assets.tags import CHECKPOINT_TAG, JUDGED_BY_TAG, PLANNED_TAG, SINCE_TAG, suite_tags
from eval_dagster.project import Project

_PATIENCE_S = 600.0
"""Longest wait for the rest of an interrupted tick, or for the gate of an ended one. The daemon resumes within seconds."""
_PAGE = 200
"""Runs that are read in one query."""
_CLOCKS_DIFFER = timedelta(minutes=2)
"""Most by which the clock of runs may be behind the clock of ticks."""


@dataclass(frozen=True, kw_only=True)
class SuiteEvaluation:
    """One evaluation of a suite."""

    since: str
    """Its name: the time of the tick, or of the launch of its first run, in ISO 8601."""
    began: datetime
    """When it began; never later than the creation of its first run."""
    planned: int
    """Number of runs that it requests."""
    is_whole: bool
    """Whether it evaluates all of the suite."""
    is_of_checkpoint: bool
    """Whether it evaluates a new checkpoint of a training run."""
    is_judged_by_command: bool
    """Whether the command that started it also judges it."""
    records: Sequence[dg.RunRecord]
    """Its runs, the oldest first."""
    gate: dg.RunRecord | None
    """The run that judges the results, if it has been started."""

    @property
    def n_ended(self) -> int:
        """Number of runs that have ended, with success or not."""
        return sum(record.dagster_run.is_finished for record in self.records)

    @property
    def is_over(self) -> bool:
        """Whether all runs have ended. If the daemon is killed between two runs, the missing ones are not waited for after a while."""
        return self.n_ended == len(self.records) and (self.n_ended >= self.planned or self._is_settled)

    @property
    def awaits_gate(self) -> bool:
        """Whether the gate is about to be started."""
        return self.is_over and self.gate is None and not self.is_judged_by_command and not self._is_settled

    @property
    def covers_earlier_ones(self) -> bool:
        """Whether its gate also judges earlier evaluations."""
        return self.is_whole and self.is_over and (self.gate is not None or not self.is_judged_by_command)

    def covers(self, earlier: "SuiteEvaluation") -> bool:
        """Whether its gate also judges an earlier evaluation: it does if that one is over when the gate starts.

        So checkpoints that come one after the other have one gate, and not one each that misses the results of the others.
        """
        is_batch = self.is_of_checkpoint and earlier.is_of_checkpoint
        if not ((self.covers_earlier_ones or is_batch) and self.is_over and earlier.began < self.began and earlier.is_over):
            return False
        return self.gate is None or earlier._ended_at < self.gate.create_timestamp.timestamp()

    @property
    def _ended_at(self) -> float:
        return max(record.end_time or 0.0 for record in self.records)

    @property
    def _is_settled(self) -> bool:
        return time.time() - self._ended_at > _PATIENCE_S


def unjudged(instance: dg.DagsterInstance, project: Project, suite: str) -> list[SuiteEvaluation]:
    """The evaluations that are at work or wait for their gate, the oldest first.

    Evaluations that the gate of a later one judges are left out.
    """
    filters = dg.RunsFilter(tags=suite_tags(project.home, suite))

    def covered_before(found: Sequence[SuiteEvaluation]) -> datetime | None:
        judged = (each for each in found if each.covers_earlier_ones or (each.is_of_checkpoint and each.gate is not None))
        latest = next(judged, None)
        return min(latest.began, _oldest_open(instance, filters, latest)) if latest else None

    open_ones: list[SuiteEvaluation] = []
    covering: list[SuiteEvaluation] = []
    for evaluation in _read(instance, filters, (Names.of(project), suite), covered_before):
        awaits = evaluation.gate is None and not evaluation.is_judged_by_command
        if awaits and any(later.covers(evaluation) for later in covering):
            continue
        if awaits:
            open_ones.append(evaluation)
        if evaluation.covers_earlier_ones or evaluation.is_of_checkpoint:
            covering.append(evaluation)
    return open_ones[::-1]


def find_evaluation(instance: dg.DagsterInstance, project: Project, suite: str, since: str) -> SuiteEvaluation | None:
    """The evaluation with this name; None if it has no runs."""
    time = parsed(since)
    found = _read(instance, dg.RunsFilter(tags=suite_tags(project.home, suite)), (Names.of(project), suite), lambda _: time)
    return next((each for each in found if each.since == since or (time is not None and parsed(each.since) == time)), None)


def why_busy(instance: dg.DagsterInstance, project: Project, suite: str, since: str) -> str | None:
    """The reason why a tick at `since` is skipped: an earlier tick, or a run of the suite that a person started, is not finished.

    Runs of the tick itself do not count: a daemon that was killed while it requested them requests them again.
    """
    filters = dg.RunsFilter(tags=suite_tags(project.home, suite), statuses=_UNFINISHED)
    # A run of a new checkpoint has a model of its own.
    runs = [record for record in instance.get_run_records(filters) if CHECKPOINT_TAG not in record.dagster_run.tags]
    unfinished = [record.dagster_run for record in runs if _tick(record) != since]
    if unfinished:
        listed = ", ".join(f"{shown_job(run.job_name)} {run.run_id[:8]} ({run.status.value.lower()})" for run in reversed(unfinished))
        return f"{len(unfinished)} runs of the suite {suite} have not ended: {listed}"
    waiting = [each for each in unjudged(instance, project, suite) if each.since != since and each.awaits_gate]
    return f"the results of {waiting[-1].since} are about to be judged" if waiting else None


_UNFINISHED = [
    status
    for status in dg.DagsterRunStatus
    if status not in (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
]


def _oldest_open(instance: dg.DagsterInstance, filters: dg.RunsFilter, covering: SuiteEvaluation) -> datetime:
    """Creation time of the oldest run whose evaluation may not be over, or was not over when the covering gate started."""
    now = datetime.now(UTC)
    changed_since = now - timedelta(seconds=_PATIENCE_S) - _CLOCKS_DIFFER
    if covering.gate is not None:
        changed_since = min(changed_since, covering.gate.create_timestamp - _CLOCKS_DIFFER)
    records = [
        *instance.get_run_records(dg.RunsFilter(tags=filters.tags, statuses=_UNFINISHED)),
        *instance.get_run_records(dg.RunsFilter(tags=filters.tags, updated_after=changed_since)),
    ]
    return min((record.create_timestamp for record in records), default=now)


def _read(
    instance: dg.DagsterInstance,
    filters: dg.RunsFilter,
    suite: tuple[Names, str],
    back_to: Callable[[Sequence[SuiteEvaluation]], datetime | None],
) -> list[SuiteEvaluation]:
    """Evaluations, the latest first: at least those with a run since the time that `back_to` returns; all if it returns None.

    The evaluation of a run is known when all runs since its tick, and the gate of the tick, have been read.
    """
    records: list[dg.RunRecord] = []
    found: list[SuiteEvaluation] = []
    for page in _pages(instance, filters):
        records += page
        found = _grouped(records, suite)
        earliest = back_to(found)
        if earliest is not None:
            recent = [record for record in records if record.create_timestamp >= earliest - _CLOCKS_DIFFER]
            ticks = [time for record in recent if (time := parsed(_tick(record) or "")) is not None]
            if page[-1].create_timestamp < min([earliest, *ticks]) - _CLOCKS_DIFFER:
                break
    return found


def _pages(instance: dg.DagsterInstance, filters: dg.RunsFilter) -> Iterator[Sequence[dg.RunRecord]]:
    """Runs, the newest first."""
    cursor: str | None = None
    while page := instance.get_run_records(filters, limit=_PAGE, cursor=cursor):
        yield page
        cursor = page[-1].dagster_run.run_id


def _grouped(records: Sequence[dg.RunRecord], suite: tuple[Names, str]) -> list[SuiteEvaluation]:
    """The evaluations of a suite's runs, the latest first."""
    job_names, name_of_suite = suite
    evaluating = {job_names.suite_job(name_of_suite), job_names.nightly_job(name_of_suite)}
    by_name: dict[str, list[dg.RunRecord]] = defaultdict(list)
    gates: dict[str, dg.RunRecord] = {}
    names: dict[tuple[str, bool], str] = {}
    for record in reversed(records):
        run = record.dagster_run
        if run.job_name == job_names.gate_job(name_of_suite) and SINCE_TAG in run.tags:
            gates[run.tags[SINCE_TAG]] = record
        elif run.job_name in evaluating:
            name = own = record.create_timestamp.astimezone(UTC).isoformat()
            if _is_named(run):
                tick = _tick(record)
                together = run.tags[SINCE_TAG], tick is None
                name = names.get(together, tick or own)
                name = names[together] = own if name in gates else name
            by_name[name].append(record)
    found = [_evaluation(name, of_one, gates.get(name)) for name, of_one in by_name.items()]
    return sorted(found, key=lambda evaluation: evaluation.began, reverse=True)


def _evaluation(name: str, records: Sequence[dg.RunRecord], gate: dg.RunRecord | None) -> SuiteEvaluation:
    first = records[0].dagster_run
    created = records[0].create_timestamp
    tags = first.tags if _is_named(first) else {}
    planned = tags.get(PLANNED_TAG)
    return SuiteEvaluation(
        since=name,
        began=min(parsed(name) or created, created),
        planned=int(planned) if planned is not None else 1,
        is_whole=planned is not None or is_whole(first),
        is_of_checkpoint=CHECKPOINT_TAG in first.tags,
        is_judged_by_command=JUDGED_BY_TAG in tags and tags[SINCE_TAG] == name,
        records=records,
        gate=gate,
    )


def _tick(record: dg.RunRecord) -> str | None:
    """The time of the tick or command in a run's tags; None if it is missing or later than the run."""
    run = record.dagster_run
    named = parsed(run.tags[SINCE_TAG]) if _is_named(run) else None
    return run.tags[SINCE_TAG] if named is not None and named <= record.create_timestamp + _CLOCKS_DIFFER else None


def _is_named(run: dg.DagsterRun) -> bool:
    """Whether the tags of the run name an evaluation, and are not copied from another run."""
    return run.parent_run_id is None and parsed(run.tags.get(SINCE_TAG, "")) is not None


def night_of(since: str | None) -> str | None:
    """The time of an evaluation in UTC, by which notices name its night; None if the text is not a time with a zone."""
    time = parsed(since or "")
    return None if time is None else time.astimezone(UTC).isoformat()


def parsed(text: str) -> datetime | None:
    """A time with a zone; None for other texts."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if time.tzinfo is None else time
