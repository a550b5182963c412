"""Aggregates of the scores of several evals: mean, weighted mean and median, with error bars that know which samples evals share.

Two evals that ask the same questions are correlated: a hard draw of questions lowers both. Their covariance is estimated from the clusters
of samples that both have; evals without a common cluster are independent.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from eval_dagster.statistics.bounded_means import Bounds
from eval_dagster.statistics.estimates import FEWEST_FREE, Floats, student, wilson, within

DRAWS = 4000
"""Draws of the scores for the error bar of a median."""
_SEED = 20251121


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The unit and the direction of a metric."""

    metric: str
    higher_is_better: bool
    bounds: Bounds | None
    """The least and the largest possible value, if they are known."""

    @property
    def unit(self) -> object:
        """Equal for metrics whose values can be averaged: those with the same finite range, and those with the same name."""
        if self.bounds is not None and all(map(math.isfinite, self.bounds)):
            return self.bounds
        return self.metric.partition("/")[0]

    def __str__(self) -> str:
        known = isinstance(self.unit, tuple) and self.bounds is not None
        of_range = f" from {self.bounds[0]:g} to {self.bounds[1]:g}" if known and self.bounds else ""
        return f"{self.metric}{of_range} ({'higher' if self.higher_is_better else 'lower'} is better)"


def mixed_scales(scales: Sequence[tuple[str, Scale]]) -> str | None:
    """The words on the first eval whose metric has another unit or direction than the first eval's. None if all can be averaged."""
    for name, scale in scales[1:]:
        first_name, first = scales[0]
        if scale.higher_is_better != first.higher_is_better or scale.unit != first.unit:
            what = "directions" if scale.higher_is_better != first.higher_is_better else "units"
            return f"the evals are in different {what}: {first_name} has {first}, {name} has {scale}"
    return None


@dataclass(frozen=True, kw_only=True)
class Part:
    """The score of one eval in an aggregate."""

    value: float
    stderr: float | None
    """Its standard error; null if there is none."""
    bounds: Bounds | None
    """The least and the largest possible value, if they are known."""
    clusters: NDArray[np.uint64]
    """The cluster of each sample with a value, as numbers that are equal in all evals for one cluster. Empty if they are not known."""
    influence: Floats | None
    """The influence of each of these samples on the score, as `influences` gives it. Null for a metric of all samples together."""
    n_clusters: int
    """Number of clusters."""


@dataclass(frozen=True, kw_only=True)
class Aggregated:
    """An aggregate with its uncertainty."""

    value: float
    stderr: float | None
    """Null if an eval has none."""
    ci_low: float | None
    """Lower end of the 95 % interval; null if the samples do not suffice for one."""
    ci_high: float | None
    """Upper end of the 95 % interval."""


def influences(values: Floats, subjects: NDArray[np.uint64] | None = None) -> Floats:
    """The influence of each sample on a mean: (x - mean) / n. Of a mean of G subjects' means: (x - mean of its subject) / (G n of it).

    Influence values are the derivatives of an estimate by the weights of its samples (Hampel 1974, JASA 69). Their sums over clusters have
    the sum of squares that is the cluster-robust variance of `estimate_mean`, but for its correction for few clusters.
    """
    if subjects is None:
        return np.divide(values - float(values.mean()), len(values))
    _, code, sizes = np.unique(subjects, return_inverse=True, return_counts=True)
    means = np.bincount(code, values) / sizes
    return np.divide(values - means[code], len(sizes) * sizes[code])


