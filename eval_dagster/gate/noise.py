"""How much a score differs between runs of one model, by texts of each prompt or by repeated runs."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow.compute as pc

from eval_dagster.errors import LakeError
from eval_dagster.gate.looks import is_part
from eval_dagster.results.materializations import Materialization, metric_versions, overall
from eval_dagster.results.paired_scores import PairedScores
from eval_dagster.statistics.verdicts import NoiseFloor, noise_floor


def measured_noise(point: Materialization, others: Sequence[Materialization], metric: str) -> NoiseFloor | None:
    """Measure the noise of a metric that is a mean, from several texts of each prompt or else from repeated runs.

    Args:
        point: The result in question.
        others: All materializations of its eval for its model. With the same versions and different answers, they are repeated runs. Equal
            answers come from the cache.
        metric: Its name.

    Returns:
        None if no prompt was answered twice.

    Raises:
        LakeError: The scores of `point` were deleted or are damaged.
    """
    if metric not in overall(point):
        return None
    scores = point.scores_of(metric)
    subjects = scores["subject"].to_pylist() if overall(point)[metric]["aggregation"] == "macro" else None
    most = pc.max(pc.list_value_length(scores["text_values"])).as_py() or 0
    if most > 1:
        texts = [values or () for values in scores["text_values"].to_pylist()]
        return noise_floor(_matrix(texts, most), texts=most, subjects=subjects)
    repeats: dict[str, Materialization] = {}  # one for each set of answers other than the point's own
    for other in others:
        is_same = other.versions == point.versions and metric_versions(other).get(metric) == metric_versions(point).get(metric)
        if is_same and other.has_scores and not is_part(other):
            repeats[other.metrics.info.inputs["model_outputs"]] = other
    repeats.pop(point.metrics.info.inputs["model_outputs"], None)
    others_values = []  # the samples of the point are the first ones of each pair
    for each in repeats.values():
        with suppress(LakeError):  # a damaged file counts as little as a deleted one
            others_values.append(PairedScores.of(scores, each.scores_of(metric)).values(of_a=False)[: len(scores)])
    if not others_values:
        return None
    values = np.stack([np.asarray(scores["value"].to_numpy(), dtype=float), *others_values], axis=1)
    return noise_floor(values, subjects=subjects)


def _matrix(rows: Sequence[Sequence[float | None]], width: int) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """One row per sample; NaN for a missing value."""
    return np.array([[*row, *[None] * (width - len(row))] for row in rows], dtype=float).reshape(len(rows), width)
