"""The difference of an aggregate between two states of several evals, and the test that nothing has changed.

Each eval is compared on the samples that its two states have in common. Two evals that ask the same questions change together, so their
differences are added up cluster by cluster, and a cluster counts once, however many evals have it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy
from numpy.typing import NDArray

from eval_dagster.statistics.aggregates import Part, correlations, free_of_groups, variance_of
from eval_dagster.statistics.estimates import CONFIDENCE, FEWEST_FREE, Floats
from eval_dagster.statistics.paired import ALPHA, Comparison
from eval_dagster.statistics.significance import detectable, flips_of_any, student

DRAWS = 40_000
"""Draws of the evals' differences for the test of a median."""
_SEED = 20251121
_UPPER = (1 + CONFIDENCE) / 2
_FEWEST_REACHED = 50
"""Draws as extreme as the difference from which on their share is a p-value."""


@dataclass(frozen=True, kw_only=True)
class EvalDifference:
    """The difference of one eval in an aggregate, by the clusters of the samples that both states have."""

    comparison: Comparison
    """The result as a, the earlier state as b."""
    samples: NDArray[np.intp]
    """The common samples, as numbers that are equal in all evals for one sample."""
    clusters: NDArray[np.intp]
    """The cluster of each of these samples, as numbers that are equal in all evals for one cluster."""
    contributions: Floats | None
    """The part of each sample in the difference, which they sum up to. Null for a metric of all samples together."""
    centred: Floats | None
    """The influence of each sample on the difference: its part, less the part that it has by the mean alone."""
    zero: float = 0.0
    """The score that counts as 0, in the metric's unit: the score of guessing, if the aggregate is normalised."""
    unit: float = 1.0
    """The score that counts as 1, less `zero`."""

    @property
    def now(self) -> float:
        """The score of the result."""
        return ((self.comparison.value_a or 0.0) - self.zero) / self.unit

    @property
    def before(self) -> float:
        """The score of the earlier state."""
        return ((self.comparison.value_b or 0.0) - self.zero) / self.unit

    @property
    def difference(self) -> float:
        """The difference."""
        return (self.comparison.difference or 0.0) / self.unit

    @property
    def stderr(self) -> float:
        """Its standard error; 0 if nothing varies."""
        return (self.comparison.stderr or 0.0) / self.unit

    @property
    def change(self) -> float:
        """The most that the change of one sample can move the score; 0 for scores without a range."""
        return 0.0 if self.comparison.width is None else self.comparison.width / self.unit / (self.comparison.n_clusters + 2)


def compare_weighted(parts: Sequence[EvalDifference], weights: Sequence[float], *, alpha: float = ALPHA) -> Comparison:
    """Compare two weighted means of evals' scores; the weights count in proportion to their sum.

    If a and b are interchangeable, so are all answers of a cluster in all evals together, and the sum of its weighted parts in the
    differences has either sign with the probability 1/2, for any dependence within a cluster and between evals. `flips_of_any`
    gives the p-value of these sums. With a metric of all samples together, whose samples have no part of their own, it is Student's of the
    difference over its standard error.

    Standard error and degrees of freedom are as in `aggregate_mean`, with the differences in the place of the scores. The 95 % interval
    is Student's as if one more sample had changed each way, in the eval where this moves the aggregate most: for one eval the standard
    error of Bonett and Price (2012, Journal of Educational and Behavioral Statistics 37). So it has a width even if all answers agree.

    Args:
        parts: The differences, at least one.
        weights: One a part, above 0.
        alpha: Two-sided level of significance of `min_detectable`.
    """
    shares = np.array(weights, dtype=float) / math.fsum(weights)
    related, groups = correlations([_part(each, each.centred) for each in parts])
    errors = shares * np.array([each.stderr for each in parts])
    free = free_of_groups(related, groups, errors, np.array([each.comparison.n_clusters for each in parts], dtype=float))
    stderr = math.sqrt(variance_of(related, errors))
    now, before = (math.fsum(shares * np.array(column)) for column in zip(*((each.now, each.before) for each in parts), strict=True))
    difference = math.fsum(share * each.difference for share, each in zip(shares, parts, strict=True))
    seen = math.hypot(stderr, math.sqrt(2) * max(share * each.change for share, each in zip(shares, parts, strict=True)))
    found = _comparison(parts, now, before, difference, stderr, seen, free, alpha)
    known = [share / each.unit * each.contributions for share, each in zip(shares, parts, strict=True) if each.contributions is not None]
    if len(known) == len(parts):
        codes = np.unique(np.concatenate([each.clusters for each in parts]), return_inverse=True)[1]
        return replace(found, p_value=flips_of_any(np.bincount(codes, np.concatenate(known)).astype(float)), test="joint sign flips")
    if stderr == 0:
        return replace(found, p_value=1.0 if difference == 0 else None, test="Student's t")
    return replace(found, p_value=student(difference, stderr, free), test="Student's t")


