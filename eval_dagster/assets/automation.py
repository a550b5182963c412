"""Automation: schedules evaluate the suites, the leaderboard follows the metrics, a suite's gate its evaluation, and killed runs are ended.

A suite with a cron has one schedule, which is on from the start. If ticks were due while no daemon ran, Dagster evaluates only the last
one. Dagster ends the evaluation of a tick after a minute, so a schedule may not wait for a network or a lock.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from eval_dagster.assets.instance.killed_runs import end_dead_runs
from eval_dagster.assets.jobs import chosen, gate_job_name, suite_job_name
from eval_dagster.assets.resources import ProjectResource
from eval_dagster.assets.runs.skipped_nights import note_skipped
from eval_dagster.assets.runs.suite_evaluations import unjudged, why_busy
from eval_dagster.assets.tags import PLANNED_TAG, SINCE_TAG, home_tags, model_tags, suite_tags
from eval_dagster.project import Project

if TYPE_CHECKING:
    from eval_dagster.dagster_internals.definitions import UnresolvedAssetJobDefinition


def leaderboard_sensor(project: Project) -> dg.AutomationConditionSensorDefinition:
    """Refresh the leaderboard once metrics changed and none is being computed."""
    return dg.AutomationConditionSensorDefinition(
        "leaderboard_follows_metrics",
        target=dg.AssetSelection.assets("leaderboard"),
        run_tags=home_tags(project.home),
        default_status=dg.DefaultSensorStatus.RUNNING,
        minimum_interval_seconds=10,
    )


@dg.sensor(
    name="killed_runs",
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Marks runs as failed whose process was killed, so that they do not hold up the queue.",
)
def killed_runs_sensor(context: dg.SensorEvaluationContext, project: ProjectResource) -> dg.SkipReason:
    """End killed runs; requests no run."""
    ended = end_dead_runs(context.instance, Path(project.home))
    return dg.SkipReason(f"ended: {', '.join(ended)}" if ended else "no run was killed")


def suite_gates_sensor(project: Project, gates: Mapping[str, "UnresolvedAssetJobDefinition"]) -> dg.SensorDefinition:
    """Judge a suite once all runs of an evaluation have ended, with success or not. `gates` are the gate jobs by suite."""

    @dg.sensor(
        name="suite_gates",
        jobs=list(gates.values()),
        minimum_interval_seconds=15,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Compares a suite with its baseline once all runs of a tick, or a run that somebody launched, have ended.",
    )
    def suite_gates(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        requests: list[dg.RunRequest] = []
        waiting: list[str] = []
        end_dead_runs(context.instance, project.home)  # first, so that the gate knows what a dead process worked on
        for name in gates:
            for evaluation in unjudged(context.instance, project, name):
                if evaluation.is_over:
                    tags = {**suite_tags(project.home, name), SINCE_TAG: evaluation.since}
                    key = f"{project.home}|{name}|{evaluation.since}"
                    requests.append(dg.RunRequest(run_key=key, job_name=gate_job_name(name), tags=tags))
                else:
                    waiting.append(f"{name} of {evaluation.since}: {evaluation.n_ended} of {evaluation.planned} runs have ended")
        reason = None if requests else "; ".join(waiting) or "every evaluation that is over was judged"
        return dg.SensorResult(run_requests=requests, skip_reason=reason)

    return suite_gates


def suite_schedule(name: str, project: Project) -> dg.ScheduleDefinition:
    """The schedule of a suite: one run for each model, so that a model that fails does not stop the others."""
    suite = project.config.suites[name]
    job = suite_job_name(name)

    @dg.schedule(
        name=f"{job}_schedule",
        job_name=job,
        cron_schedule=str(suite.cron),
        execution_timezone=suite.timezone,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"Evaluates the suite {name}; `suite_gates` judges it once all runs have ended.",
    )
    def schedule(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
        tick = context.scheduled_execution_time.isoformat()
        reason = why_busy(context.instance, project, name, tick)
        if reason:
            note_skipped(project.home, name, tick, reason)
            yield dg.SkipReason(reason)
            return
        for model in suite.models:
            yield dg.RunRequest(
                run_key=f"{project.home}|{tick}|{model}",
                run_config=chosen(models=[model]),
                tags={
                    **suite_tags(project.home, name),
                    SINCE_TAG: tick,
                    PLANNED_TAG: str(len(suite.models)),
                    **model_tags(project.config, [model]),
                },
            )

    return schedule
