"""P-values of differences, and the smallest differences that the tests detect."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import scipy
from numpy.typing import NDArray

POWER = 0.8
"""The probability of detecting the smallest detectable difference."""
MOST_ENUMERATED = 16
"""Most clusters of which all swaps are enumerated: 2^16 swaps."""

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]

_ROUNDED = 1e-12
"""A contribution, as a share of the largest, that is a rounding error."""
_NEAR = 1e-3
"""A smaller root of the likelihood ratio is too close to the middle of the distribution for the correction of its tail."""
_WINDOW = 8
"""Counts that are more standard deviations away from their mean are neglected."""


def are_few(changed: int, clusters: int) -> bool:
    """Whether so few clusters differ that a t test has an inflated type I error, and all their swaps can be enumerated instead.

    If four of 300 differences are equal in size and the others are 0, t has p < 0.05 if all four have one sign: in 1 of 8 cases.
    """
    return changed <= MOST_ENUMERATED and 2 * changed <= clusters


def exact_mcnemar(only_a: Integers | np.int64, only_b: Integers | np.int64) -> Floats:
    """The two-sided exact p-value of McNemar's test, for any number of pairs of counts at once.

    Twice the smaller tail of the binomial distribution with the probability 1/2, at most 1 (the exact conditional test of Fagerland et
    al. 2013, BMC Medical Research Methodology 13:91).

    Args:
        only_a: Samples that a has right and b wrong.
        only_b: Samples that b has right and a wrong.
    """
    return np.asarray(np.minimum(1.0, 2 * scipy.special.bdtr(np.minimum(only_a, only_b), only_a + only_b, 0.5)))


def flips_of_counts(advantages: Integers) -> float:
    """The two-sided exact p-value of the test that swaps a and b cluster by cluster, for differences that are whole numbers.

    If a and b are interchangeable, the difference of each cluster has either sign with the probability 1/2, for any dependence of samples
    within a cluster (Fisher 1935, "The Design of Experiments", section 21). The distribution of the sum is a convolution of scaled binomial
    distributions, so nothing is drawn at random. For clusters of one sample it is McNemar's test.

    Args:
        advantages: Of each cluster the number of samples that only a has right minus the number that only b has right.
    """
    sizes, counts = np.unique(np.abs(advantages[advantages != 0]), return_counts=True)
    # The sum is the total of all sizes minus twice the sizes for b. As extreme are all sums in which b has at most the smaller part.
    fewer = int((sizes * counts).sum() - abs(int(advantages.sum()))) // 2
    lower = np.ones(1)
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        most = min(count, fewer // size)
        spread = np.zeros(most * size + 1)
        spread[::size] = np.diff(scipy.special.bdtr(np.arange(most + 1), count, 0.5), prepend=0.0)
        lower = np.convolve(lower, spread)[: fewer + 1]
    return min(1.0, 2 * float(lower.sum()))


def flips_of_sums(of_a: Floats, of_b: Floats, aggregate: Callable[[Floats], Floats]) -> float:
    """The two-sided exact p-value of the test that swaps a and b cluster by cluster, for any metric of sums.

    All 2^k swaps of the k clusters that differ are enumerated, for k up to `MOST_ENUMERATED`.

    Args:
        of_a: Sums of a's statistics by cluster, of shape (clusters, statistics).
        of_b: Sums of b's statistics.
        aggregate: From sums of shape (m, statistics) to m values. A swap whose value is NaN counts as extreme.
    """
    width = of_a.shape[1]
    moves = (of_b - of_a)[(of_a != of_b).any(axis=1)]
    sums = np.concatenate([of_a.sum(axis=0), of_b.sum(axis=0)])[np.newaxis]
    for move in moves:
        sums = np.concatenate([sums, sums + np.concatenate([move, -move])])
    with np.errstate(divide="ignore", invalid="ignore"):
        sizes = np.abs(aggregate(sums[:, :width]) - aggregate(sums[:, width:]))
    # Swaps that are equal on paper differ in the last digits.
    is_smaller = sizes < sizes[0] - 1e-9 * sizes[np.isfinite(sizes)].max()
    return float(1 - is_smaller.mean())


def flips_of_many(contributions: Floats) -> float:
    """The two-sided p-value of the test that swaps a and b cluster by cluster, by the normal distribution.

    Each cluster has one contribution; their sum is the difference.
    """
    total = math.sqrt(float((contributions**2).sum()))
    return float(2 * scipy.special.ndtr(-abs(float(contributions.sum())) / total)) if total > 0 else 1.0


def flips_of_any(contributions: Floats) -> float:
    """The two-sided p-value of the test that swaps a and b cluster by cluster, for contributions of any sizes.

    Each cluster has one contribution; their sum is the difference. Up to `MOST_ENUMERATED` that are not 0, all swaps are enumerated. The
    tail of more of them is Lugannani's and Rice's saddlepoint approximation (1980, Advances in Applied Probability 12) with Daniels's
    continuity correction (1987, International Statistical Review 55), whose span is twice the smallest contribution: the sum of
    contributions of one size can only take values so far apart. Its error is a small part of the p-value, also of a tiny one, which the
    normal distribution and drawn swaps do not give (Robinson 1982, Journal of the Royal Statistical Society B 44).
    """
    most = float(np.abs(contributions).max(initial=0.0))
    changed = contributions[np.abs(contributions) > _ROUNDED * most]
    if not len(changed):
        return 1.0
    if len(changed) <= MOST_ENUMERATED:
        halves = changed[:, np.newaxis] / 2
        return flips_of_sums(halves, -halves, lambda sums: sums[:, 0])
    sizes = np.abs(changed)
    total, step = abs(float(changed.sum())), float(sizes.min())
    reach = total - step
    if reach <= _ROUNDED * float(sizes.sum()):
        return 1.0
    if float(sizes.sum()) - total <= step:  # no other swap is as extreme
        return float(2.0 ** (1 - len(sizes)))
    tilt = _tilt(sizes, reach)
    # The logarithm of the hyperbolic cosine, for large numbers, too.
    cumulant = float((sizes * tilt + np.log1p(np.exp(-2 * sizes * tilt)) - math.log(2)).sum())
    spread = math.sqrt(float((sizes**2 * (1 - np.tanh(sizes * tilt) ** 2)).sum()))
    root = math.sqrt(max(0.0, 2 * (tilt * reach - cumulant)))
    other = math.sinh(tilt * step) / step * spread
    tail = float(scipy.special.ndtr(-root))
    if root > _NEAR:
        tail += math.exp(-(root**2) / 2) / math.sqrt(2 * math.pi) * (1 / other - 1 / root)
    return min(1.0, max(0.0, 2 * tail))


def _tilt(sizes: Floats, reach: float) -> float:
    """The t at which the sum of c tanh(c t) over contributions c is `reach`, which is less than their sum: the saddlepoint."""
    from scipy import optimize  # imported lazily: it takes a third of a second

    def missing(tilt: float) -> float:
        return float((sizes * np.tanh(sizes * tilt)).sum()) - reach

    most = 1 / float(sizes.max())
    while missing(most) < 0:
        most *= 2
    return float(optimize.brentq(missing, 0.0, most, xtol=1e-14 * most, rtol=1e-12))


def student(value: float, stderr: float, degrees_of_freedom: float) -> float:
    """The two-sided p-value of Student's t test."""
    return float(2 * scipy.special.stdtr(degrees_of_freedom, -abs(value) / stderr))


