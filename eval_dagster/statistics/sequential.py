"""Tests of a paired difference that is seen in growing parts, and may end at each look.

A test that is repeated at every look at its full level is wrong far too often. Here the level is spent: at look k, of which the share t of
all samples is known, at most level * t^power is spent so far (Lan & DeMets 1983, Biometrika 70; the power family of Kim & DeMets 1987,
Biometrika 74). So looks can be left out, and the last one has nearly the power of a test of all samples.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy
from numpy.typing import NDArray

from eval_dagster.statistics.noninferiority import LEVEL, exact_p_value, fewest_samples
from eval_dagster.statistics.sample_sizes import power_of_proof

LOOKS = 12
"""Most looks at a result."""
PROOF_LEVEL = LEVEL
"""One-sided level of a proof that is spent over the looks. Nominal levels are those of the normal distribution; p-values are exact, and a
little too large. By enumeration, falls of the margin are proven in at most 4.8 % (`tests/eval_dagster/statistics/test_early_nights.py`)."""
PATIENT, EAGER = 3.0, 0.7
"""Powers of t. Most is left for the last looks, or the first ones get a little more than their part."""

_FIRST_LEVEL = 0.011
"""The first look comes when samples without a flip would be a proof at this level."""
_EASY_SHARE, _EASY_POWER = 0.6, 0.978
"""If this share of the samples proves a quiet result with this probability, the level is spent early. Ten evals are then proven together
with the probability 0.8."""
_REACH = 8.0
"""Standard deviations on both sides of a normal variable that are computed."""
_POINTS = 1201
_CONFIDENCE = 0.95

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Counts:
    """The samples that were asked up to a look, by what they say."""

    n: int
    """Samples that the baseline has a value of."""
    up: int
    """Samples among them that only the result has right."""
    down: int
    """Samples that only the baseline has right."""
    lost: int = 0
    """Samples that are errors in the result. They count as falls in a proof, and are left out of the test for a fall."""


@dataclass(frozen=True, kw_only=True)
class Design:
    """How a result is tested at its looks. It is fixed before the first answer."""

    looks: tuple[int, ...]
    """Samples that were asked up to each look. The last number is all of them."""
    margin: float
    """The fall that a proof refutes, as a share of the samples."""
    fall_level: float
    """One-sided level of the test for a fall, over all looks together."""
    proof_power: float
    """The exponent of t in the spending of a proof: `PATIENT` or `EAGER`."""

    @classmethod
    def of(cls, n: int, *, margin: float, fall_level: float, flips: float | None) -> "Design":
        """The design for `n` samples.

        Args:
            n: Samples that the baseline has.
            margin: The fall that a proof refutes.
            fall_level: One-sided level of the test for a fall.
            flips: Share of the samples that flip when nothing changes, by the history. None if it is not known.
        """
        is_easy = flips is not None and power_of_proof(int(_EASY_SHARE * n), margin=margin, flips=flips) >= _EASY_POWER
        return cls(looks=look_sizes(n, margin), margin=margin, fall_level=fall_level, proof_power=EAGER if is_easy else PATIENT)

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of the samples that is known at each look."""
        return tuple(each / self.looks[-1] for each in self.looks)

    @property
    def proof_levels(self) -> tuple[float, ...]:
        """The one-sided level at which a p-value is a proof, at each look."""
        return nominal_levels(self.shares, PROOF_LEVEL, self.proof_power)

    def width_at(self, look: int) -> float:
        """How many times as wide as a plain interval the repeated interval is at a look, counted from 0.

        Repeated intervals cover the difference at all looks together with at least their confidence (Jennison & Turnbull 1989, JRSS B 51).
        """
        levels = nominal_levels(self.shares, (1 - _CONFIDENCE) / 2, self.proof_power)
        return float(scipy.special.ndtri(levels[look]) / scipy.special.ndtri((1 - _CONFIDENCE) / 2))

    def fall(self, counts: Sequence[Counts]) -> "FallTest":
        """The test for a fall at the last of the looks so far: `sequential_mcnemar`."""
        return sequential_mcnemar(counts, self.shares[: len(counts)], self.fall_level)

    def proof_p_value(self, counts: Counts) -> float:
        """The p-value of `exact_p_value` at a look. It is a proof if it is at most the look's level in `proof_levels`."""
        n, down = counts.n, counts.down + counts.lost
        return exact_p_value(n, counts.up, down, self.margin) if n >= fewest_samples(self.margin) else 1.0


