"""One schedule for each suite with a cron, on from the start: naming a cron in evals.yaml asks for it.

Of the ticks that fell due while no daemon ran, Dagster evaluates the last one alone.
"""

from collections.abc import Iterator

import dagster as dg

from assets.jobs import MODEL_TAG, PLANNED_TAG, SINCE_TAG, SUITE_TAG, suite_job_name
from assets.partitions import contiguous, range_tags
from assets.resources import ProjectResource
from assets.telling import tell_skipped
from assets.ticks import why_busy
from eval_dagster.config import Config, SuiteConfig


def suite_schedule(name: str, suite: SuiteConfig, config: Config) -> dg.ScheduleDefinition:
    """The schedule of a suite: one run for each model and range of neighbouring evals, so that a model that fails stops no other."""
    job = suite_job_name(name)
    ranges = [(model, evals) for model in suite.models for evals in contiguous(suite.evals, list(config.evals))]

    @dg.schedule(
        name=f"{job}_schedule",
        job_name=job,
        cron_schedule=str(suite.cron),
        execution_timezone=suite.timezone,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"Evaluates the suite {name}; `suite_gates` judges it once all runs have ended.",
    )
    def schedule(context: dg.ScheduleEvaluationContext, project: ProjectResource) -> Iterator[dg.RunRequest | dg.SkipReason]:
        tick = context.scheduled_execution_time.isoformat()
        reason = why_busy(context.instance, name, tick)
        if reason:
            tell_skipped(project.open(), name, reason)
            yield dg.SkipReason(reason)
            return
        for model, evals in ranges:
            yield dg.RunRequest(
                run_key=f"{tick}|{model}|{evals[0]}",
                tags={
                    SUITE_TAG: name,
                    SINCE_TAG: tick,
                    PLANNED_TAG: str(len(ranges)),
                    MODEL_TAG: model,
                    **range_tags(evals, (model, model)),
                },
            )

    return schedule