def detectable(stderr: float, degrees_of_freedom: float, alpha: float, *, spread: float = 0.0) -> float:
    """The smallest difference that a t test detects with `POWER`.

    d = q sqrt(stderr^2 + spread d (1 - d)) with q = t(1 - alpha / 2) + t(power): without a spread q stderr (Miller 2024, section 5).

    Args:
        stderr: Standard error of the difference that was found.
        degrees_of_freedom: Degrees of freedom of the standard error.
        alpha: Two-sided level of significance.
        spread: Sum of the squared weights of the samples, if each is right or wrong. Then the number of samples that a drop costs varies.
    """
    square = float(scipy.special.stdtrit(degrees_of_freedom, [1 - alpha / 2, POWER]).sum()) ** 2
    part = square * spread
    return (part + math.sqrt(part**2 + 4 * (1 + part) * square * stderr**2)) / (2 * (1 + part))


@lru_cache(maxsize=4096)
def detectable_share(n: int, discordant: int, alpha: float) -> float | None:
    """The smallest difference between two shares that the exact McNemar's test detects with `POWER`.

    Of `n` samples, `discordant` samples are right in one result only; those that a drop costs are added to them. The power is exact: the
    mean over the binomial number of discordant samples of the probability that their split is significant (Duffy 1984, Biometrics 40).

    Returns None if the samples are too few even if all of them flip.
    """
    # Imported lazily: it takes a third of a second, and only comparisons need it.
    from scipy import optimize

    def missing(difference: float) -> float:
        return power_of_mcnemar(n, min(1.0, discordant / n + difference), difference, alpha) - POWER

    return float(optimize.brentq(missing, 0.0, 1.0, xtol=1e-5)) if missing(1.0) >= 0 else None


