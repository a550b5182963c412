"""How many samples it takes to see a fall, and to prove that there is none.

The flips of quiet nights are what both cost: samples whose answers differ although nothing has changed.
"""

import math
from collections.abc import Callable

import numpy as np
import scipy
from numpy.typing import NDArray

from eval_dagster.statistics.noninferiority import LEVEL, exact_p_value, fewest_samples, tango
from eval_dagster.statistics.significance import POWER, detectable, power_of_mcnemar

MOST = 10_000_000
"""Most samples that are planned."""
_NODES = 64
"""Quantiles by which a distribution of counts is integrated."""
_FEW_FLIPS = 10
"""Expected flips up to which the exact test is asked where it differs from Tango's score with the normal distribution."""


def samples_to_see(fall: float, *, flips: float, level: float) -> int | None:
    """The fewest samples of which the exact McNemar's test sees a fall of a share of right answers with the probability 0.8.

    Args:
        fall: The fall, as a share of the samples.
        flips: Share of the samples that flip if nothing has changed.
        level: Two-sided level of significance.

    Returns:
        None if it takes more than `MOST`.
    """
    return _fewest(lambda n: power_of_mcnemar(n, min(1.0, flips + fall), fall, level) >= POWER)


def samples_to_see_mean(fall: float, *, deviation: float, level: float, loss: float = 0.0) -> int | None:
    """The same for the mean of other scores, by the paired t test.

    If a fall takes whole right answers, it adds to the variance, too. A night with more of them has a lower mean and a larger error bar,
    so that t has the variance 1 - loss / v + (loss / v) (1 - loss / (2 v))^2 for the whole variance v.

    Args:
        fall: The fall, in the unit of the scores.
        deviation: Standard deviation of a sample's difference without the fall.
        level: Two-sided level of significance.
        loss: Variance that the fall adds to a sample's difference: `variance_of_loss`.
    """
    variance = deviation**2 + loss
    if not variance:
        return None
    part = loss / variance
    spread = float(scipy.special.ndtri(POWER)) * math.sqrt(1 - part + part * (1 - part / 2) ** 2)

    def is_enough(n: int) -> bool:
        if not loss:
            return n > 1 and detectable(deviation / math.sqrt(n), n - 1, level) <= fall
        return n > 1 and fall * math.sqrt(n / variance) >= float(scipy.special.stdtrit(n - 1, 1 - level / 2)) + spread

    return _fewest(is_enough)


def variance_of_loss(fall: float, *, right: float, chance: float) -> float:
    """The variance that a fall adds to a sample's difference if fall / right of the samples are wrong from then on, whichever they are.

    Args:
        fall: The fall of a share of right answers.
        right: The share before.
        chance: V_pred, as in `variance_of_difference`. The mean square of the probability of a right answer is `right` - V_pred / 2.
    """
    return max(0.0, fall * (1 - chance / (2 * right)) - fall**2) if right > 0 else 0.0


def samples_to_prove(margin: float, *, flips: float) -> int | None:
    """The fewest samples that prove with the probability 0.8 that a share of right answers has not fallen by `margin`, if it has not.

    It is proven against two states, as in `power_of_both_proofs`.
    """
    return _fewest(lambda n: power_of_both_proofs(n, margin=margin, flips=flips) >= POWER)


def samples_to_prove_mean(margin: float, *, deviation: float, width: float, states: float = 1.0) -> int | None:
    """The same for the mean of other scores with a range, and for shares of which several states or texts have the mean."""
    return _fewest(lambda n: power_of_both_proofs_of_mean(n, margin=margin, deviation=deviation, width=width, states=states) >= POWER)


def power_of_both_proofs(n: int, *, margin: float, flips: float) -> float:
    """The probability that `n` samples prove that a share has not fallen by `margin` against two states, if nothing has changed.

    They are the baseline and the anchor. A share 2 * `flips` of the samples is right in half of all results, and the others never change.
    Of those, let the result have u right and v wrong. Given u and v, its flips against one state say nothing of its flips against the
    other, so that the probability is the mean of P(proof | u, v)^2 over u and v.

    Args:
        n: Samples.
        margin: The fall that is refuted.
        flips: Share of the samples that flip between two results.
    """
    if n < fewest_samples(margin):
        return 0.0
    if not flips:
        return power_of_proof(n, margin=margin, flips=0.0)
    ranks = (np.arange(_NODES) + 0.5) / _NODES
    counts, times = np.unique(scipy.stats.binom.ppf(ranks, n, flips), return_counts=True)
    reach = 8 * math.sqrt(n * flips / 2) + 8
    falls = np.arange(max(0, math.floor(n * flips / 2 - reach)), min(n, math.ceil(n * flips / 2 + reach)) + 1)
    fallen = scipy.stats.binom.pmf(falls, counts[:, None], 0.5)
    fewest = _fewest_rises(n, falls, margin)
    if n * flips <= _FEW_FLIPS:
        places = zip(fewest, falls, strict=True)
        fewest += [bool(up + down <= n) and exact_p_value(n, int(up), int(down), margin) > LEVEL for up, down in places]
    risen = scipy.stats.binom.sf(fewest[:, None] - 1, counts, 0.5)
    weights = times / times.sum()
    return float(weights @ (fallen @ risen) ** 2 @ weights)


