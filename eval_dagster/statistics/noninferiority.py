"""Proofs that a result is not worse than another one by a margin or more, sample by sample.

"No change seen" does not say this, because a small suite sees nothing. The null hypothesis is that the expected score fell by the margin; a
small p-value refutes it. Confidence intervals after Wald or Student do not hold their level here: with few flips they prove a fall of the
margin in up to 20 % of cases (`tests/eval_dagster/statistics/test_noninferiority.py` has the table).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy
from numpy.typing import NDArray

from eval_dagster.statistics.paired import Comparison

LEVEL = 0.05
"""One-sided level of a proof: falls of the margin that are called proven, at most."""
FEWEST_CLUSTERS = 100
"""With fewer clusters, each counts as one sample. Whether a few of them fell for good cannot be seen from the others."""

_NUISANCE = 0.001
"""Probability that the nuisance parameter lies outside the interval that is searched, which the p-value pays for."""
_POINTS = 33
_WINDOW = 8
"""Counts that are more standard deviations away from their mean are neglected."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class NotWorse:
    """The test that a result is not worse by a margin."""

    margin: float | None
    """The fall that matters, in the metric's unit. Null if none is set."""
    p_value: float | None
    """One-sided: the probability of a result at least this good if the score fell by the margin. Null if nothing can be proven."""
    reason: str | None = None
    """Why nothing can be proven, whatever the answers are."""

    @property
    def is_proven(self) -> bool:
        """Whether a fall of the margin is refuted."""
        return self.p_value is not None and self.p_value <= LEVEL


def fewest_samples(margin: float, level: float = LEVEL) -> int:
    """The fewest independent samples that prove anything, if none flips: the least n with (1 - margin)^n <= level.

    Args:
        margin: As a share of the range of the values, between 0 and 1.
        level: One-sided level of the proof.
    """
    return math.ceil(math.log(level) / math.log1p(-margin))


def not_worse(found: Comparison, *, margin: float, higher_is_better: bool, n_lost: int = 0) -> NotWorse:
    """Test the null hypothesis that the score fell by `margin`.

    - Shares of right answers: the exact unconditional test of `exact_p_value`. For clusters at their effective number of samples,
      n / max(1, cluster-robust variance / variance), counts rounded against the proof; with fewer than 100 clusters, each cluster counts as
      one sample.
    - Other scores with a range: (mean + margin) / sqrt(stderr^2 + missing), where `missing` is the variance that a fall of the margin would
      have, which these samples may not show: width * max(0, mean + margin) / n. It is compared with Student's distribution. For clusters,
      n is their number.
    - Scores without a range: Student's test of the mean plus the margin.

    Samples that have a value in the baseline alone because the result has an error count as the largest possible fall.

    Args:
        found: The result as a, its baseline as b.
        margin: The fall that matters, in the metric's unit; above 0.
        higher_is_better: Whether a fall is a negative difference.
        n_lost: Samples with a value in b whose answer in a is an error.
    """
    if found.difference is None or found.n_common == 0:
        return NotWorse(margin=margin, p_value=None, reason="there is nothing to compare")
    if found.are_shares:
        return _of_shares(found, margin, higher_is_better, n_lost)
    mean = found.difference if higher_is_better else -found.difference
    n_groups = float(found.n_clusters)
    if found.width is None:
        if n_lost:
            return NotWorse(margin=margin, p_value=None, reason=f"{n_lost} samples of the baseline are errors now")
        if not found.stderr:
            return NotWorse(margin=margin, p_value=None, reason="the differences do not vary, and the range of the metric is not known")
        p_value = float(scipy.special.stdtr(max(1.0, n_groups - 1), -(mean + margin) / found.stderr))
        return NotWorse(margin=margin, p_value=p_value)
    mean, variance, size = SupportingResult.of(found, margin=margin, higher_is_better=higher_is_better, n_lost=n_lost).with_losses()
    if problem := _too_few(size, margin / found.width, is_clustered=n_groups < found.n_common):
        return NotWorse(margin=margin, p_value=None, reason=problem)
    missing = max(0.0, mean + margin) * found.width / size
    z = (mean + margin) / math.sqrt(variance + missing) if variance + missing > 0 else 0.0
    return NotWorse(margin=margin, p_value=float(scipy.special.stdtr(max(1.0, n_groups - 1), -z)))


