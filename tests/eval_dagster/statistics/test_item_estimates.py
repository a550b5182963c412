"""The estimate of a metric that is computed from items: against SciPy's bootstrap, and its coverage of a known truth."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import scipy.stats

from eval_dagster.statistics.estimates import estimate_items


def _mean_of_pairs(items: Sequence[tuple[float, float]]) -> float:
    """A ratio of sums, as a perplexity per word is one."""
    return sum(first for first, _ in items) / sum(second for _, second in items)


def _pairs(rng: np.random.Generator, count: int) -> list[tuple[float, float]]:
    lengths = rng.integers(5, 50, count)
    return [(float(rng.normal(2 * length, 4)), float(length)) for length in lengths]


def test_the_error_bar_is_that_of_scipy() -> None:
    items = _pairs(np.random.default_rng(1), 200)
    ours = estimate_items(items, _mean_of_pairs)
    firsts, seconds = map(np.array, zip(*items, strict=True))
    theirs = scipy.stats.bootstrap(
        (firsts, seconds), lambda a, b, axis: a.sum(axis) / b.sum(axis), paired=True, method="BCa", n_resamples=4000, rng=2
    )
    assert ours.value == pytest.approx(_mean_of_pairs(items))
    assert ours.stderr == pytest.approx(theirs.standard_error, rel=0.1)
    width = theirs.confidence_interval.high - theirs.confidence_interval.low
    assert ours.ci_low == pytest.approx(theirs.confidence_interval.low, abs=0.12 * width)
    assert ours.ci_high == pytest.approx(theirs.confidence_interval.high, abs=0.12 * width)
    assert (ours.n, ours.n_errors, ours.n_clusters) == (200, 0, 200)


@pytest.mark.long
def test_the_interval_covers_the_truth_of_clusters() -> None:
    rng, covered, alone = np.random.default_rng(3), 0, 0
    for _ in range(120):
        effects = rng.normal(0, 1, 25)
        clusters = np.repeat(np.arange(25), 4)
        items = [(float(effects[cluster] + rng.normal(0, 0.3)), 1.0) for cluster in clusters]
        ours = estimate_items(items, _mean_of_pairs, clusters=list(clusters), most_seconds=0.05)
        assert ours.ci_low is not None
        assert ours.ci_high is not None
        covered += ours.ci_low <= 0 <= ours.ci_high
        single = estimate_items(items, _mean_of_pairs, most_seconds=0.02)
        alone += bool(single.ci_low is not None and single.ci_high is not None and single.ci_low <= 0 <= single.ci_high)
        assert ours.n_clusters == 25
    assert covered >= 105
    assert alone < covered, "without clusters the interval is too narrow"


def test_one_sample_has_a_value_and_no_error_bar() -> None:
    found = estimate_items([(6.0, 2.0)], _mean_of_pairs)
    assert (found.value, found.stderr, found.ci_low, found.n) == (3.0, None, None, 1)


def test_items_without_a_value_have_none() -> None:
    assert estimate_items([], _mean_of_pairs, n_errors=4).value is None
    found = estimate_items([1.0, 1.0, 1.0], lambda _: math.nan)
    assert (found.value, found.stderr, found.n) == (None, None, 3)


def test_draws_without_a_value_are_left_out_or_cost_the_error_bar() -> None:
    def spread(items: Sequence[float]) -> float:
        if len(set(items)) == 1:
            raise ZeroDivisionError
        return float(np.std(items))

    assert estimate_items([1.0, 2.0], spread).stderr is None, "half of the draws have no value"
    assert estimate_items(list(range(30)), spread).stderr is not None


def test_an_aggregate_that_fails_on_all_items_raises() -> None:
    def fails(_: Sequence[object]) -> float:
        raise KeyError("gone")

    with pytest.raises(KeyError):
        estimate_items([1, 2], fails)


def test_the_draws_are_the_same_each_time() -> None:
    items = _pairs(np.random.default_rng(5), 40)
    assert estimate_items(items, _mean_of_pairs) == estimate_items(items, _mean_of_pairs)
