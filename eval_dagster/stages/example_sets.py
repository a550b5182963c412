"""How much a score depends on the choice of few-shot examples."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev, variance


def set_spread(sets: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The spread of the means of several sets, and the spread that is expected if the choice of examples has no effect.

    Each sample has one set, so that the means differ by their samples, too. For independent samples with the pooled variance s2 (within
    the sets), the expected variance of the means is s2 times the mean of 1 / n, where n is the size of a set.

    Args:
        sets: The values of each set's samples, in the metric's unit; at least two sets, none of them empty.

    Returns:
        The standard deviation of the means, and the square root of the expected variance.
    """
    within = sum(variance(values) * (len(values) - 1) for values in sets if len(values) > 1)
    freedom = sum(len(values) - 1 for values in sets)
    pooled = within / freedom if freedom else 0.0
    return stdev(map(fmean, sets)), math.sqrt(pooled * fmean(1 / len(values) for values in sets))
