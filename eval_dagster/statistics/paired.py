"""Compares two results on the samples that both have.

Some samples are harder than others. A comparison of the same samples leaves this variance out, so it detects smaller changes than a
comparison of two scores with their error bars. `tests/eval_dagster/statistics/test_paired_detection.py` measures how much smaller.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal, TypeAlias

import numpy as np
import scipy
from numpy.typing import NDArray

from eval_dagster.statistics.bounded_means import Bounds
from eval_dagster.statistics.estimates import (
    CONFIDENCE,
    Estimate,
    covariance_of_groups,
    degrees_of_freedom,
    estimate_corpus,
    estimate_items,
    estimate_macro,
    estimate_mean,
    numbered,
)
from eval_dagster.statistics.significance import (
    MOST_ENUMERATED,
    are_few,
    detectable,
    detectable_share,
    exact_mcnemar,
    flips_of_counts,
    flips_of_many,
    flips_of_sums,
    student,
)

ALPHA = 0.05
"""Two-sided level of significance, unless a suite sets its own."""

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.intp]
Labels: TypeAlias = Sequence[Hashable] | Integers
"""A label for each sample; equal labels are one cluster or one subject."""
Test: TypeAlias = Literal[
    "exact McNemar",
    "sequential McNemar",
    "sign flips",
    "paired t",
    "paired bootstrap",
    "joint sign flips",
    "drawn sign flips",
    "Student's t",
]
"""The test of a p-value: see `compare_means` and `compare_corpora`, and for aggregates `compare_weighted` and `compare_medians`."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Result a minus result b on the samples that both have a value for. Null without data, never 0."""

    value_a: float | None = None
    """The metric of a on the common samples."""
    value_b: float | None = None
    """The metric of b on the common samples."""
    difference: float | None = None
    """`value_a` - `value_b`, whichever direction is the better one."""
    stderr: float | None = None
    """Standard error of the difference; null if there are fewer than two clusters, or if nothing varies."""
    ci_low: float | None = None
    """Lower end of the 95 % confidence interval of the difference."""
    ci_high: float | None = None
    """Upper end of the 95 % confidence interval of the difference."""
    p_value: float | None = None
    """Two-sided: the probability of a difference at least this large if nothing has changed. Null for fewer than two common clusters."""
    test: Test | None = None
    """The test of the p-value."""
    min_detectable: float | None = None
    """The smallest difference that this comparison would have detected with the probability 0.8; null if there is none or it is unknown."""
    n_common: int
    """Samples with a value in both. Only these are compared."""
    n_only_a: int
    """Samples with a value in a only: in b they are errors or missing."""
    n_only_b: int
    """Samples with a value in b only."""
    n_neither: int
    """Samples with a value in neither."""
    n_clusters: int
    """Independent groups of the common samples; `n_common` if every sample is a group of its own."""
    n_higher: int | None = None
    """Common samples whose value is higher in a; null for a corpus metric, whose samples have no value."""
    n_lower: int | None = None
    """Common samples whose value is lower in a."""
    are_shares: bool = False
    """Whether every value is 0 or 1 and can be nothing less or more, and the means are over the samples."""
    groups: float | None = None
    """The number of clusters of equal weight whose mean has the same variance: 1 / sum of the squared weights of clusters (Kish 1965,
    "Survey Sampling"). Null for a corpus metric.
    """
    heaviest: float | None = None
    """The largest weight of a cluster in the mean, from 0 to 1. Null for a corpus metric."""
    largest_change: float | None = None
    """The largest sum, of either sign, of the differences of a cluster's samples. Null unless all values are 0 and 1."""
    width: float | None = None
    """The largest minus the least possible value of a sample. Null if it is not known or infinite, and for a corpus metric."""


