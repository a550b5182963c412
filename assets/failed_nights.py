"""Notices of nights whose gate failed before it could send its own: it could not load evals.yaml, was killed, or was canceled.

The sensor works in the code server, with the configuration that this one has loaded. A code server that cannot load the configuration has
no sensor; then `eval-dagster check-nights` tells what is missing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

import dagster as dg

from eval_dagster.assets.failures import run_messages
from eval_dagster.assets.jobs import gate_job_name
from eval_dagster.assets.notifications import tell_failed
from eval_dagster.assets.resources import ProjectResource
from eval_dagster.assets.suite_evaluations import find_evaluation, night_of
from eval_dagster.assets.tags import JUDGED_BY_TAG, SINCE_TAG, suite_tags
from eval_dagster.errors import EvalDagsterError
from eval_dagster.notifications.delivery import NoticeOutcome
from eval_dagster.notifications.nights import is_told, tell_once
from eval_dagster.project import Project

_RECENT = timedelta(days=2)
"""Gates that ended earlier are no news."""
_FAILED = [dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
_MOST = 100
"""Failed gates that are looked at."""


@dataclass(frozen=True, kw_only=True)
class FailedNight:
    """A night whose gate failed."""

    suite: str
    night: str
    """The time of its tick, or of its launch, in UTC."""
    gate: dg.DagsterRun


def failed_nights_sensor(project: Project) -> dg.SensorDefinition:
    """Tell the failed nights of a project's suites that were not told. `project` serves where evals.yaml can no longer be read."""

    @dg.sensor(
        name="failed_nights",
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Sends a notice of each night whose gate failed before it could send one, once for a night and a suite.",
    )
    def failed_nights(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        try:
            opened = ProjectResource(config_path=str(project.config_path), home=str(project.home)).open(context.instance)
        except EvalDagsterError:
            opened = project
        for failed in _failed(context.instance, project):
            now = opened if failed.suite in opened.config.suites else project
            if is_told(now, failed.suite, failed.night):
                continue
            # One for each evaluation of the sensor, since a notice can take most of a minute.
            outcome = tell_once(now, failed.suite, failed.night, partial(_send, context.instance, now, failed))
            if outcome is not None:
                return dg.SkipReason(f"{failed.suite} of {failed.night}: {outcome.words()}")
        return dg.SkipReason("every night that failed was told")

    return failed_nights


def _send(instance: dg.DagsterInstance, project: Project, failed: FailedNight) -> NoticeOutcome:
    messages = evaluation_messages(instance, project, failed.suite, failed.gate)
    return tell_failed(project, failed.suite, failed.night, messages, failed.gate.run_id)


def evaluation_messages(instance: dg.DagsterInstance, project: Project, suite: str, gate: dg.DagsterRun) -> list[str]:
    """Why a night failed: the messages of its evaluation, and of its gate where they are others."""
    evaluation = find_evaluation(instance, project, suite, gate.tags[SINCE_TAG])
    runs = [*(record.dagster_run for record in evaluation.records), gate] if evaluation else [gate]
    return list(dict.fromkeys(message for run in runs for messages in run_messages(instance, run) for message in messages))


def _failed(instance: dg.DagsterInstance, project: Project) -> Iterator[FailedNight]:
    """The gates that failed lately, the oldest first. Commands tell by their exit status that their gate failed."""
    for suite in project.config.suites:
        filters = dg.RunsFilter(
            job_name=gate_job_name(suite),
            tags=suite_tags(project.home, suite),
            statuses=_FAILED,
            updated_after=datetime.now(UTC) - _RECENT,
        )
        for gate in reversed(instance.get_runs(filters, limit=_MOST)):
            night = night_of(gate.tags.get(SINCE_TAG))
            if night is not None and JUDGED_BY_TAG not in gate.tags:
                yield FailedNight(suite=suite, night=night, gate=gate)
