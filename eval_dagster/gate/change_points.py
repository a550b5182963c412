"""Change points: when scores left their bands in the history of an eval for a model.

A segment of the history starts at a reference. Each later result is compared with it, sample by sample; the first that differs starts the
next segment. The k-th comparison of a segment is significant at alpha / (k (k + 1)). These levels sum to at most alpha for a segment of any
length (Bonferroni's inequality), and later results do not change the findings about earlier ones.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from eval_dagster.errors import LakeError
from eval_dagster.lake.files import Lake
from eval_dagster.lake.format.file_reading import read_rows
from eval_dagster.lake.tables.rows import fields_in
from eval_dagster.metrics.base import BaseMetric
from eval_dagster.records.judgements import Look
from eval_dagster.results.comparison import causes, compare_metric
from eval_dagster.results.materializations import Materialization, overall
from eval_dagster.versions.hashes import code_version

LookKey = tuple[str, str, str, datetime, datetime]


def change_points(lake: Lake) -> list[Look]:
    """The points at which scores left their bands, by the last judgement of each suite. Skips damaged files; the catalog lists them."""
    found: list[Look] = []
    for files in lake.partitions("looks"):
        with suppress(LakeError):
            found += [look for look in read_looks(files[-1]) if look.is_change_point]
    return found


def read_looks(path: Path) -> list[Look]:
    """The rows of a file of looks. Raises `LakeError` if it is damaged."""
    return [Look(**fields_in(row, Look)) for row in read_rows(path)]


def key_of(look: Look) -> LookKey:
    """Identifies a comparison by eval, model, metric and the times of both results."""
    return look.eval, look.model, look.metric, look.materialized_at, look.reference_at


def look_version() -> str:
    """Version of the code that computes p-values. Looks from other code are computed again."""
    return code_version(find_looks)


def find_looks(
    points: Sequence[Materialization], metrics: Sequence[type[BaseMetric[Any]]], *, alpha: float, known: Mapping[LookKey, Look]
) -> Iterator[Look]:
    """Compare each past result of the current headline metric with the reference of its segment.

    Results with the same scores as the previous result or the reference are skipped. So are results with deleted scores, unless their
    comparison is known. If a result cannot be compared with the reference, a new segment starts without a change point.

    Args:
        points: All materializations of an eval for a model, the oldest first.
        metrics: The task's metrics.
        alpha: Two-sided level of significance of a segment.
        known: Looks of earlier judgements by `key_of`, from code of the same `look_version`. They are not computed again.
    """
    metric = next((row["metric"] for row in points[-1].metric_rows if row["is_headline"]), None) if points else None
    having = [point for point in points if metric is not None and overall(point).get(metric, {}).get("value") is not None]
    if metric is None or not having:
        return
    before = having[0]
    # A copy, so that its scores leave memory when another result becomes the reference.
    reference, looks = replace(before), 0
    for point in having[1:]:
        if point.scores_version in (before.scores_version, reference.scores_version):
            before = point
            continue
        try:
            look = _look(point, reference, metric, metrics, known)
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
        yield replace(look, is_change_point=is_change, cause=cause)
        if is_change:
            reference, looks = replace(point), 0
        before = point


def _look(
    point: Materialization, reference: Materialization, metric: str, metrics: Sequence[type[BaseMetric[Any]]], known: Mapping[LookKey, Look]
) -> Look | None:
    """Compare a point with its reference. None if they have nothing in common. Raises `LakeError` if scores were deleted."""
    key = point.eval_name, point.model, metric, point.materialized_at, reference.materialized_at
    if key in known:
        return known[key]
    # Only the reference keeps its scores in memory, for the next comparison.
    comparison = compare_metric(replace(point), reference, metric, metrics)
    if comparison is None or comparison.p_value is None:
        return None
    return Look(
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


def _has_scores(point: Materialization) -> bool:
    try:
        return bool(replace(point).scores)
    except LakeError:
        return False
