"""How many samples it takes to see a fall, and to prove that there is none.

The flips of quiet nights are what both cost: samples whose answers differ although nothing has changed.
"""

import math
from collections.abc import Callable

import numpy as np
import scipy

from eval_dagster.statistics.noninferiority import LEVEL, fewest_samples, tango
from eval_dagster.statistics.significance import POWER, detectable, power_of_mcnemar

MOST = 10_000_000
"""Most samples that are planned."""


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


def samples_to_see_mean(fall: float, *, deviation: float, level: float) -> int | None:
    """The same for the mean of other scores, by the paired t test. `deviation` is the standard deviation of a sample's difference."""
    return _fewest(lambda n: n > 1 and detectable(deviation / math.sqrt(n), n - 1, level) <= fall)


def samples_to_prove(margin: float, *, flips: float) -> int | None:
    """The fewest samples that prove with the probability 0.8 that a share of right answers has not fallen by `margin`, if it has not."""
    return _fewest(lambda n: power_of_proof(n, margin=margin, flips=flips) >= POWER)


def samples_to_prove_mean(margin: float, *, deviation: float, width: float) -> int:
    """The same for the mean of other scores with a range.

    The score z of `noninferiority.not_worse` is above its critical value c with the probability 0.8 if n is at least
    ((c sqrt(s^2 + margin width) + z(0.8) s) / margin)^2, s being the deviation.
    """
    critical, power = (float(scipy.special.ndtri(share)) for share in (1 - LEVEL, POWER))
    needed = ((critical * math.sqrt(deviation**2 + margin * width) + power * deviation) / margin) ** 2
    return max(math.ceil(needed), fewest_samples(margin / width))


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
    critical = float(scipy.special.ndtri(1 - LEVEL))
    low, high = np.zeros_like(falls), n - falls + 1
    while (low < high).any():  # the fewest rises that prove it, by bisection
        middle = (low + high) // 2
        is_proof = tango(n, np.minimum(middle, n - falls), falls, margin) >= critical
        high, low = np.where(is_proof, middle, high), np.where(is_proof, low, np.minimum(middle + 1, high))
    chance = np.diff(scipy.special.bdtr(falls, n, down), prepend=0.0) if down else np.eye(1, most + 1)[0]
    left = n - falls
    rises = np.where(
        high == 0, 1.0, np.where(high > left, 0.0, scipy.special.bdtrc(np.maximum(high - 1, 0), left, min(1.0, up / (1 - down))))
    )
    return float((np.nan_to_num(chance) * rises).sum())


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
