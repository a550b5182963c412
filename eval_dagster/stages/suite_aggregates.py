"""Checks the aggregates of a suite by the tasks of its evals, before anything is evaluated."""

from typing import Any

from eval_dagster.errors import EvalDagsterError, UsageError
from eval_dagster.metrics.base import BaseMetric, bounds_of, declared_headline
from eval_dagster.project import Project
from eval_dagster.stages.answer_figures import may_know_chance
from eval_dagster.stages.scores import headline
from eval_dagster.statistics.aggregates import Scale, mixed_scales
from eval_dagster.tasks.base import BaseTask
from eval_dagster.tasks.benchmark import AdapterTask
from eval_dagster.texts.figures import did_you_mean


def require_sensible_aggregates(project: Project, suite: str) -> None:
    """Raise `UsageError` if an aggregate of a suite can have no value.

    An eval lacks the metric, or its score by chance is not known although the aggregate is normalised, or its metric has another unit or
    direction than the other evals. A task that cannot be loaded is reported when its eval is evaluated, and the metrics of a
    benchmark that brings its own are known by its results alone: the relation `aggregates` has the reason then.
    """
    settings = project.suite(suite)
    for name, aggregate in settings.aggregates.items():
        where, scales = f"suites.{suite}.aggregates.{name}", list[tuple[str, Scale]]()
        for eval_name in aggregate.evals or settings.evals:
            try:
                task = project.task(eval_name)
            except EvalDagsterError:  # reported when the eval is evaluated
                continue
            metric = headline(task) if aggregate.metric is None else _named(task, eval_name, aggregate.metric, where)
            if metric is None:
                continue
            if aggregate.normalised and not may_know_chance(metric):
                raise UsageError(
                    f"{where}: it is normalised, and the score by chance of the eval {eval_name} is not known, since its metric "
                    f"{metric.NAME} does not count correct choices among several; expected evals of choices, or normalised: false"
                )
            full = aggregate.metric or declared_headline(metric) or metric.NAME
            scales.append((eval_name, Scale(metric=full, higher_is_better=metric.HIGHER_IS_BETTER, bounds=bounds_of(metric))))
        if not aggregate.normalised and (problem := mixed_scales(scales)) is not None:
            raise UsageError(
                f"{where}: {problem}; expected evals whose scores can be averaged, an aggregate for each unit, or a common metric"
            )


def _named(task: type[BaseTask[Any]], eval_name: str, name: str, where: str) -> type[BaseMetric[Any]] | None:
    """The metric of a name; None if only results tell. Raises `UsageError` if the task lacks the metric."""
    found = next((metric for metric in task.METRICS if name.partition("/")[0] == metric.NAME), None)
    if found is None and not issubclass(task, AdapterTask):
        known = [metric.NAME for metric in task.METRICS]
        raise UsageError(
            f"{where}.metric: found {name!r}, which the eval {eval_name} does not have; expected one of {', '.join(known)}"
            f"{did_you_mean(name, known)}"
        )
    return found
