"""When a score left its band: change points in the history of an eval for a model.

A segment of the history starts at a reference. Each later result is compared with it, sample by sample; the first that differs starts the
next segment. The k-th comparison of a segment is significant at alpha / (k (k + 1)), which together is alpha however long the segment
gets (Bonferroni's inequality), and says the same of a past result whatever comes after it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from eval_dagster.errors import LakeError
from eval_dagster.gate.comparison import causes, compare_metric, overall
from eval_dagster.gate.materializations import Point, history
from eval_dagster.gate.records import Look
from eval_dagster.lake.files import Lake, read_rows
from eval_dagster.metrics.base import BaseMetric
from eval_dagster.versions import code_version

LookKey = tuple[str, str, str, datetime, datetime]


@dataclass(frozen=True, kw_only=True)
class SeriesPoint:
    """A materialization of a score."""

    materialized_at: datetime
    value: float | None
    """Null where every sample is an error."""
    ci_low: float | None
    """Lower end of the 95 % confidence interval."""
    ci_high: float | None
    """Upper end of the 95 % confidence interval."""
    n: int
    """Samples that have a value."""
    versions: Mapping[str, str]
    """Of what it was made: `data`, `prompt`, `model` and `metric`."""
    is_change_point: bool
    """Whether the score left its band here, by the last judgement of a suite that the eval and the model belong to."""


def score_series(lake: Lake, eval_name: str, model: str, metric: str) -> list[SeriesPoint]:
    """All materializations of a metric over all subjects, the oldest first.

    Raises:
        LakeError: The newest materialization is damaged.
    """
    changes = _change_times(lake, eval_name, model, metric)
    return [
        SeriesPoint(
            materialized_at=point.materialized_at,
            **{name: row[name] for name in ("value", "ci_low", "ci_high", "n")},
            versions={**point.versions, "metric": row["metric_version"]},
            is_change_point=point.materialized_at in changes,
        )
        for point in history(lake, eval_name, model)
        if (row := overall(point).get(metric)) is not None
    ]


def _change_times(lake: Lake, eval_name: str, model: str, metric: str) -> set[datetime]:
    found: set[datetime] = set()
    for files in lake.partitions("looks"):
        try:
            rows = read_rows(files[-1])
        except LakeError:
            continue  # the catalog lists it among the damaged files
        found |= {
            row["materialized_at"]
            for row in rows
            if row["is_change_point"] and (row["eval"], row["model"], row["metric"]) == (eval_name, model, metric)
        }
    return found


def key_of(look: Look) -> LookKey:
    """What was compared with what."""
    return look.eval, look.model, look.metric, look.materialized_at, look.reference_at


def look_version() -> str:
    """Version of the code that p-values come from: those that other code computed are computed again."""
    return code_version(find_looks)


def find_looks(
    points: Sequence[Point], metrics: Sequence[type[BaseMetric[Any]]], *, suite: str, alpha: float, known: Mapping[LookKey, Look]
) -> Iterator[Look]:
    """Go through the history of the metric that is the headline now.

    Results with the same scores as the one before or the reference are passed over. One whose scores are gone from the lake is, too, unless
    it is known how it compared. Where nothing can be compared with the reference a new segment starts, which is no change point.

    Args:
        points: All materializations of an eval for a model, the oldest first.
        metrics: Those of the task.
        suite: Whose judgement this is.
        alpha: Two-sided level of significance of a segment.
        known: Earlier looks by `key_of`, made by code of the same `look_version`: these comparisons are not made again.
    """
    metric = next((row["metric"] for row in points[-1].metric_rows if row["is_headline"]), None) if points else None
    having = [point for point in points if metric is not None and overall(point).get(metric, {}).get("value") is not None]
    if metric is None or not having:
        return
    before = having[0]
    # A copy: what it has read of its scores goes when it is no reference any more.
    reference, looks = replace(before), 0
    for point in having[1:]:
        if point.scores_version in (before.scores_version, reference.scores_version):
            before = point
            continue
        try:
            look = _look(point, reference, metric, metrics, suite, known)
        except LakeError:
            if not _has_scores(point):
                continue
            look = None
        if look is None:
            reference, before, looks = replace(point), point, 0
            continue
        looks += 1
        is_change = look.p_value is not None and look.p_value <= alpha / (looks * (looks + 1))
        cause = (look.cause or ", ".join(causes(replace(point), replace(before), metric))) if is_change else None
        yield replace(look, suite=suite, is_change_point=is_change, cause=cause)
        if is_change:
            reference, looks = replace(point), 0
        before = point


def _look(
    point: Point, reference: Point, metric: str, metrics: Sequence[type[BaseMetric[Any]]], suite: str, known: Mapping[LookKey, Look]
) -> Look | None:
    """Compare a point with its reference; None where they have nothing in common. Raises `LakeError` where scores are gone."""
    key = point.eval_name, point.model, metric, point.materialized_at, reference.materialized_at
    if key in known:
        return known[key]
    # The reference keeps its scores for the next comparison, the point does not.
    comparison = compare_metric(replace(point), reference, metric, metrics)
    if comparison is None or comparison.p_value is None:
        return None
    return Look(
        suite=suite,
        eval=point.eval_name,
        model=point.model,
        metric=metric,
        materialized_at=point.materialized_at,
        reference_at=reference.materialized_at,
        value=comparison.value_a,
        reference_value=comparison.value_b,
        difference=comparison.difference,
        p_value=comparison.p_value,
        is_change_point=False,
        cause=None,
    )


def _has_scores(point: Point) -> bool:
    try:
        return bool(replace(point).scores)
    except LakeError:
        return False