def correlations(parts: Sequence[Part]) -> tuple[Floats, NDArray[np.intp]]:
    """The correlations of evals' scores, and for each eval the number of its group of evals that share clusters.

    With u the sum of an eval's influences in a cluster, the correlation of two evals is sum over common clusters of u v, over the root of
    (sum of u^2) (sum of v^2), both over all of their own clusters: the covariance of Liang & Zeger (1986, Biometrika 73) for two means, in
    units of their standard errors. If the influences of one of two evals with a common cluster are not known or all 0, the correlation is
    taken to be 1, the worst case.
    """
    count = len(parts)
    of_parts = np.repeat(np.arange(count), [len(part.clusters) for part in parts])
    _, codes = np.unique(np.concatenate([part.clusters for part in parts]), return_inverse=True)
    shape = (count, int(codes.max(initial=-1)) + 1)
    values = np.concatenate([np.zeros(len(part.clusters)) if part.influence is None else part.influence for part in parts])
    sums = scipy.sparse.coo_array((values, (of_parts, codes)), shape=shape).tocsr()
    norms = np.sqrt(np.asarray((sums * sums).sum(axis=1)).reshape(-1))
    is_known = norms > 0
    found = np.asarray((sums @ sums.T).todense()) / np.maximum(np.outer(norms, norms), np.finfo(float).tiny)
    there = scipy.sparse.coo_array((np.ones(len(codes)), (of_parts, codes)), shape=shape).tocsr()
    are_shared = np.asarray((there @ there.T).todense()) > 0
    found = np.clip(np.where(are_shared & ~np.outer(is_known, is_known), 1.0, np.where(are_shared, found, 0.0)), -1.0, 1.0)
    np.fill_diagonal(found, 1.0)
    np.fill_diagonal(are_shared, True)
    groups = scipy.sparse.csgraph.connected_components(scipy.sparse.csr_array(are_shared), directed=False)[1]
    return found, np.asarray(groups, dtype=np.intp)


def aggregate_mean(parts: Sequence[Part], weights: Sequence[float]) -> Aggregated:
    """Estimate the weighted mean of evals' scores; the weights count in proportion to their sum.

    With weights w of the sum 1, standard errors s and correlations r as in `correlations`, the variance is the sum over all pairs of evals
    of w w' r s s': the delta method for a linear function. For independent evals this is the sum of (w s)^2, and for two copies of one eval
    s^2. The degrees of freedom are Satterthwaite's (1946, Biometrics Bulletin 2) over groups of evals that share clusters. A group has as
    many as its eval with the fewest clusters, less one.

    With known bounds the interval is Wilson's at the effective sample size p (1 - p) / variance, with p the value's place between the
    bounds, as in `estimate_macro`. An eval whose samples all score the same has the standard error 0, which says too much of few
    samples; in the interval it counts with Agresti's & Coull's (1998, The American Statistician 52). For a value at a bound, the size
    is 1 / sum of (w^2 / clusters) over evals; a group of evals that share clusters counts as one with the sum of their weights. Without
    bounds the interval is Student's, and there is none with less than 2 degrees of freedom or if nothing varies.

    Args:
        parts: The scores, at least one.
        weights: One a part, above 0.
    """
    shares = np.array(weights, dtype=float) / math.fsum(weights)
    value = math.fsum(share * part.value for share, part in zip(shares, parts, strict=True))
    errors = [part.stderr for part in parts if part.stderr is not None]
    if len(errors) < len(parts):
        return Aggregated(value=value, stderr=None, ci_low=None, ci_high=None)
    related, groups = correlations(parts)
    stderr = math.sqrt(variance_of(related, shares * np.array(errors)))
    seen = shares * _seen_errors(parts)
    clusters = np.array([part.n_clusters for part in parts], dtype=float)
    together = free_of_groups(related, groups, seen, clusters)
    size = 1 / sum(float(shares[each].sum()) ** 2 / float(clusters[each].min()) for each in _members(groups))
    return _with_interval(value, stderr, variance_of(related, seen), together, size, _bounds(parts, shares))