@dataclass(frozen=True, kw_only=True)
class FallTest:
    """The test for a fall at a look."""

    p_value: float
    """One-sided, in the order of the looks: the probability of being called fallen at an earlier look, or of being as bad at this one."""
    is_fallen: bool
    """Whether this look, or an earlier one, calls it fallen."""


def look_sizes(n: int, margin: float, looks: int = LOOKS) -> tuple[int, ...]:
    """The samples that are asked up to each look, in equal ratios from the first look at which a proof is possible.

    Too few samples for two looks are asked at once.
    """
    first = fewest_samples(margin, _FIRST_LEVEL)
    if first >= n:
        return (n,)
    return tuple(sorted({round(each) for each in np.geomspace(first, n, looks).tolist()}))


def nominal_levels(shares: tuple[float, ...], level: float, power: float) -> tuple[float, ...]:
    """The one-sided levels at which the looks are tested, so that level * t^power is spent up to the share t.

    Args:
        shares: The share of the samples known at each look, rising; the last one is 1.
        level: One-sided level of all looks together.
        power: The exponent.

    Returns:
        A level for each look.
    """
    return levels_that_spend(shares, tuple(level * share**power for share in shares))


@lru_cache(maxsize=512)
def levels_that_spend(shares: tuple[float, ...], spent: tuple[float, ...]) -> tuple[float, ...]:
    """The one-sided levels at which the looks are tested, so that a part of the level is spent up to each.

    The statistic is a Brownian motion seen at the times t (Armitage, McPherson & Rowe 1969, JRSS A 132), integrated numerically.

    Args:
        shares: The share of the samples known at each look, rising.
        spent: The probability of a crossing up to each look, rising.

    Returns:
        A level for each look.
    """
    found: list[float] = []
    before, spent_before = 0.0, 0.0
    grid, density, width = np.zeros(1), np.ones(1), np.ones(1)
    for share, spent_now in zip(shares, spent, strict=True):
        step = math.sqrt(share - before)
        weights = density * width  # by the trapezoid rule
        due = spent_now - spent_before

        def crossing(bound: float, grid: Floats = grid, weights: Floats = weights, step: float = step) -> float:
            return float((weights * scipy.special.ndtr((grid - bound) / step)).sum())

        low, high = -_REACH * math.sqrt(share), _REACH * math.sqrt(share)
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if crossing(middle) > due else (low, middle)
        found.append(float(scipy.special.ndtr(-high / math.sqrt(share))))
        points = np.linspace(-_REACH * math.sqrt(share), high, _POINTS)
        width = np.full(_POINTS, points[1] - points[0])
        width[[0, -1]] /= 2
        apart = (points[:, np.newaxis] - grid[np.newaxis]) / step
        density = (np.exp(-(apart**2) / 2) @ weights) / (step * math.sqrt(2 * math.pi))
        grid, before, spent_before = points, share, spent_now
    return tuple(found)


def sequential_mcnemar(counts: Sequence[Counts], shares: Sequence[float], level: float, power: float = PATIENT) -> FallTest:
    """McNemar's exact test, repeated at looks.

    Given the samples that differ, each is a fall with the probability 1/2 if nothing has changed. The distribution of the falls is
    convolved from look to look. At each one the smallest boundary is taken whose crossing fits into level * t^power less what was spent,
    so what discreteness leaves is carried on.

    Args:
        counts: The counts at the looks so far.
        shares: The share of the samples that is known at each of them.
        level: One-sided level of all looks together.
        power: The exponent.
    """
    chances, spent, known = np.ones(1), 0.0, 0
    test = FallTest(p_value=1.0, is_fallen=False)
    for count, share in zip(counts, shares, strict=True):
        differ = count.up + count.down
        more = differ - known
        few = np.diff(scipy.special.bdtr(np.arange(more // 2 + 1), more, 0.5), prepend=0.0) if more else np.ones(1)
        # Symmetric, and so as exact for many falls as for few.
        chances = np.convolve(chances, np.append(few, few[: (more + 1) // 2][::-1]))
        tails = np.append(np.cumsum(chances[::-1])[::-1], 0.0)  # of at least so many falls
        bound = int(np.argmax(spent + tails <= level * share**power + 1e-15))
        test = FallTest(p_value=min(1.0, spent + float(tails[count.down])), is_fallen=count.down >= bound)
        if test.is_fallen:
            break
        spent += float(tails[bound])
        chances = np.where(np.arange(len(chances)) >= bound, 0.0, chances)
        known = differ
    return test
