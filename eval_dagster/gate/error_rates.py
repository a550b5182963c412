"""The share of samples that are errors now and could be evaluated before."""

from dataclasses import dataclass

from eval_dagster.gate.materializations import Point


@dataclass(frozen=True, kw_only=True)
class ErrorRate:
    """Errors among samples."""

    errors: int
    samples: int
    is_of_baseline: bool
    """Whether the samples are those that the baseline could evaluate; otherwise they are all samples of the result."""


def error_rate(current: Point, baseline: Point | None, metric: str) -> ErrorRate:
    """Count the errors of a metric among the samples that were asked now and that the baseline could evaluate.

    If there is no baseline, or it has no value for these samples, all samples count. Raises `LakeError` if scores were deleted.
    """
    asked, errors = _samples(current, metric)
    asked_before, errors_before = _samples(baseline, metric) if baseline else (set(), set())
    common = asked & (asked_before - errors_before)
    return ErrorRate(errors=len(errors & (common or asked)), samples=len(common or asked), is_of_baseline=bool(common))


def _samples(point: Point, metric: str) -> tuple[set[str], set[str]]:
    """The samples of a metric, and those of them that are errors.

    An error has the name of the metric. A value has that name, or that name with a slash and the name of a part.
    """
    name = metric.partition("/")[0]
    rows = [row for each, by_sample in point.scores_by_metric.items() if each.partition("/")[0] == name for row in by_sample.values()]
    return {row["sample_id"] for row in rows}, {row["sample_id"] for row in rows if row["error"] is not None}
