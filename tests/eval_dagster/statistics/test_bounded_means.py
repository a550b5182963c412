"""Intervals of means with bounds, by hand and by what they must not do."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_dagster.statistics.bounded_means import bounded_interval
from eval_dagster.statistics.estimates import Estimate, estimate_macro, estimate_mean
from eval_dagster.statistics.paired import Comparison, compare_means

NORMAL = 1.959963984540054


def _ends(estimate: Estimate | Comparison) -> tuple[float, float]:
    assert estimate.ci_low is not None
    assert estimate.ci_high is not None
    return estimate.ci_low, estimate.ci_high


def test_zeros_by_hand() -> None:
    # The minimum over b of (1 - exp(-c (1 + 0.56 b^8))) / b with c = 1.96^2 / 2 / 150.
    estimate = estimate_mean([0.0] * 150, proportion=False, bounds=(0, 1))
    cost, tilts = NORMAL**2 / 300, np.linspace(0.01, 1, 100_000)
    least = float((-np.expm1(-cost * (1 + 0.56 * tilts**8)) / tilts).min())
    assert (estimate.value, estimate.ci_low) == (0.0, 0.0)
    assert estimate.ci_high == pytest.approx(least, abs=1e-9)
    assert 2.5 / 150 < least < 2.7 / 150


@given(
    st.lists(st.floats(-1, 1), min_size=2, max_size=40),
    st.sampled_from([None, 2, 3]),
    st.sampled_from([((-1.0, 1.0)), (-1.0, 4.0)]),
)
def test_an_interval_has_a_width_and_stays_within_the_bounds(values: list[float], size: int | None, bounds: tuple[float, float]) -> None:
    clusters = None if size is None else [number // size for number in range(len(values))]
    estimate = estimate_mean(values, proportion=False, clusters=clusters, bounds=bounds)
    if estimate.ci_low is None:
        assert size is not None
        assert len(values) < 4 * size, "too few clusters"
        return
    low, high = _ends(estimate)
    assert estimate.value is not None
    assert bounds[0] <= low <= estimate.value <= high <= bounds[1]
    assert high - low > 0.01
    mirrored = estimate_mean([-value for value in values], proportion=False, clusters=clusters, bounds=(-bounds[1], -bounds[0]))
    assert _ends(mirrored) == (pytest.approx(-high, abs=1e-6), pytest.approx(-low, abs=1e-6))


def test_many_values_have_the_interval_of_the_normal_distribution() -> None:
    values = np.random.default_rng(1).beta(2, 3, 20_000)
    low, high = bounded_interval(values, size=len(values), quantile=NORMAL, bounds=(0, 1))
    half = NORMAL * float(values.std()) / math.sqrt(len(values))
    assert (low, high) == (pytest.approx(values.mean() - half, rel=1e-3), pytest.approx(values.mean() + half, rel=1e-3))


def test_an_infinite_bound_only_cuts() -> None:
    values = [0.1, 0.1, 0.1, 4.0]
    free, cut = (estimate_mean(values, proportion=False, bounds=bounds) for bounds in (None, (0.0, math.inf)))
    assert free.ci_low is not None
    assert free.ci_low < 0
    assert (cut.ci_low, cut.ci_high) == (0.0, free.ci_high)


def test_a_single_value_says_nothing() -> None:
    estimate = estimate_mean([0.4], proportion=False, bounds=(0, 1))
    assert (estimate.value, estimate.stderr, estimate.ci_low, estimate.ci_high) == (0.4, None, None, None)


def test_subjects_whose_values_are_equal_leave_a_width() -> None:
    members = [[0.0] * 5, [0.5] * 5, [1.0] * 5]
    groups = [estimate_mean(values, proportion=False, bounds=(0, 1)) for values in members]
    low, high = _ends(estimate_macro(groups, proportion=False, bounds=(0, 1), members=members))
    assert 0.2 < low < 0.45
    assert 0.55 < high < 0.8
    without = estimate_macro([estimate_mean(values, proportion=False) for values in members], proportion=False)
    assert (without.ci_low, without.ci_high) == (None, None)


def test_a_difference_of_scores_that_are_nearly_all_0() -> None:
    a, b = np.zeros(150), np.zeros(150)
    a[0] = 0.5
    bounded, free = compare_means(a, b, bounds=(0, 1)), compare_means(a, b)
    low, high = _ends(bounded)
    assert -0.03 < low < 0 < bounded.value_a < high < 0.05  # type: ignore[operator]
    assert (bounded.p_value, bounded.test) == (free.p_value, free.test) == (1.0, "sign flips")
    a[0] = 0.0
    a[1] = b[1] = 0.25
    equal, unknown = compare_means(a, b, bounds=(0, 1)), compare_means(a, b)
    assert (equal.difference, equal.p_value, unknown.p_value) == (0.0, 1.0, 1.0)
    low, high = _ends(equal)
    assert low == pytest.approx(-high)
    assert high > 0.01
    assert (unknown.ci_low, unknown.ci_high) == (None, None)


@pytest.mark.long
@pytest.mark.parametrize("zeros", [0.95, 0.5])
@pytest.mark.parametrize("n", [10, 30])
def test_the_interval_of_a_difference_contains_the_truth(n: int, zeros: float) -> None:
    """F1 of a model that is right half as often as its baseline where the baseline is not 0."""
    rng, draws = np.random.default_rng(3), 400
    truth, hits = -(1 - zeros) * 0.25, 0
    for _ in range(draws):
        b = np.where(rng.random(n) < zeros, 0.0, rng.beta(2, 2, n))
        a = np.where(rng.random(n) < 0.5, b, 0.0)
        low, high = _ends(compare_means(a, b, bounds=(0, 1)))
        hits += low <= truth <= high
    assert hits / draws > 0.93


def test_answers_of_which_one_cluster_holds_nearly_all_are_compared_without_an_interval() -> None:
    a, b = np.tile([1.0, 0.0, 1.0], 40), np.tile([1.0, 1.0, 0.0], 40)
    comparison = compare_means(a, b, clusters=[0] * 100 + list(range(1, 21)))
    assert (comparison.stderr, comparison.ci_low, comparison.ci_high, comparison.min_detectable) == (None, None, None, None)
    assert comparison.test == "sign flips"
