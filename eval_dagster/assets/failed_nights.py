"""Notices of nights whose gate failed before it could send its own: it could not load evals.yaml, was killed, or was canceled.

The sensor works in the code server, with the configuration that this one has loaded. A code server that cannot load the configuration has
no sensor; then `eval-dagster check-nights` tells what is missing.
"""

import time
from datetime import UTC, datetime, timedelta
from functools import partial

import dagster as dg

from eval_dagster.assets.names import Names
from eval_dagster.assets.notifications import tell_failed
from eval_dagster.assets.resources import ProjectFile
from eval_dagster.assets.runs.run_summaries import run_messages
from eval_dagster.assets.runs.suite_evaluations import find_evaluation, night_of
from eval_dagster.assets.tags import JUDGED_BY_TAG, SINCE_TAG, suite_tags
from eval_dagster.errors import EvalDagsterError
from eval_dagster.gate.records import GateResult
from eval_dagster.gate.results import result_of_run
from eval_dagster.gate.wording import verdict_line
from eval_dagster.notifications.delivery import SENSOR_S, NoticeOutcome, is_any_left, is_told, send_left, tell_once, told_nights
from eval_dagster.project import Project

_RECENT = timedelta(days=2)
"""Gates that ended earlier are no news."""
_FAILED = [dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
_LOOK_S = 600.0
"""How often the lake is asked for notices that other machines left."""
_MOST = 100
"""Failed gates that are looked at."""


def failed_nights_sensor(project: Project) -> dg.SensorDefinition:
    """Tell the failed nights of a project's suites that were not told. `project` serves where evals.yaml can no longer be read."""

    file = ProjectFile.of(project)
    looked_at: float | None = None
    is_patient = False  # what was left before this code server started is sent at once

    @dg.sensor(
        name=Names.of(project).named("failed_nights"),
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus(project.config.dagster.automation.upper()),
        description="Sends a notice of each night whose gate failed before it could send one, once for a night and a suite; "
        "and the notices that were left unsent.",
    )
    def failed_nights(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        nonlocal looked_at, is_patient
        try:
            opened = file.open(context.instance)
        except EvalDagsterError:
            opened = project
        for suite in project.config.suites:
            now = opened if suite in opened.config.suites else project
            # One for each evaluation of the sensor, since a notice can take most of a minute.
            if outcome := tell_untold(context.instance, now, suite):
                return dg.SkipReason(outcome)
        if looked_at is None or is_any_left(project.home) or time.monotonic() - looked_at >= _LOOK_S:
            looked_at = time.monotonic()
            left = send_left(opened, timeout_s=SENSOR_S, most=1, is_patient=is_patient)
            is_patient = is_patient or not left or not left[0].is_sent
            if left:
                return dg.SkipReason(f"left unsent before: {left[0].title}: {left[0].words()}")
        return dg.SkipReason("every night that failed was told")

    return failed_nights


def tell_untold(instance: dg.DagsterInstance, project: Project, suite: str, *, judged_only: bool = False) -> str | None:
    """Tell the oldest night of a suite whose gate failed lately before it wrote a notice. Returns its outcome; None if there is none.

    Commands say by their exit status that theirs failed. A red judgement of theirs is told if nothing was written about it: they were
    killed.

    Args:
        instance: The instance that knows the gates.
        project: The project of the suite.
        suite: The suite.
        judged_only: Whether gates that failed before they judged are left to others.
    """
    gates = _failed(instance, project, suite)
    told = told_nights(project, suite) if gates else None
    for night, gate in gates.items():
        if told is None or is_told(project, suite, night, told, gate.run_id):
            continue
        judged = result_of_run(project.lake, suite, gate.run_id)
        is_red = judged is not None and not judged.is_green
        if (judged_only or JUDGED_BY_TAG in gate.tags) and not is_red:
            continue
        outcome = tell_once(project, suite, night, partial(_send, instance, project, suite, night, gate, judged))
        if outcome is not None:
            return f"{suite} of {night}: {outcome.words()}"
    return None


def _send(
    instance: dg.DagsterInstance, project: Project, suite: str, night: str, gate: dg.DagsterRun, judged: GateResult | None
) -> NoticeOutcome:
    verdict = None if judged is None else verdict_line(judged)
    return tell_failed(project, suite, night, evaluation_messages(instance, project, suite, gate), gate.run_id, verdict)


def evaluation_messages(instance: dg.DagsterInstance, project: Project, suite: str, gate: dg.DagsterRun) -> list[str]:
    """Why a night failed: the messages of its evaluation, and of its gate if they are others."""
    evaluation = find_evaluation(instance, project, suite, gate.tags[SINCE_TAG])
    runs = [*(record.dagster_run for record in evaluation.records), gate] if evaluation else [gate]
    return list(dict.fromkeys(message for run in runs for messages in run_messages(instance, run) for message in messages))


def _failed(instance: dg.DagsterInstance, project: Project, suite: str) -> dict[str, dg.DagsterRun]:
    """The gates of a suite that failed lately by their nights, the oldest first."""
    filters = dg.RunsFilter(
        job_name=Names.of(project).gate_job(suite),
        tags=suite_tags(project.home, suite),
        statuses=_FAILED,
        updated_after=datetime.now(UTC) - _RECENT,
    )
    gates = list(reversed(instance.get_runs(filters, limit=_MOST)))
    return {night: gate for gate in gates if (night := night_of(gate.tags.get(SINCE_TAG))) is not None}
