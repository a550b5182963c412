"""The estimate of a metric that is computed from one item a sample."""

import math
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from eval_dagster.statistics.estimates import (
    DRAWS,
    Estimate,
    are_too_few,
    bias_corrected,
    degrees_of_freedom,
    numbered,
    says_something,
    student,
)

_FEWEST = 20
"""Draws that are made even if they take longer than the time that is given."""


def estimate_items(
    items: Sequence[Any],
    aggregate: Callable[[list[Any]], float],
    *,
    clusters: Sequence[Hashable] | None = None,
    n_errors: int = 0,
    seed: int = 0,
    most_seconds: float = 5.0,
) -> Estimate:
    """Estimate a metric of all samples together. `aggregate` is called on the items, and on the items of each draw.

    Clusters are drawn with replacement as in `estimate_corpus`, 1,000 times, or as often as the time allows: an aggregate such as BLEU
    takes long. A draw without a value, a correlation of constants for instance, is left out.

    Args:
        items: One a sample that has one, in the order of the samples.
        aggregate: From items to a value.
        clusters: What each sample belongs to. None: every sample stands alone.
        n_errors: Samples without an item.
        seed: Of the draws.
        most_seconds: After this time no draw begins, once there are 20.

    Raises:
        Exception: What `aggregate` raises for all items.
    """
    codes = numbered(clusters, np.ones(len(items), dtype=bool))
    sizes = np.bincount(codes) if len(items) else np.array([], dtype=np.intp)
    counts = {"n": len(items), "n_errors": n_errors, "n_clusters": len(sizes)}
    value = float(aggregate(list(items))) if items else math.nan
    if not math.isfinite(value) or are_too_few([sizes]):
        return Estimate(value=value if math.isfinite(value) else None, stderr=None, ci_low=None, ci_high=None, **counts)
    members = [np.flatnonzero(codes == number) for number in range(len(sizes))] if len(sizes) < len(items) else None
    generator, started = np.random.default_rng(seed), time.monotonic()
    draws: list[float] = []
    while len(draws) < DRAWS and (len(draws) < _FEWEST or time.monotonic() - started < most_seconds):
        chosen = generator.integers(0, len(sizes), len(sizes))
        positions = chosen if members is None else np.concatenate([members[number] for number in chosen])
        draws.append(_value(aggregate, [items[position] for position in positions]))
    found = np.array(draws)
    if not says_something(found, value):
        return Estimate(value=value, stderr=None, ci_low=None, ci_high=None, **counts)
    finite = found[np.isfinite(found)]
    width = math.sqrt(len(sizes) / (len(sizes) - 1)) * student(degrees_of_freedom(sizes))
    low, high = bias_corrected(finite, value, width)
    return Estimate(value=value, stderr=float(finite.std(ddof=1)), ci_low=low, ci_high=high, **counts)


def _value(aggregate: Callable[[list[Any]], float], items: list[Any]) -> float:
    try:
        return float(aggregate(items))
    except (Exception, SystemExit):  # not every draw has a value
        return math.nan
