"""How likely a difference is where nothing has changed, and how large one must be to be seen."""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import scipy
from numpy.typing import NDArray

POWER = 0.8
"""How often the smallest detectable difference is detected."""
MOST_ENUMERATED = 16
"""Clusters whose swaps are all gone through: 2^16 of them."""

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]

_WINDOW = 8
"""Standard deviations of a count beyond which nothing is expected."""


def are_few(changed: int, clusters: int) -> bool:
    """Whether so few clusters differ that a t test has an inflated type I error, and all their swaps can be enumerated instead.

    Of 300 differences of which four are alike and the others 0, t has p < 0.05 where all four have one sign: in 1 of 8 cases.
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

    Where a and b are interchangeable, the difference of each cluster has either sign with the probability 1/2, all samples of a cluster
    together, however much they depend on each other (Fisher 1935, "The Design of Experiments", section 21). The distribution of the sum
    is a convolution of scaled binomial ones, so nothing is drawn at random. With clusters of one sample it is McNemar's test.

    Args:
        advantages: One a cluster: samples that a alone has right less those that b alone has right.
    """
    sizes, counts = np.unique(np.abs(advantages[advantages != 0]), return_counts=True)
    # The sum is all sizes together less twice those that count for b: as extreme are all with no more for b than the fewer of the two.
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

    All 2^k swaps of the k clusters that differ are gone through: for k up to `MOST_ENUMERATED`.

    Args:
        of_a: Sums of a's statistics by cluster, of shape (clusters, statistics).
        of_b: Those of b.
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


def student(value: float, stderr: float, degrees_of_freedom: float) -> float:
    """The two-sided p-value of Student's t test."""
    return float(2 * scipy.special.stdtr(degrees_of_freedom, -abs(value) / stderr))


def detectable(stderr: float, degrees_of_freedom: float, alpha: float, *, spread: float = 0.0) -> float:
    """The smallest difference that a t test detects with `POWER`.

    d = q sqrt(stderr^2 + spread d (1 - d)) with q = t(1 - alpha / 2) + t(power): without a spread q stderr (Miller 2024, section 5).

    Args:
        stderr: Of the difference as it was found.
        degrees_of_freedom: Of the standard error.
        alpha: Two-sided level of significance.
        spread: Sum of the squared weights of the samples where each is right or wrong: those that a drop costs are few and vary, too.
    """
    square = float(scipy.special.stdtrit(degrees_of_freedom, [1 - alpha / 2, POWER]).sum()) ** 2
    part = square * spread
    return (part + math.sqrt(part**2 + 4 * (1 + part) * square * stderr**2)) / (2 * (1 + part))


@lru_cache(maxsize=4096)
def detectable_share(n: int, discordant: int, alpha: float) -> float | None:
    """The smallest difference between two shares that the exact McNemar's test detects with `POWER`.

    The samples that a drop costs come on top of those that differ anyway. The power is exact: the mean over the binomial number of
    discordant samples of the probability that their split is significant (Duffy 1984, Biometrics 40).

    Args:
        n: Samples.
        discordant: Those of them that one alone has right.
        alpha: Two-sided level of significance.

    Returns:
        None where not even samples that all flip are enough.
    """
    # It takes a third of a second to import, which runs that compare nothing need not wait for.
    from scipy import optimize

    def missing(difference: float) -> float:
        return _power_of_mcnemar(n, min(1.0, discordant / n + difference), difference, alpha) - POWER

    return float(optimize.brentq(missing, 0.0, 1.0, xtol=1e-5)) if missing(1.0) >= 0 else None


def _power_of_mcnemar(n: int, discordance: float, difference: float, alpha: float) -> float:
    # Half a second to import, which runs that compare nothing need not wait for.
    from scipy import stats

    if discordance == 0:
        return 0.0
    centre, reach = n * discordance, _WINDOW * math.sqrt(n * discordance * (1 - discordance)) + _WINDOW
    counts = np.arange(max(0, math.floor(centre - reach)), min(n, math.ceil(centre + reach)) + 1)
    # The most samples on the rarer side with which a split is significant; -1 where none is.
    most = stats.binom.ppf(alpha / 2, counts, 0.5)
    most -= scipy.special.bdtr(most, counts, 0.5) > alpha / 2
    for_a = (1 + difference / discordance) / 2
    tails = scipy.special.bdtr(np.maximum(most, 0), counts, for_a) + scipy.special.bdtr(np.maximum(most, 0), counts, 1 - for_a)
    return float((stats.binom.pmf(counts, n, discordance) * np.where(most < 0, 0.0, tails)).sum())
