"""How much a score depends on which few-shot examples were drawn."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev, variance


def set_spread(sets: Sequence[Sequence[float]]) -> tuple[float, float]:
    """How far the means of several sets are apart, and how far they would be if it made no difference which set a sample has.

    Each sample has one set, so that the means differ by their samples, too. With independent samples of pooled variance s2 (within the
    sets), the variance of the means is s2 times the mean of 1 / n on average, where n is the size of a set.

    Args:
        sets: The values of each set's samples, in the metric's unit; two sets at least, none of them empty.

    Returns:
        The standard deviation of the means, and its size by chance: the square root of that average.
    """
    within = sum(variance(values) * (len(values) - 1) for values in sets if len(values) > 1)
    freedom = sum(len(values) - 1 for values in sets)
    pooled = within / freedom if freedom else 0.0
    return stdev(map(fmean, sets)), math.sqrt(pooled * fmean(1 / len(values) for values in sets))