def power_of_mcnemar(n: int, discordance: float, difference: float, alpha: float) -> float:
    """The probability that the exact McNemar's test is significant.

    Args:
        n: Samples.
        discordance: Share of the samples that are right in one result only.
        difference: Difference of the shares of right answers; at most `discordance`.
        alpha: Two-sided level of significance.
    """
    if discordance == 0:
        return 0.0
    centre, reach = n * discordance, _WINDOW * math.sqrt(n * discordance * (1 - discordance)) + _WINDOW
    counts = np.arange(max(0, math.floor(centre - reach)), min(n, math.ceil(centre + reach)) + 1)
    # The most samples on the rarer side for which a split is significant; -1 if no split is.
    most = np.ceil(np.nan_to_num(scipy.special.bdtrik(alpha / 2, counts, 0.5)))
    most -= scipy.special.bdtr(most, counts, 0.5) > alpha / 2
    for_a = (1 + difference / discordance) / 2
    tails = scipy.special.bdtr(np.maximum(most, 0), counts, for_a) + scipy.special.bdtr(np.maximum(most, 0), counts, 1 - for_a)
    shares = np.diff(np.nan_to_num(scipy.special.bdtr(np.append(counts[0] - 1, counts), n, discordance)))  # of -1 it is not a number
    return float((shares * np.where(most < 0, 0.0, tails)).sum())


@dataclass(frozen=True, kw_only=True)
class PositionBias:
    """The positions of chosen answers beside those that a model without a preference chooses."""

    p_value: float
    """Probability of such positions without a preference."""
    moved: float
    """Part of the answers that would have to be at another position, from 0 to 1: the total variation distance."""
    position: int
    """The position that is chosen too often, from 0."""
    n: int
    """Answers at this position."""
    expected: float
    """Answers at this position without a preference."""
    least_expected: float
    """The smallest number of answers that is expected at a position. Below 5, the p-value is wrong (Cochran 1954, Biometrics 10:417)."""


def position_bias(chosen: Sequence[int], gold: Sequence[int], positions: int) -> PositionBias:
    """Test whether a model prefers some positions of the choices.

    Without a preference, a model knows a part c of the answers, and guesses position j of the others with the probability u_j: all
    positions alike, or as often as they are correct. It is right on a = c + (1 - c) s of the samples, for s the sum of u_j times the part
    p_j of the samples with the correct answer at j, so that c = (a - s) / (1 - s), or 0 if that is negative. With n samples, it chooses
    j in E_j = n (c p_j + (1 - c) u_j) of them.

    With the covariance matrix V of the counts O_j, which are a sum of multinomial variables with a distribution for each correct position,
    (O - E)' V^-1 (O - E) has the chi-square distribution with one degree of freedom less than there are positions: Pearson's test if c is
    0, of equal frequencies or of two samples. Of the two ways of guessing, the one that explains the answers better counts.

    Args:
        chosen: The position of each answer, from 0.
        gold: The position of each correct answer.
        positions: Number of positions.
    """
    n = len(chosen)
    observed, right = (np.bincount(each, minlength=positions).astype(float) for each in (chosen, gold))
    accuracy, parts = float(np.mean(np.equal(chosen, gold))), right / n
    found: list[PositionBias] = []
    # The parts are those of these samples: how often a position is correct elsewhere is not known exactly.
    of_parts = n * (np.diag(parts) - np.outer(parts, parts))
    for guess, of_guess in ((np.full(positions, 1 / positions), np.zeros_like(of_parts)), (parts, of_parts)):
        by_luck = float(guess @ parts)
        known = max(0.0, (accuracy - by_luck) / (1 - by_luck)) if by_luck < 1 else 0.0
        by_gold = known * np.eye(positions) + (1 - known) * guess  # a row for each correct position
        expected = right @ by_gold
        covariance = np.diag(expected) - (by_gold.T * right) @ by_gold + (1 - known) ** 2 * of_guess
        excess = observed - expected
        statistic = float(excess @ np.linalg.pinv(covariance, rcond=1e-9, hermitian=True) @ excess)
        most = int(excess.argmax())
        found.append(
            PositionBias(
                p_value=float(scipy.special.chdtrc(positions - 1, max(0.0, statistic))),
                moved=float(np.abs(excess).sum()) / (2 * n),
                position=most,
                n=int(observed[most]),
                expected=float(expected[most]),
                least_expected=float(expected.min()),
            )
        )
    least = min(each.least_expected for each in found)
    best = max(found, key=lambda each: (each.p_value, -each.moved))
    return replace(best, moved=min(each.moved for each in found), least_expected=least)