@dataclass(frozen=True, kw_only=True)
class CommonSamples:
    """The samples of two aligned columns that both results have a value for."""

    mask: NDArray[np.bool_]
    """Which of the samples are common."""
    cluster: Integers
    """The clusters of the common samples, as numbers from 0."""
    n_only_a: int
    n_only_b: int
    n_neither: int

    @property
    def n_clusters(self) -> int:
        """Number of clusters of the common samples."""
        return int(self.cluster.max(initial=-1)) + 1

    @property
    def labels(self) -> list[int] | None:
        """The clusters as `eval_dagster.statistics.estimates` takes them; None if every sample is a cluster of its own."""
        return self.cluster.tolist() if self.n_clusters < len(self.cluster) else None

    @property
    def degrees_of_freedom(self) -> float:
        """Satterthwaite's degrees of freedom of a mean over the clusters, as in `estimate_mean`."""
        return degrees_of_freedom(np.bincount(self.cluster))

    def comparison(self) -> Comparison:
        """A comparison with the numbers of samples, and without values."""
        return Comparison(
            n_common=int(self.mask.sum()),
            n_only_a=self.n_only_a,
            n_only_b=self.n_only_b,
            n_neither=self.n_neither,
            n_clusters=self.n_clusters,
        )


def common_samples(has_a: NDArray[np.bool_], has_b: NDArray[np.bool_], clusters: Labels | None) -> CommonSamples:
    """Find the samples that both results have a value for. Raises `ValueError` if results and clusters have different lengths."""
    if len(has_a) != len(has_b):
        raise ValueError(f"results of {len(has_a)} and {len(has_b)} samples; align them, with None where a sample is not there")
    mask = has_a & has_b
    return CommonSamples(
        mask=mask,
        cluster=_numbered(clusters, mask),
        n_only_a=int((has_a & ~has_b).sum()),
        n_only_b=int((has_b & ~has_a).sum()),
        n_neither=int((~has_a & ~has_b).sum()),
    )


def _numbered(labels: Labels | None, present: NDArray[np.bool_]) -> Integers:
    """The labels that are present, as `numbered` numbers them. Numbers are compared many at once."""
    if not isinstance(labels, np.ndarray):
        return numbered(labels, present)
    if len(labels) != len(present):
        return numbered(labels.tolist(), present)  # raises
    _, first, inverse = np.unique(labels[present], return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.intp)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


def with_estimate(comparison: Comparison, estimate: Estimate) -> Comparison:
    """The comparison with the estimate of its difference."""
    return replace(comparison, difference=estimate.value, stderr=estimate.stderr, ci_low=estimate.ci_low, ci_high=estimate.ci_high)


_MOST_SWAPPED = 10
"""Clusters that differ whose swaps are all gone through: each swap costs two aggregates."""
Column: TypeAlias = Sequence[float | None] | Floats
_UPPER = (1 + CONFIDENCE) / 2
_NEGLIGIBLE = 1e-12
"""A standard error that is smaller than this share of the largest difference is a rounding error."""