def compare_medians(parts: Sequence[EvalDifference], *, alpha: float = ALPHA) -> Comparison:
    """Compare two medians of evals' scores.

    The test swaps a and b cluster by cluster, as `compare_weighted` does. The differences of the evals under all swaps are normal with the
    sums of the products of their clusters' parts as covariances, and are drawn as such, with a fixed seed; each draw moves the scores of a
    and b by half of it, up and down from their means. The p-value is the larger of the share of draws whose medians differ by as much as
    was seen, and the tail of a normal distribution with the spread of the draws, which reaches further than the draws do.

    Standard error and interval come from draws around the scores that were seen. For the interval, one more sample has changed each way in
    every eval, since any of them may be the middle one.

    Args:
        parts: The differences, at least one.
        alpha: Two-sided level of significance of `min_detectable`.
    """
    now, before = (np.array(column) for column in zip(*((each.now, each.before) for each in parts), strict=True))
    difference = float(np.median(now) - np.median(before))
    numbers = np.random.default_rng(_SEED).standard_normal((DRAWS // 2, len(parts)))
    numbers = np.concatenate([numbers, -numbers])

    def drawn(centre_a: Floats, centre_b: Floats, related: Floats, errors: Floats) -> Floats:
        roots, vectors = np.linalg.eigh(related)
        factors = vectors * np.sqrt(np.maximum(roots, 0.0))
        # Not a product of BLAS: its last digits depend on the number of threads.
        moves = np.einsum("dk,pk->dp", numbers, factors) * errors / 2
        return np.asarray(np.median(centre_a + moves, axis=1) - np.median(centre_b - moves, axis=1))

    related, _ = correlations([_part(each, each.centred) for each in parts])
    errors = np.array([each.stderr for each in parts])
    seen = drawn(now, before, related, np.array([math.hypot(each.stderr, math.sqrt(2) * each.change) for each in parts]))
    free = max(1.0, float(np.median([each.comparison.n_clusters for each in parts])) - 1)
    stderr = float(drawn(now, before, related, errors).std()) if errors.any() else 0.0
    found = _comparison(parts, float(np.median(now)), float(np.median(before)), difference, stderr, float(seen.std()), free, alpha)
    if difference == 0:
        return replace(found, p_value=1.0, test="drawn sign flips")
    swapped = np.array([each.stderr if each.contributions is None else _norm(each) for each in parts])
    middle = (now + before) / 2
    draws = drawn(middle, middle, correlations([_part(each, each.contributions) for each in parts])[0], swapped)
    if not draws.any():
        return replace(found, test="drawn sign flips")
    reached = float((np.abs(draws) >= abs(difference) * (1 - 1e-12)).mean())
    by_share = reached if reached * DRAWS >= _FEWEST_REACHED else 0.0
    by_tail = float(2 * scipy.special.ndtr(-abs(difference) / draws.std()))
    rarest = 2.0 ** (1 - min(1000, sum(map(_changed, parts))))
    return replace(found, p_value=max(by_share, by_tail, rarest), test="drawn sign flips")


def _norm(part: EvalDifference) -> float:
    """The root of the sum of squares of the clusters' parts in a difference: its spread under swaps."""
    assert part.contributions is not None
    codes = np.unique(part.clusters, return_inverse=True)[1]
    return math.sqrt(float((np.bincount(codes, part.contributions) ** 2).sum())) / part.unit


def _changed(part: EvalDifference) -> int:
    """The number of samples that changed: no swap is rarer than one of all of them. Many for a metric of all samples together."""
    return 1000 if part.contributions is None else int(np.count_nonzero(part.contributions))


def _part(difference: EvalDifference, influence: Floats | None) -> Part:
    """A difference in the place of a score, for its correlations with others."""
    return Part(
        value=difference.difference,
        stderr=difference.stderr,
        bounds=None,
        clusters=difference.clusters.astype(np.uint64),
        influence=influence,
        n_clusters=difference.comparison.n_clusters,
    )


def _comparison(
    parts: Sequence[EvalDifference], now: float, before: float, difference: float, stderr: float, seen: float, free: float, alpha: float
) -> Comparison:
    """A comparison without a test. Samples and clusters count once, however many evals have them."""
    half = seen * float(scipy.special.stdtrit(free, _UPPER)) if math.isfinite(free) else seen * float(scipy.special.ndtri(_UPPER))
    has_interval = seen > 0 and free >= FEWEST_FREE
    return Comparison(
        value_a=now,
        value_b=before,
        difference=difference,
        stderr=stderr,
        ci_low=difference - half if has_interval else None,
        ci_high=difference + half if has_interval else None,
        min_detectable=detectable(seen, free, alpha) if has_interval else None,
        n_common=len(np.unique(np.concatenate([each.samples for each in parts]))),
        n_only_a=sum(each.comparison.n_only_a for each in parts),
        n_only_b=sum(each.comparison.n_only_b for each in parts),
        n_neither=sum(each.comparison.n_neither for each in parts),
        n_clusters=len(np.unique(np.concatenate([each.clusters for each in parts]))),
    )
