"""The interval of a mean whose values have bounds: F1, ROUGE, or a score between -1 and 1.

A t interval of such values can be far too narrow: of 20 values that are 0 it says that the mean is 0. A value that was not seen may be
anywhere between the bounds, and this interval knows that.
"""

import math
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Bounds: TypeAlias = tuple[float, float]
"""The least and the largest value that a metric can give; an end may be infinite."""
Floats: TypeAlias = NDArray[np.float64]

_STEPS = 24
"""Halvings of the search for a tilt. The end of the interval is accurate to the square of the last step."""
_SURCHARGE, _POWER = 0.56, 8
"""What a mean costs more that needs unseen values at a bound. Chosen for the coverage in docs/explanation/statistics.md."""
_LEAST_TILT = -14.0
"""Natural logarithm of the least tilt that is tried. It is that of some ten million samples."""


def bounded_interval(values: Floats, *, size: float, quantile: float, bounds: Bounds, weights: Floats | None = None) -> tuple[float, float]:
    """The interval of a mean of values between bounds.

    It holds each mean mu of which no distribution between the bounds is too far from the values: `size` times the least Kullback-Leibler
    divergence is at most quantile^2 / 2. That is the empirical likelihood interval (Owen 1988, Biometrika 75) with the whole range as
    support instead of the values seen, so that it has a width even if all values are equal, and never leaves the bounds (Honda & Takemura
    2010, COLT). It is also what a bettor who knows the best stake in hindsight cannot refute (Waudby-Smith & Ramdas 2024, Journal of the
    Royal Statistical Society B 86). For samples with weights or in clusters the divergence counts with the effective size, as in the
    pseudo-empirical likelihood of surveys (Wu & Rao 2006, Canadian Journal of Statistics 34).

    For values between 0 and 1 the upper end is the minimum over b from 0 to 1 of (1 - exp(mean of log(1 - b x) - c (1 + s b^8))) / b, with
    c = quantile^2 / (2 size). The lower end mirrors it. The surcharge s = 0.56 counts only if the interval needs values at a bound that
    were hardly seen, since b is then near 1. Without it the upper end for n zeros is 1.9 / n, and the coverage of scores that are rarely
    1 falls to 86 %; with it, the end is 2.6 / n, about as with Jeffreys' interval (Brown, Cai & DasGupta 2001, Statistical Science 16).

    Args:
        values: May lie outside the bounds, as residuals of groups around a common mean do; the interval does not.
        size: The effective number of independent values.
        quantile: Standard normal or Student's, of one tail.
        bounds: Both finite.
        weights: One a value, with the sum 1. None: all equal.
    """
    low, high = bounds
    shares = np.full(len(values), 1 / len(values)) if weights is None else weights
    scaled = (values - low) / (high - low)
    cost = quantile**2 / (2 * size)
    upper, lower = _upper_end(scaled, shares, cost), 1 - _upper_end(1 - scaled, shares, cost)
    return low + max(0.0, lower) * (high - low), low + min(1.0, upper) * (high - low)


def _upper_end(values: Floats, shares: Floats, cost: float) -> float:
    """The upper end for values between 0 and 1."""
    most = max(1.0, float(values.max()))
    distinct, position = np.unique(values / most, return_inverse=True)
    distinct, shares = np.minimum(distinct, 1 - 1e-15), np.bincount(position, shares).astype(float)

    def tilted(tilt: float) -> tuple[float, bool]:
        """The bound on the mean that a tilt gives, and whether a larger tilt gives a larger one."""
        rest = 1 - tilt * distinct
        # Not a product of BLAS: its last digits depend on the number of threads.
        kept = float((shares * np.log(rest)).sum()) - cost * (1 + _SURCHARGE * tilt**_POWER)
        slope = float((shares * distinct / rest).sum()) + cost * _SURCHARGE * _POWER * tilt ** (_POWER - 1)
        return -math.expm1(kept) / tilt, -math.expm1(kept) < tilt * math.exp(kept) * slope

    low, high = _LEAST_TILT, 0.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        _, rises = tilted(math.exp(middle))
        low, high = (low, middle) if rises else (middle, high)
    return min(1.0, tilted(math.exp((low + high) / 2))[0]) * most
