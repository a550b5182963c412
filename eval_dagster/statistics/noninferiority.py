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
_CLUSTER_LEVEL = 0.025
"""So does each if so many clusters without a change would not be a proof at this level: with a smaller margin, fewer of them fall."""

_HALF = 0.5
"""The fall of the mean of several results that is refuted, in margins."""
_NUISANCE = 0.001
"""Probability that the nuisance parameter lies outside the interval that is searched, which the p-value pays for."""
_POINTS = 33
_ROUNDING = 1e-6
"""Tolerance for a number of equal clusters, which is computed from their weights."""
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
    """The fewest independent samples that prove anything, if none flips: the least n whose `exact_p_value` is at most `level`.

    That is the least n with (1 - margin)^n + 0.001 <= level.

    Args:
        margin: As a share of the range of the values, between 0 and 1.
        level: One-sided level of the proof.
    """
    return math.ceil(math.log(level - _NUISANCE) / math.log1p(-margin))


def not_worse(found: Comparison, *, margin: float, higher_is_better: bool, n_lost: int = 0) -> NotWorse:
    """Test the null hypothesis that the score fell by `margin`.

    - Shares of right answers: the exact unconditional test of `exact_p_value`. For clusters at their effective number of samples,
      n / max(1, cluster-robust variance / variance), counts rounded against the proof. Both variances have a part for the falls that a fall
      of the margin has and these samples do not show: as many as in the cluster that changed most fall together. If the clusters are worth
      fewer than 100 equal ones, or than a proof at 2.5 % takes of samples, or samples of them are lost, each counts as one sample.
    - Other means with a range: (mean + margin) / sqrt(stderr^2 + missing), where `missing` is the largest variance that a fall of the
      margin has, which these samples may not show: width * heaviest * max(0, mean + margin), for the largest weight of a cluster. It is
      compared with Student's distribution.
    - Means without a range: Student's test of the mean plus the margin, if at least 100 clusters are there and 100 samples differ. It is
      approximate, since a few large falls that were not seen cannot be excluded.
    - Nothing can be proven about metrics of all samples together.

    Samples that have a value in the baseline alone because the result has an error count as the largest possible fall.

    Args:
        found: The result as a, its baseline as b.
        margin: The fall that matters, in the metric's unit; above 0.
        higher_is_better: Whether a fall is a negative difference.
        n_lost: Samples with a value in b whose answer in a is an error.
    """
    reason = None
    if found.difference is None or found.n_common == 0:
        reason = "there is nothing to compare"
    elif found.heaviest is None:
        reason = "it is a metric of all samples together, about which nothing can be proven"
    elif (width := _width(found)) is not None and margin >= width:
        reason = f"the margin {margin:g} is not below {width:g}, the most that the score can fall by"
    elif found.are_shares:
        return _of_shares(found, margin, higher_is_better, n_lost)
    elif width is None:
        return _without_range(found, margin, higher_is_better, n_lost)
    else:
        part = ResultPart.of(found, margin=margin, higher_is_better=higher_is_better, n_lost=n_lost)
        reason = _too_few(1 / part.heaviest, margin / width, is_clustered=_is_clustered(found))
        if reason is None:
            missing = max(0.0, part.rise + margin) * width * part.heaviest
            z = (part.rise + margin) / math.sqrt(part.stderr**2 + missing) if part.stderr or missing else 0.0
            return NotWorse(margin=margin, p_value=float(scipy.special.stdtr(max(1.0, (found.groups or 0) - 1), -z)))
    return NotWorse(margin=margin, p_value=None, reason=reason)


@dataclass(frozen=True, kw_only=True)
class ResultPart:
    """One result in the mean of several, with a range. Samples of the baseline that are errors now count as the largest possible fall."""

    rise: float
    """Mean of the differences; above 0 if the result is better."""
    stderr: float
    margin: float
    width: float
    """Largest minus least possible value."""
    heaviest: float
    """The largest weight of a cluster."""

    @classmethod
    def of(cls, found: Comparison, *, margin: float, higher_is_better: bool, n_lost: int) -> "ResultPart":
        """The part of a comparison of means, with the arguments of `not_worse`. Raises `ValueError` if its metric has no range."""
        width = _width(found)
        if width is None or found.heaviest is None:
            raise ValueError("the metric has no range; expected one whose values are between two bounds")
        share = n_lost / (found.n_common + n_lost)
        rise = (found.difference or 0.0) * (1 if higher_is_better else -1)
        lost = width**2 * share * (1 - share) * found.heaviest
        return cls(
            rise=rise * (1 - share) - share * width,
            stderr=math.sqrt(((found.stderr or 0.0) * (1 - share)) ** 2 + lost),
            margin=margin,
            width=width,
            heaviest=found.heaviest,
        )


