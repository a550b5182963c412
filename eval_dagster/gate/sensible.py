"""Checks that a suite's gate can find a difference, by the ranges of its metrics."""

from typing import Any

from eval_dagster.errors import EvalDagsterError, UsageError
from eval_dagster.metrics.base import BaseMetric
from eval_dagster.project import Project
from eval_dagster.stages.scores import headline


def require_sensible_gate(project: Project, suite: str) -> None:
    """Raise `UsageError` if a metric of the suite cannot differ by more than `smallest_difference`. An unknown range is no error."""
    gate = project.suite(suite).gate
    for eval_name in project.suite(suite).evals:
        try:
            task = project.task(eval_name)
        except EvalDagsterError:  # reported when the eval is evaluated
            continue
        for metric in task.METRICS if gate.metrics == "all" else [headline(task)]:
            most = _range(metric)
            if most is not None and gate.smallest_difference >= most:
                raise UsageError(
                    f"suites.{suite}.gate.smallest_difference: found {gate.smallest_difference:g}; expected a number below {most:g}, which "
                    f"is the most that {metric.NAME} of the eval {eval_name} can differ by (0.01 is one percentage point); evals of other "
                    "units belong into a suite of their own"
                )


def _range(metric: type[BaseMetric[Any]]) -> float | None:
    """The most that a metric can differ by: a rate by 1, a score from 0 by its best value; None if unknown."""
    if metric.IS_PROPORTION:
        return 1.0
    return metric.BEST if metric.HIGHER_IS_BETTER and metric.BEST else None
