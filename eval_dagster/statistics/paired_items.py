"""Comparing two values of a metric that is computed from one item a sample."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from eval_dagster.statistics.comparison import ALPHA, CommonSamples, Comparison, common_samples, with_estimate
from eval_dagster.statistics.items import estimate_items
from eval_dagster.statistics.significance import are_few, detectable, student

_MOST_SWAPPED = 10
"""Clusters that differ whose swaps are all gone through: each swap costs two aggregates."""


def compare_items(
    a: Sequence[Any],
    b: Sequence[Any],
    aggregate: Callable[[list[Any]], float],
    *,
    clusters: Sequence[Hashable] | None = None,
    alpha: float = ALPHA,
) -> Comparison:
    """Compare two values of a metric of all samples together, on the samples that both have.

    Standard error and interval are those that `estimate_items` gives the difference when the same clusters are drawn for both. The p-value
    is Student's of the difference over that standard error. Where no more than 10 clusters differ, and no more than half of all, it is
    that of the test that swaps a and b cluster by cluster, exactly: as in `compare_corpora`.

    Args:
        a: One item a sample; None for a sample without one.
        b: Those of the same samples in the same order.
        aggregate: From items to a value.
        clusters: What each sample belongs to. None: every sample stands alone.
        alpha: Two-sided level of significance that `min_detectable` is for.

    Raises:
        Exception: What `aggregate` raises for all items of a side.
    """
    has_a, has_b = (np.array([item is not None for item in side], dtype=bool) for side in (a, b))
    common = common_samples(has_a, has_b, clusters)
    pairs = [(a[position], b[position]) for position in np.flatnonzero(common.mask).tolist()]
    known = common.comparison()
    if not pairs:
        return known

    def value(side: int, chosen: Sequence[tuple[Any, Any]]) -> float:
        return float(aggregate([pair[side] for pair in chosen]))

    def difference(chosen: Sequence[tuple[Any, Any]]) -> float:
        return value(0, chosen) - value(1, chosen)

    known = replace(known, value_a=value(0, pairs), value_b=value(1, pairs))
    known = with_estimate(known, estimate_items(pairs, difference, clusters=common.labels))
    if known.stderr is not None:
        known = replace(known, min_detectable=detectable(known.stderr, common.degrees_of_freedom, alpha))
    if known.n_clusters < 2 or known.difference is None:
        return known
    differ = sorted({int(cluster) for cluster, (of_a, of_b) in zip(common.cluster, pairs, strict=True) if _differ(of_a, of_b)})
    if len(differ) <= _MOST_SWAPPED and (are_few(len(differ), known.n_clusters) or known.stderr is None):
        return replace(known, test="sign flips", p_value=_swapped(pairs, common, differ, difference))
    if known.stderr is None:
        return known
    return replace(known, test="paired bootstrap", p_value=student(known.difference, known.stderr, common.degrees_of_freedom))


def _swapped(
    pairs: Sequence[tuple[Any, Any]],
    common: CommonSamples,
    differ: Sequence[int],
    difference: Callable[[Sequence[tuple[Any, Any]]], float],
) -> float:
    """The share of all swaps of the clusters that differ whose difference is at least as large. One without a value counts as large."""
    seen = abs(difference(pairs))
    at_least = 0
    for swaps in product((False, True), repeat=len(differ)):
        turned = {cluster for cluster, swap in zip(differ, swaps, strict=True) if swap}
        chosen = [pair[::-1] if cluster in turned else pair for cluster, pair in zip(common.cluster.tolist(), pairs, strict=True)]
        # Swaps that are equal on paper differ in the last digits.
        at_least += not abs(difference(chosen)) < seen - 1e-9 * max(1.0, seen)
    return float(at_least / 2 ** len(differ))


def _differ(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return not np.array_equal(a, b)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) != len(b) or any(map(_differ, a, b))
    return bool(a != b)