def mean_not_worse(evals: Sequence[Sequence[ResultPart]]) -> NotWorse:
    """Test the null hypothesis that several results, each divided by its margin, fell by half on average.

    With t the mean of the k results, z = (t + 1/2) / sqrt(variance + missing). Results of an eval, such as the results of several models,
    share its questions, so their standard errors are added; evals are independent. `missing` is the largest variance that a fall of t by
    1/2 has: if whole clusters of one eval fall, in all its results at once.

    Args:
        evals: The results of each eval.

    Returns:
        The p-value is null if so few samples prove nothing, even if none flips.
    """
    parts = [part for results in evals for part in results]
    count = len(parts)
    mean = sum(part.rise / part.margin for part in parts) / count
    variance = sum(sum(part.stderr / part.margin for part in results) ** 2 for results in evals) / count**2
    largest = max(sum(part.width * part.heaviest / part.margin for part in results) for results in evals) / count
    if math.exp(-_HALF / largest) > LEVEL:  # the probability that no such fall is seen, though the mean fell by half
        return NotWorse(margin=_HALF, p_value=None, reason="it cannot be proven with so few samples, even if nothing flips")
    spread = variance + max(0.0, mean + _HALF) * largest
    return NotWorse(margin=_HALF, p_value=float(scipy.special.ndtr(-(mean + _HALF) / math.sqrt(spread))) if spread > 0 else 1.0)


def _width(found: Comparison) -> float | None:
    return 1.0 if found.are_shares else found.width


def _is_clustered(found: Comparison) -> bool:
    return found.n_clusters < found.n_common


def _without_range(found: Comparison, margin: float, higher_is_better: bool, n_lost: int) -> NotWorse:
    changed = (found.n_higher or 0) + (found.n_lower or 0)
    reason = None
    if n_lost:
        reason = f"{n_lost} samples of the baseline are errors now, and the range of the metric is not known"
    elif (found.groups or 0) < FEWEST_CLUSTERS or changed < FEWEST_CLUSTERS or not found.stderr:
        reason = (
            f"the range of the metric is not known; then it takes {FEWEST_CLUSTERS} independent samples and as many that differ, and "
            f"{found.groups or 0:.0f} and {changed} are there"
        )
    else:
        rise = (found.difference or 0.0) * (1 if higher_is_better else -1)
        p_value = float(scipy.special.stdtr((found.groups or 0) - 1, -(rise + margin) / found.stderr))
        return NotWorse(margin=margin, p_value=p_value)
    return NotWorse(margin=margin, p_value=None, reason=reason)


def _of_shares(found: Comparison, margin: float, higher_is_better: bool, n_lost: int) -> NotWorse:
    higher, lower = found.n_higher or 0, found.n_lower or 0
    up, down = (higher, lower) if higher_is_better else (lower, higher)
    n = found.n_common + n_lost
    size = float(n)
    if _is_clustered(found):
        groups, common = (found.groups or 1.0) + _ROUNDING, found.n_common
        variance = (up + down) / common - ((up - down) / common) ** 2
        largest = (found.heaviest or 1.0) * common if found.largest_change is None else found.largest_change
        missing = max(0.0, common * margin + up - down)  # falls that the null hypothesis expects and these samples do not show
        spread = (found.stderr or 0.0) ** 2 * common**2 + missing * largest
        size = n / max(1.0, spread / (variance * common + missing)) if variance > 0 and found.stderr else groups
        if groups < max(FEWEST_CLUSTERS, fewest_samples(margin, _CLUSTER_LEVEL)) or n_lost:  # lost samples can be those of whole clusters
            size = min(size, groups)
    down += n_lost
    if problem := _too_few(size, margin, is_clustered=_is_clustered(found)):
        return NotWorse(margin=margin, p_value=None, reason=problem)
    if size == n:
        return NotWorse(margin=margin, p_value=exact_p_value(n, up, down, margin))
    whole = math.floor(size)
    fewer = min(math.floor(up * whole / n), whole)
    return NotWorse(margin=margin, p_value=exact_p_value(whole, fewer, min(math.ceil(down * whole / n), whole - fewer), margin))


def _too_few(size: float, margin: float, *, is_clustered: bool) -> str | None:
    needed, whole = fewest_samples(margin), math.floor(size + 1e-6)
    if whole >= needed:
        return None
    what = f"samples worth {whole} independent ones" if is_clustered else f"{whole} samples"
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
