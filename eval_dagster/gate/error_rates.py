"""How many samples are errors now that could be evaluated before."""

from dataclasses import dataclass

from eval_dagster.gate.materializations import Point


@dataclass(frozen=True, kw_only=True)
class ErrorRate:
    """Errors among samples."""

    errors: int
    samples: int
    is_of_baseline: bool
    """Whether the samples are those that the baseline could evaluate; else all of the result."""


def error_rate(current: Point, baseline: Point | None, metric: str) -> ErrorRate:
    """Count the errors of a metric among the samples that were asked now and that the baseline could evaluate.

    Where there is no baseline, or it has no value of these samples, all of them count.

    Raises:
        LakeError: The scores of one are gone.
    """
    asked, errors = _samples(current, metric)
    common = asked & _evaluated(baseline, metric)
    return ErrorRate(errors=len(errors & (common or asked)), samples=len(common or asked), is_of_baseline=bool(common))


def _evaluated(baseline: Point | None, metric: str) -> set[str]:
    if baseline is None:
        return set()
    asked, errors = _samples(baseline, metric)
    return asked - errors


def _samples(point: Point, metric: str) -> tuple[set[str], set[str]]:
    """The samples that a metric was asked about, and those of them that are errors.

    An error stands under the name of the metric, a value also under that name, a slash and the name of one of several values.
    """
    name = metric.partition("/")[0]
    rows = [row for each, by_sample in point.scores_by_metric.items() if each.partition("/")[0] == name for row in by_sample.values()]
    return {row["sample_id"] for row in rows}, {row["sample_id"] for row in rows if row["error"] is not None}
