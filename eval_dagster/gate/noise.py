"""The noise of sampled answers: by how much two runs of the same model differ."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from eval_dagster.gate.materializations import Point, metric_versions, overall
from eval_dagster.statistics.verdicts import NoiseFloor, noise_floor


def measured_noise(point: Point, others: Sequence[Point], metric: str) -> NoiseFloor | None:
    """Measure the noise of a metric that is a mean: from several texts of each prompt, or else from repeated runs.

    Args:
        point: The result in question.
        others: All materializations of its eval for its model. Those with the same versions and different answers are repeated runs; equal
            answers come from the cache.
        metric: Its name.

    Returns:
        None if no prompt was answered twice.

    Raises:
        LakeError: The scores of a point were deleted.
    """
    if metric not in overall(point):
        return None
    rows = point.scores_by_metric.get(metric, {})
    subjects = [row["subject"] for row in rows.values()] if overall(point)[metric]["aggregation"] == "macro" else None
    texts = [row["text_values"] or () for row in rows.values()]
    most = max(map(len, texts), default=0)
    if most > 1:
        return noise_floor(_matrix(texts, most), texts=most, subjects=subjects)
    repeats = [point, *_repeats(point, others, metric)]
    if len(repeats) == 1:
        return None
    columns = [each.scores_by_metric.get(metric, {}) for each in repeats]
    values = [[column[sample]["value"] if sample in column else None for column in columns] for sample in rows]
    return noise_floor(_matrix(values, len(columns)), subjects=subjects)


def _repeats(point: Point, others: Sequence[Point], metric: str) -> list[Point]:
    """One materialization of the same versions for each set of answers other than the point's own."""
    found: dict[str, Point] = {}
    for other in others:
        is_same = other.versions == point.versions and metric_versions(other).get(metric) == metric_versions(point).get(metric)
        if is_same and other.has_scores:
            found[other.metrics.info.inputs["model_outputs"]] = other
    found.pop(point.metrics.info.inputs["model_outputs"], None)
    return list(found.values())


def _matrix(rows: Sequence[Sequence[float | None]], width: int) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """One row a sample; NaN where there is no value."""
    return np.array([[*row, *[None] * (width - len(row))] for row in rows], dtype=float).reshape(len(rows), width)
