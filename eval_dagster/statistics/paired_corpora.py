"""Compares two values of a metric of all samples together."""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

import numpy as np

from eval_dagster.statistics.comparison import ALPHA, CommonSamples, Comparison, Floats, common_samples, with_estimate
from eval_dagster.statistics.estimates import estimate_corpus
from eval_dagster.statistics.significance import MOST_ENUMERATED, are_few, detectable, flips_of_sums, student


def compare_corpora(
    a: Floats,
    b: Floats,
    aggregate: Callable[[Floats], Floats],
    *,
    clusters: Sequence[Hashable] | None = None,
    alpha: float = ALPHA,
    seed: int = 0,
) -> Comparison:
    """Compare two values of a metric of all samples together that is not their mean.

    Standard error and interval of the difference are from `estimate_corpus`, which draws the same clusters for both. The p-value is
    Student's of the difference divided by that standard error: it can be as small as Holm's correction needs, whereas a share of a
    thousand draws cannot. If at most 16 clusters and at most half of them differ, the p-value is exact: of the test that swaps a and b
    cluster by cluster.

    Args:
        a: Statistics of shape (samples, k); a row with NaN or an infinity is a sample without a value.
        b: Statistics of the same samples in the same order.
        aggregate: From sums of shape (m, k) to m values, NaN if there is none.
        clusters: The cluster of each sample. None: every sample is a cluster of its own.
        alpha: Two-sided level of significance of `min_detectable`.
        seed: Seed of the draws, which are the same for the same clusters in the same order.

    Raises:
        ValueError: The statistics have different shapes.
    """
    if a.shape != b.shape:
        raise ValueError(f"statistics of the shapes {a.shape} and {b.shape}; align the samples of two results of the same metric")
    common = common_samples(np.isfinite(a.sum(axis=1)), np.isfinite(b.sum(axis=1)), clusters)
    a, b, width = a[common.mask], b[common.mask], a.shape[1]
    known = replace(common.comparison(), value_a=_value(aggregate, a), value_b=_value(aggregate, b))
    if known.value_a is None or known.value_b is None:
        return known

    def difference(sums: Floats) -> Floats:
        return np.asarray(aggregate(sums[..., :width])) - np.asarray(aggregate(sums[..., width:]))

    estimate = estimate_corpus(np.hstack([a, b]), difference, clusters=common.labels, seed=seed)
    known = with_estimate(known, estimate)
    if known.stderr is not None:
        known = replace(known, min_detectable=detectable(known.stderr, common.degrees_of_freedom, alpha))
    return _tested(known, a, b, aggregate, common)


def _tested(known: Comparison, a: Floats, b: Floats, aggregate: Callable[[Floats], Floats], common: CommonSamples) -> Comparison:
    """The comparison with its p-value."""
    cluster, stderr = common.cluster, known.stderr
    count = len(np.unique(cluster[(a != b).any(axis=1)]))
    if known.n_clusters < 2 or known.difference is None:
        return known
    if are_few(count, known.n_clusters) or (stderr is None and count <= MOST_ENUMERATED):
        of_a, of_b = (np.stack([np.bincount(cluster, column) for column in side.T], axis=1).astype(float) for side in (a, b))
        return replace(known, test="sign flips", p_value=flips_of_sums(of_a, of_b, aggregate))
    if stderr is None:
        return known
    return replace(known, test="paired bootstrap", p_value=student(known.difference, stderr, common.degrees_of_freedom))


def _value(aggregate: Callable[[Floats], Floats], statistics: Floats) -> float | None:
    if not len(statistics):
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(np.asarray(aggregate(statistics.sum(axis=0)[np.newaxis]))[0])
    return value if math.isfinite(value) else None