@dataclass(frozen=True, kw_only=True)
class SupportingResult:
    """One result in the mean of several."""

    rise: float
    """Mean of the differences; above 0 if the result is better."""
    stderr: float
    margin: float
    size: float
    """Samples of a mean with equal weights that has the same variance."""
    n_groups: int
    """Independent groups of samples."""
    n_common: int
    n_lost: int
    """Samples of the baseline that are errors in the result."""
    width: float | None
    """Largest minus least possible value. Null if unknown."""

    @classmethod
    def of(cls, found: Comparison, *, margin: float, higher_is_better: bool, n_lost: int) -> "SupportingResult":
        """The result of a comparison, with the arguments of `not_worse`."""
        return cls(
            rise=(found.difference or 0.0) * (1 if higher_is_better else -1),
            stderr=found.stderr or 0.0,
            margin=margin,
            size=found.size or found.n_common,
            n_groups=found.n_clusters,
            n_common=found.n_common,
            n_lost=n_lost,
            width=1.0 if found.are_shares else found.width,
        )

    def with_losses(self) -> tuple[float, float, float]:
        """Mean, variance of the mean, and number of samples, if each lost sample is a fall of the whole width.

        For clusters, the number of samples is at most their number.
        """
        size = min(self.size, self.n_groups) if self.n_groups < self.n_common else self.size
        share, width = self.n_lost / (self.n_common + self.n_lost), self.width or 0.0
        mean = self.rise * (1 - share) - share * width
        variance = self.stderr**2 * (1 - share) ** 2 + width**2 * share * (1 - share) / size
        return mean, variance, size / (1 - share)


def mean_not_worse(results: Sequence[SupportingResult]) -> float:
    """The one-sided p-value of the null hypothesis that the mean of several results fell by half of their margins.

    Differences are divided by their margins. With their mean t, z = (t + 1/2) / sqrt(variance + missing), where `missing` is the largest
    variance that a fall of the mean by 1/2 would have, if one of the results had all of it.
    """
    count = len(results)
    parts = [(each, *each.with_losses()) for each in results]
    mean = sum(rise / each.margin for each, rise, _, _ in parts) / count
    variance = sum(variance / each.margin**2 for each, _, variance, _ in parts) / count**2
    largest = max((each.width or 0.0) / (size * each.margin) for each, _, _, size in parts)
    spread = variance + max(0.0, mean + 0.5) * largest / count
    return float(scipy.special.ndtr(-(mean + 0.5) / math.sqrt(spread))) if spread > 0 else 1.0


def _of_shares(found: Comparison, margin: float, higher_is_better: bool, n_lost: int) -> NotWorse:
    higher, lower = found.n_higher or 0, found.n_lower or 0
    up, down = (higher, lower) if higher_is_better else (lower, higher)
    n, down = found.n_common + n_lost, down + n_lost
    size = float(n)
    if found.n_clusters < found.n_common:
        variance = (up + down) / n - ((up - down) / n) ** 2
        robust = (found.stderr or 0.0) ** 2 * found.n_common
        size = n / max(1.0, robust / variance) if variance > 0 and found.stderr else found.n_clusters
        if found.n_clusters < FEWEST_CLUSTERS:
            size = min(size, found.n_clusters)
    if problem := _too_few(size, margin, is_clustered=found.n_clusters < found.n_common):
        return NotWorse(margin=margin, p_value=None, reason=problem)
    if size == n:
        return NotWorse(margin=margin, p_value=exact_p_value(n, up, down, margin))
    whole = math.floor(size)
    fewer = min(math.floor(up * whole / n), whole)
    return NotWorse(margin=margin, p_value=exact_p_value(whole, fewer, min(math.ceil(down * whole / n), whole - fewer), margin))


def _too_few(size: float, margin: float, *, is_clustered: bool) -> str | None:
    if margin >= 1:
        return None
    needed = fewest_samples(margin)
    if size >= needed:
        return None
    what = f"{math.floor(size)} independent groups of samples" if is_clustered else f"{math.floor(size)} samples"
    return f"it cannot be proven with {what}; it takes {needed} if nothing flips, and more if something does"