def compare_corpora(
    a: Floats,
    b: Floats,
    aggregate: Callable[[Floats], Floats],
    *,
    clusters: Labels | None = None,
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
    if known.n_clusters < 2 or known.difference is None:
        return known
    differ = len(np.unique(common.cluster[(a != b).any(axis=1)]))
    if are_few(differ, known.n_clusters) or (known.stderr is None and differ <= MOST_ENUMERATED):
        of_a, of_b = (np.stack([np.bincount(common.cluster, column) for column in side.T], axis=1).astype(float) for side in (a, b))
        return replace(known, test="sign flips", p_value=flips_of_sums(of_a, of_b, aggregate))
    if known.stderr is None:
        return known
    return replace(known, test="paired bootstrap", p_value=student(known.difference, known.stderr, common.degrees_of_freedom))


def _value(aggregate: Callable[[Floats], Floats], statistics: Floats) -> float | None:
    if not len(statistics):
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(np.asarray(aggregate(statistics.sum(axis=0)[np.newaxis]))[0])
    return value if math.isfinite(value) else None


def compare_items(
    a: Sequence[Any],
    b: Sequence[Any],
    aggregate: Callable[[list[Any]], float],
    *,
    clusters: Labels | None = None,
    alpha: float = ALPHA,
) -> Comparison:
    """Compare two values of a metric of all samples together, on the samples that both have.

    Standard error and interval are those that `estimate_items` gives the difference when the same clusters are drawn for both. The p-value
    is Student's of the difference over that standard error. If no more than 10 clusters differ, and no more than half of all, it is
    the p-value of the test that swaps a and b cluster by cluster, exactly: as in `compare_corpora`.

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
        # The share of all swaps whose difference is at least as large; one without a value counts as large.
        seen, at_least = abs(difference(pairs)), 0
        for swaps in product((False, True), repeat=len(differ)):
            turned = {cluster for cluster, swap in zip(differ, swaps, strict=True) if swap}
            chosen = [pair[::-1] if cluster in turned else pair for cluster, pair in zip(common.cluster.tolist(), pairs, strict=True)]
            # Swaps that are equal on paper differ in the last digits.
            at_least += not abs(difference(chosen)) < seen - 1e-9 * max(1.0, seen)
        return replace(known, test="sign flips", p_value=float(at_least / 2 ** len(differ)))
    if known.stderr is None:
        return known
    return replace(known, test="paired bootstrap", p_value=student(known.difference, known.stderr, common.degrees_of_freedom))


def _differ(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return not np.array_equal(a, b)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) != len(b) or any(map(_differ, a, b))
    return bool(a != b)


def compare_means(
    a: Column,
    b: Column,
    *,
    clusters: Labels | None = None,
    subjects: Labels | None = None,
    bounds: Bounds | None = None,
    alpha: float = ALPHA,
) -> Comparison:
    """Compare two means of the same samples.

    Standard error and interval of the differences as from `estimate_mean` and `estimate_macro`: with bounds of the values, the
    interval holds although nearly all differences are 0, and without bounds there is none if all differences are equal. If every value
    is 0 or 1, the interval is Bonett and Price's (2012, Journal of Educational and Behavioral Statistics 37), for clusters at the
    effective sample size; it has a width even if all answers agree. The p-value is of one of these tests:

    - the exact McNemar's test, if every value is 0 or 1 and the mean is over the samples;
    - the exact test that swaps a and b cluster by cluster, if such samples belong to clusters. McNemar's test assumes independent samples.
      This test is valid for any dependence within clusters, and equals McNemar's for clusters of one sample;
    - the paired t test, robust to clusters, otherwise. If at most 16 clusters and at most half of them differ, or if the differences do not
      vary, its type I error is inflated, and the test that swaps takes its place.

    Args:
        a: One value per sample; None, NaN or an infinity if a sample has none, because of an error or because it is missing.
        b: The values of the same samples in the same order.
        clusters: The cluster of each sample. Samples of one cluster are not independent. None: every sample is a cluster of its own.
        subjects: If given, the mean of the subjects' means is compared, with equal weights of all subjects that have common samples.
        bounds: The least and the largest possible value, if they are known.
        alpha: Two-sided level of significance of `min_detectable`.

    Raises:
        ValueError: The columns have different lengths.
    """
    of_a, of_b = np.array(a, dtype=float), np.array(b, dtype=float)
    common = common_samples(np.isfinite(of_a), np.isfinite(of_b), clusters)
    if not common.mask.any():
        return common.comparison()
    of_a, of_b = of_a[common.mask], of_b[common.mask]
    subject = np.zeros_like(common.cluster) if subjects is None else _numbered(subjects, common.mask)
    sizes = np.bincount(subject)
    weights = 1 / (len(sizes) * sizes[subject])
    of_clusters = np.bincount(common.cluster, weights)
    known = replace(
        common.comparison(),
        value_a=_mean(of_a, subject),
        value_b=_mean(of_b, subject),
        n_higher=int((of_a > of_b).sum()),
        n_lower=int((of_a < of_b).sum()),
        groups=1 / float((of_clusters**2).sum()),
        heaviest=float(of_clusters.max()),
        width=None if bounds is None or not math.isfinite(bounds[1] - bounds[0]) else bounds[1] - bounds[0],
    )
    if len(sizes) == 1 and np.isin([of_a, of_b], (0, 1)).all():
        can_be_shares = bounds is not None and bounds[0] >= 0 and bounds[1] <= 1
        return _shares(replace(known, are_shares=can_be_shares), of_a - of_b, common, alpha)
    width = math.inf if bounds is None else bounds[1] - bounds[0]
    return _means(known, of_a - of_b, common, subject, weights, (-width, width), alpha)


def _mean(values: Floats, subject: Integers) -> float:
    return float(np.mean([values[subject == each].mean() for each in range(int(subject.max()) + 1)]))


def _shares(known: Comparison, differences: Floats, common: CommonSamples, alpha: float) -> Comparison:
    """Compare shares of samples, each of which is right or wrong. The interval is Bonett and Price's."""
    n, free, are_clustered = known.n_common, common.degrees_of_freedom, known.n_clusters < known.n_common
    known = with_estimate(known, estimate_mean(differences.tolist(), proportion=False, clusters=common.labels))
    up, down = int((differences > 0).sum()), int((differences < 0).sum())
    known = replace(known, largest_change=float(np.abs(np.bincount(common.cluster, differences)).max()))
    if not are_clustered and n > 1:
        known = replace(known, p_value=float(exact_mcnemar(np.int64(up), np.int64(down))), test="exact McNemar")
    elif known.n_clusters > 1:
        advantages = np.bincount(common.cluster, differences).round().astype(np.int64)
        known = replace(known, p_value=flips_of_counts(advantages), test="sign flips")
    # The samples that a difference costs are not noise of the next comparison.
    is_found = known.p_value is not None and known.p_value <= alpha
    least = detectable_share(n, 2 * min(up, down) if is_found else up + down, alpha)
    size, quantile = float(n), float(scipy.special.ndtri(_UPPER))
    if are_clustered and known.n_clusters > 1 and known.stderr is None:  # one cluster holds nearly all samples
        return replace(known, ci_low=None, ci_high=None, min_detectable=None)
    if are_clustered:
        # The effective size: at most the number of samples, or the number of clusters if all differences are equal.
        variance, quantile = float(differences.var()), float(scipy.special.stdtrit(free, _UPPER))
        if variance == 0 or known.stderr is None:
            size = known.n_clusters
        elif known.stderr > 0:
            size = min(variance / known.stderr**2, n)
        # At least the difference that independent samples detect; null if the clusters are too few for any test.
        of_clusters = detectable_share(known.n_clusters, 0, alpha)
        if least is not None and of_clusters is not None:
            least = max(least, detectable(known.stderr, free, alpha, spread=1 / n)) if known.stderr else of_clusters
            least = least if least <= 1 else None
        else:
            least = None
    share_up, share_down = ((size * float((sign * differences > 0).mean()) + 1) / (size + 2) for sign in (1, -1))
    middle = share_up - share_down
    half = quantile * math.sqrt((share_up + share_down - middle**2) / (size + 2))
    return replace(known, ci_low=max(-1.0, middle - half), ci_high=min(1.0, middle + half), min_detectable=least)


def _means(
    known: Comparison,
    differences: Floats,
    common: CommonSamples,
    subject: Integers,
    weights: Floats,
    bounds: Bounds,
    alpha: float,
) -> Comparison:
    """Compare means of any values, each sample with its weight. `bounds` are of a difference."""
    if subject.max() == 0:
        estimate = estimate_mean(differences.tolist(), proportion=False, clusters=common.labels, bounds=bounds)
        free = common.degrees_of_freedom
    else:
        masks = [subject == each for each in range(int(subject.max()) + 1)]
        members = [differences[mask].tolist() for mask in masks]
        clusters = [common.cluster[mask].tolist() for mask in masks]
        groups = [estimate_mean(values, proportion=False, clusters=own) for values, own in zip(members, clusters, strict=True)]
        shared = covariance_of_groups(differences.tolist(), subject.tolist(), common.cluster.tolist())
        estimate = estimate_macro(groups, proportion=False, covariance=shared, bounds=bounds, members=members)
        # As `estimate_macro` has them.
        variances = np.square([group.stderr or 0.0 for group in groups])
        apart = np.array([max(1, group.n_clusters - 1) for group in groups])
        free = float(variances.sum() ** 2 / (variances**2 / apart).sum() if shared <= 0 and variances.any() else apart.min())
    known = with_estimate(known, estimate)
    if known.n_clusters < 2:
        return known
    contributions = np.bincount(common.cluster, weights * differences).astype(float)
    changed = np.unique(common.cluster[differences != 0])
    if estimate.stderr is not None and estimate.stderr > _NEGLIGIBLE * float(np.abs(differences).max()):
        spread = float((weights**2).sum()) if np.isin(differences, (-1, 0, 1)).all() else 0.0
        known = replace(known, min_detectable=detectable(estimate.stderr, free, alpha, spread=spread))
        if not are_few(len(changed), known.n_clusters):
            return replace(known, test="paired t", p_value=student(float(contributions.sum()), estimate.stderr, free))
    if len(changed) <= MOST_ENUMERATED:
        halves = contributions[changed, np.newaxis] / 2
        p_value = flips_of_sums(halves, -halves, lambda sums: sums[:, 0])
    else:
        p_value = flips_of_many(contributions)
    return replace(known, test="sign flips", p_value=p_value)