def power_of_both_proofs_of_mean(n: int, *, margin: float, deviation: float, width: float, states: float = 1.0) -> float:
    """The probability that `n` samples prove that a mean has not fallen by `margin` against two states, if it has not.

    The two differences have one result in common, so that they correlate by K / (K + 1) for means of K states. With the power p of one
    proof and h = Phi^-1(p), both are proven with the probability p - 2 T(h, (1 + 2 K)^-1/2), where T is Owen's function.

    Args:
        n: Samples.
        margin: The fall that is refuted, in the unit of the scores.
        deviation: Standard deviation of a sample's difference from one of them.
        width: The largest minus the least value of a sample.
        states: States whose mean each of the two is.
    """
    one = power_of_proof_of_mean(n, margin=margin, deviation=deviation, width=width)
    return one - 2 * float(scipy.special.owens_t(scipy.special.ndtri(one), (1 + 2 * states) ** -0.5)) if 0 < one < 1 else one


def power_of_proof_of_mean(n: int, *, margin: float, deviation: float, width: float) -> float:
    """The probability that `n` samples prove that a mean has not fallen by `margin`, if it has not.

    The score z of `noninferiority.not_worse` is at least its critical value c if the mean of the differences is at least r - margin. r is
    the larger root of r^2 = c^2 (s^2 + r width) / n, with the standard deviation s.

    Args:
        n: Samples.
        margin: The fall that is refuted, in the unit of the scores.
        deviation: Standard deviation of a sample's difference.
        width: The largest minus the least value of a sample.
    """
    if n < max(2, fewest_samples(margin / width)):
        return 0.0
    square = float(scipy.special.stdtrit(n - 1, 1 - LEVEL)) ** 2
    root = (square * width + math.sqrt((square * width) ** 2 + 4 * n * square * deviation**2)) / (2 * n)
    return float(scipy.special.ndtr((margin - root) * math.sqrt(n) / deviation)) if deviation else float(root <= margin)


def variance_of_difference(lasting: float, chance: float, *, texts: int = 1, states: float = 1.0) -> float:
    """The variance of a sample's difference between a result with several texts a prompt and the mean of several states with as many.

    V_data + V_pred (1 / R + 1 / (R K)) / 2: after Wang (2025, arXiv:2512.21326), whose V_data + V_pred / R has one state, K = 1.

    Args:
        lasting: V_data, the variance over samples of the change of a sample's expected score.
        chance: V_pred, the variance of the draws of both results with one text each: the mean of p_a (1 - p_a) + p_b (1 - p_b).
        texts: R, texts of each prompt.
        states: K, states whose mean is the baseline.
    """
    return lasting + chance * (1 / texts + 1 / (texts * states)) / 2


def power_of_proof(n: int, *, margin: float, flips: float, fall: float = 0.0) -> float:
    """The probability that `n` samples prove that a share has not fallen by `margin`, by Tango's score with the normal distribution.

    The exact test that the gate uses orders outcomes by this score, and proves in nearly the same cases.

    Args:
        n: Samples.
        margin: The fall that is refuted.
        flips: Share of the samples that flip beside the fall, half of them each way.
        fall: The fall that there is.
    """
    if n < fewest_samples(margin):
        return 0.0
    up, down = flips / 2, flips / 2 + fall
    most = min(n, math.ceil(n * down + 8 * math.sqrt(n * down * (1 - down)) + 8))
    falls = np.arange(most + 1)
    high = _fewest_rises(n, falls, margin)
    chance = np.diff(scipy.special.bdtr(falls, n, down), prepend=0.0) if down else np.eye(1, most + 1)[0]
    left = n - falls
    rises = np.where(
        high == 0, 1.0, np.where(high > left, 0.0, scipy.special.bdtrc(np.maximum(high - 1, 0), left, min(1.0, up / (1 - down))))
    )
    return float((np.nan_to_num(chance) * rises).sum())


def _fewest_rises(n: int, falls: NDArray[np.int64], margin: float) -> NDArray[np.int64]:
    """The fewest rises that prove it beside each number of falls, by bisection; one more than there can be if none do."""
    critical = float(scipy.special.ndtri(1 - LEVEL))
    low, high = np.zeros_like(falls), n - falls + 1
    while (low < high).any():
        middle = (low + high) // 2
        is_proof = tango(n, np.minimum(middle, n - falls), falls, margin) >= critical
        high, low = np.where(is_proof, middle, high), np.where(is_proof, low, np.minimum(middle + 1, high))
    return high


def _fewest(is_enough: Callable[[int], bool]) -> int | None:
    high = 1
    while not is_enough(high):
        high *= 2
        if high > MOST:
            return None
    low = high // 2
    while high - low > max(1, low // 200):  # to half a percent
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