@lru_cache(maxsize=65536)
def exact_p_value(n: int, up: int, down: int, margin: float) -> float:
    """The exact unconditional p-value of a paired difference of shares.

    The null hypothesis is p_down = p_up + margin. Outcomes (u, w) are ordered by the score statistic of Tango (1998, Statistics in Medicine
    17). The p-value is the largest probability, over p_up, of the outcomes at least as extreme as the one seen. p_up is searched within its
    interval of 99.9 %, and 0.001 is added (Berger & Boos 1994, JASA 89).

    Args:
        n: Samples.
        up: Samples that only the result has right.
        down: Samples that only the baseline has right.
        margin: The fall that the null hypothesis says, between 0 and 1.
    """
    if not 0 <= up + down <= n:
        raise ValueError(f"found {up} and {down} of {n} samples; expected counts of at least 0 that sum to at most {n}")
    seen = float(tango(n, np.array([up]), np.array([down]), margin)[0])
    most = (1 - margin) / 2
    low = float(scipy.special.bdtri(up - 1, n, 1 - _NUISANCE / 2)) if up else 0.0
    high = float(scipy.special.bdtri(up, n, _NUISANCE / 2)) if up < n else 1.0
    low, high = min(low, most), min(high, most)
    best, grid = 0.0, np.linspace(low, high, _POINTS)
    for _ in range(2):  # the whole interval, and then around its maximum
        chances = _chances(n, margin, seen, grid)
        best = max(best, float(chances.max()))
        step, place = grid[1] - grid[0], float(grid[int(chances.argmax())])
        grid = np.linspace(max(low, place - step), min(high, place + step), _POINTS // 2)
    return min(1.0, best + _NUISANCE)


def tango(n: int, up: NDArray[np.int64], down: NDArray[np.int64], margin: float) -> Floats:
    """Tango's score statistic: (u - w + n m) / sqrt(n (2 p - m - m^2)), p the estimate of p_down under the null hypothesis.

    p is the larger root of 2 n p^2 - ((1 + m) u + (1 + 3 m) w + 2 m (n - u - w)) p + w m (1 + m) = 0.
    """
    linear = (1 + margin) * up + (1 + 3 * margin) * down + 2 * margin * (n - up - down)
    root = (linear + np.sqrt(np.maximum(0.0, linear**2 - 8.0 * n * down * margin * (1 + margin)))) / (4 * n)
    return np.asarray((up - down + n * margin) / np.sqrt(n * np.maximum(2 * root - margin - margin**2, 1e-300)))


def _chances(n: int, margin: float, seen: float, p_up: Floats) -> Floats:
    """The probability of outcomes at least as extreme as the score statistic `seen`, for each p_up."""
    p_down = p_up + margin
    reach = _WINDOW * np.sqrt(n * p_down * (1 - p_down)) + _WINDOW
    first, last = max(0, math.floor(float((n * p_down - reach).min()))), min(n, math.ceil(float((n * p_down + reach).max())))
    down = np.arange(first, last + 1)
    # For each number of falls the fewest rises that are as extreme, by bisection; one more than possible if there are none.
    fewest, above = np.zeros_like(down), n - down + 1
    while (fewest < above).any():
        middle = (fewest + above) // 2
        is_extreme = tango(n, np.minimum(middle, n - down), down, margin) >= seen - 1e-9
        above = np.where(is_extreme, middle, above)
        fewest = np.where(is_extreme, fewest, np.minimum(middle + 1, above))
    below = np.nan_to_num(scipy.special.bdtr(np.append(first - 1, down)[:, np.newaxis], n, p_down))  # of -1 it is not a number
    share_up = np.minimum(1.0, p_up / np.maximum(1 - p_down, 1e-300))
    left = (n - down)[:, np.newaxis]
    tail = np.where(above[:, np.newaxis] > left, 0.0, scipy.special.bdtrc(above[:, np.newaxis] - 1, left, share_up))
    return np.asarray((np.diff(below, axis=0) * np.where(above[:, np.newaxis] == 0, 1.0, tail)).sum(axis=0))
