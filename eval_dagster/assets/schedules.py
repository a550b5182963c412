"""One schedule for each suite with a cron, which is on from the start.

If ticks were due while no daemon ran, Dagster evaluates only the last one. Dagster ends the evaluation of a tick after a minute, so nothing
here may wait for a network or a lock.
"""

from collections.abc import Iterator

import dagster as dg

from eval_dagster.assets.jobs import chosen, suite_job_name
from eval_dagster.assets.runs.skipped_nights import note_skipped
from eval_dagster.assets.runs.suite_evaluations import why_busy
from eval_dagster.assets.tags import PLANNED_TAG, SINCE_TAG, model_tags, suite_tags
from eval_dagster.project import Project


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