def aggregate_median(parts: Sequence[Part]) -> Aggregated:
    """Estimate the median of evals' scores.

    The standard error comes from a Gaussian multiplier bootstrap over clusters (Chernozhukov, Chetverikov & Kato 2013, Annals of Statistics
    41): in each draw the influences of a cluster on all evals are multiplied by one standard normal number, so that evals which share
    clusters move together. The scores of the draws are normal with the standard errors of the evals and the correlations of
    `correlations`, and are drawn as such, with a fixed seed.

    Chance spreads the scores around which the draws are made, which would make the draws' median too steady or too restless. So the scores
    are first drawn together to their median, by the root of the part of their variance that is not expected by chance (Efron & Morris 1975,
    JASA 70). The interval is Wilson's or Student's as in `aggregate_mean`, with the degrees of freedom of an eval with the median
    number of clusters. Evals whose samples all score the same count with Agresti's & Coull's standard error, as there.

    Args:
        parts: The scores, at least one.
    """
    values = np.array([part.value for part in parts])
    value, count = float(np.median(values)), len(parts)
    if any(part.stderr is None for part in parts):
        return Aggregated(value=value, stderr=None, ci_low=None, ci_high=None)
    related, _ = correlations(parts)
    errors = _seen_errors(parts)
    covariances = related * np.outer(errors, errors)
    kept = 1.0
    if count > 1 and (seen := float(values.var(ddof=1))) > 0:
        by_chance = float(np.trace(covariances) - covariances.sum() / count) / (count - 1)
        kept = math.sqrt(max(0.0, 1 - by_chance / seen))
    roots, vectors = np.linalg.eigh(related)
    factors = vectors * np.sqrt(np.maximum(roots, 0.0))
    factors /= np.sqrt((factors**2).sum(axis=1, keepdims=True))
    # Each draw with its mirror image, and with the variance 1: an eval that alone decides has its own standard error.
    numbers = np.random.default_rng(_SEED).standard_normal((DRAWS // 2, count))
    numbers = np.concatenate([numbers, -numbers])
    numbers /= np.sqrt((numbers**2).mean(axis=0))
    # Not a product of BLAS: its last digits depend on the number of threads.
    drawn = np.einsum("dk,pk->dp", numbers, factors)
    variance = float(np.median(kept * (values - value) + drawn * errors, axis=1).var(ddof=1)) if errors.any() else 0.0
    clusters = float(np.median([part.n_clusters for part in parts]))
    return _with_interval(value, math.sqrt(variance), variance, max(1.0, clusters - 1), clusters, _bounds(parts, None))


def variance_of(related: Floats, errors: Floats) -> float:
    """The variance of a sum with these correlations and standard errors."""
    return max(0.0, float((related * np.outer(errors, errors)).sum()))


def free_of_groups(related: Floats, groups: NDArray[np.intp], errors: Floats, clusters: Floats) -> float:
    """Satterthwaite's degrees of freedom of a sum, over the groups of `correlations`. Infinite if nothing varies.

    Args:
        related: Correlations of the summands.
        groups: The number of the group of each summand.
        errors: Their standard errors.
        clusters: The number of clusters of each.
    """
    members = _members(groups)
    free = np.array([max(1.0, clusters[each].min() - 1) for each in members])
    of_groups = np.array([variance_of(related[np.ix_(each, each)], errors[each]) for each in members])
    return float(of_groups.sum() ** 2 / (of_groups**2 / free).sum()) if of_groups.any() else math.inf


def _members(groups: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    return [np.flatnonzero(groups == group) for group in range(int(groups.max()) + 1)]


def _seen_errors(parts: Sequence[Part]) -> Floats:
    """The standard errors of scores, and of those that do not vary, as if two more samples were at each bound, if there are bounds."""
    found = np.zeros(len(parts))
    for place, part in enumerate(parts):
        found[place] = part.stderr or 0.0
        if part.stderr == 0 and part.bounds is not None and all(map(math.isfinite, part.bounds)):
            width = part.bounds[1] - part.bounds[0]
            share = ((part.value - part.bounds[0]) / width * part.n_clusters + 2) / (part.n_clusters + 4)
            found[place] = width * math.sqrt(share * (1 - share) / (part.n_clusters + 4))
    return found


def _with_interval(value: float, stderr: float, variance: float, free: float, size: float, bounds: Bounds | None) -> Aggregated:
    """An aggregate with its interval; `size` is the number of samples that it counts as at a bound."""
    low: float | None = None
    high: float | None = None
    if bounds is not None and all(map(math.isfinite, bounds)):
        width = bounds[1] - bounds[0]
        place = min(1.0, max(0.0, (value - bounds[0]) / width))
        if variance > 0 and 0 < place < 1:
            size = place * (1 - place) * width**2 / variance
        ends = wilson(place, size, student(free))
        low, high = min(value, bounds[0] + width * ends[0]), max(value, bounds[0] + width * ends[1])
    elif variance > 0 and free >= FEWEST_FREE:
        half = student(free) * math.sqrt(variance)
        low, high = within(bounds, (value - half, value + half))
    return Aggregated(value=value, stderr=stderr, ci_low=low, ci_high=high)


def _bounds(parts: Sequence[Part], shares: Floats | None) -> Bounds | None:
    """The bounds of a weighted mean, or of a median without weights. None if a part has none."""
    known = [part.bounds for part in parts if part.bounds is not None]
    if len(known) < len(parts):
        return None
    ends = np.array(known)
    low, high = (ends.T @ shares) if shares is not None else (ends[:, 0].min(), ends[:, 1].max())
    return float(low), float(high)
