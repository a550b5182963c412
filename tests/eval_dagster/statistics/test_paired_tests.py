import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.power import TTestPower

from eval_dagster.statistics.significance import (
    POWER,
    are_few,
    detectable,
    detectable_share,
    exact_mcnemar,
    flips_of_counts,
    flips_of_many,
    flips_of_sums,
    student,
)

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

MAIZE = np.array([49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48])
"""Darwin's 15 pairs of cross- and self-fertilised maize, differences in eighths of an inch (Fisher 1935, "The Design of Experiments")."""


def _first(sums: Floats) -> Floats:
    return sums[:, 0]


@pytest.mark.parametrize(
    ("only_before", "only_after", "published"),
    [
        (1, 7, 0.0703),  # airway hyper-responsiveness of 21 children, Fagerland et al. 2013, BMC Medical Research Methodology 13:91
        (6, 16, 0.0525),  # complete response of 161 patients, as above
    ],
)
def test_mcnemar_as_published(only_before: int, only_after: int, published: float) -> None:
    assert exact_mcnemar(np.array([only_before]), np.array([only_after])) == pytest.approx(published, abs=5e-5)


def test_mcnemar_is_that_of_statsmodels() -> None:
    only_a, only_b = np.arange(0, 40, 3), np.arange(60, 4, -4)[:14]
    expected = [mcnemar([[50, a], [b, 20]], exact=True).pvalue for a, b in zip(only_a, only_b, strict=True)]
    assert exact_mcnemar(only_a, only_b) == pytest.approx(expected)


def test_mcnemar_by_hand() -> None:
    # 0 and 5: 2 / 2^5. 1 and 3: 2 (1 + 4) / 2^4. Equal counts and none at all: 1.
    assert exact_mcnemar(np.array([0, 1, 4, 0]), np.array([5, 3, 4, 0])).tolist() == [0.0625, 0.625, 1.0, 1.0]


def test_flips_of_darwins_maize_as_published() -> None:
    # Of the 2^15 sums 863 are 314 or more, and 863 are -314 or less: 5.267 %, where Student's t says 4.97 %.
    assert flips_of_counts(MAIZE) == pytest.approx(1726 / 2**15)
    assert flips_of_sums(MAIZE[:, np.newaxis] / 2, -MAIZE[:, np.newaxis] / 2, _first) == pytest.approx(1726 / 2**15)
    assert flips_of_many(MAIZE.astype(float)) == pytest.approx(0.053, abs=0.001)
    mean, stderr = MAIZE.mean(), MAIZE.std(ddof=1) / math.sqrt(15)
    assert (mean / stderr, student(mean, stderr, 14)) == (pytest.approx(2.148, abs=5e-4), pytest.approx(0.0497, abs=5e-5))


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=8))
def test_flips_are_those_of_every_sign(advantages: list[int]) -> None:
    observed = abs(sum(advantages))
    every = [
        abs(sum(sign * each for sign, each in zip(signs, advantages, strict=True))) for signs in product((1, -1), repeat=len(advantages))
    ]
    expected = sum(each >= observed for each in every) / len(every)
    assert flips_of_counts(np.array(advantages)) == pytest.approx(expected)
    column = np.array(advantages, dtype=float)[:, np.newaxis] * 0.1
    assert flips_of_sums(column + 0.3, np.full_like(column, 0.3), _first) == pytest.approx(expected)


@given(st.integers(0, 300), st.integers(0, 300))
def test_flips_of_single_samples_are_mcnemars(up: int, down: int) -> None:
    flips = flips_of_counts(np.array([1] * up + [-1] * down, dtype=np.int64))
    assert flips == pytest.approx(float(exact_mcnemar(np.int64(up), np.int64(down))), rel=1e-9)


def test_flips_of_many_approach_the_exact_ones() -> None:
    advantages = np.random.default_rng(0).integers(-5, 6, 2000)
    assert flips_of_many(advantages.astype(float)) == pytest.approx(flips_of_counts(advantages), rel=0.02)
    assert flips_of_many(np.zeros(20)) == 1.0


def test_flips_of_a_metric_that_some_swaps_leave_undefined() -> None:
    # a 3 / 1, b 1 / 4. With the last swapped 4 / 3 and 0 / 2, with the second 2 / 3 and 1 / 3, with both 3 / 5 and 1 / 0; the other four
    # are these with a and b the other way round. As extreme as 2.75 are itself and the one without a value: 4 of 8.
    of_a, of_b = np.array([[2.0, 1.0], [1.0, 0.0], [0.0, 0.0]]), np.array([[0.0, 0.0], [0.0, 2.0], [1.0, 2.0]])
    assert flips_of_sums(of_a, of_b, lambda sums: sums[:, 0] / sums[:, 1]) == 0.5


def test_few_differences_would_make_a_t_test_cry_wolf() -> None:
    four = np.array([1.0] * 4 + [0.0] * 296)
    assert student(four.mean(), four.std(ddof=1) / math.sqrt(300), 299) < 0.05
    assert flips_of_many(four) < 0.05
    assert flips_of_counts(four.astype(np.int64)) == 2 / 2**4
    assert are_few(4, 300)
    assert are_few(16, 32)
    assert not are_few(16, 31)
    assert not are_few(17, 300)


@pytest.mark.parametrize(("n", "alpha"), [(30, 0.05), (100, 0.05), (300, 0.005)])
def test_the_smallest_difference_of_a_t_test_is_that_of_statsmodels(n: int, alpha: float) -> None:
    effect = float(TTestPower().solve_power(nobs=n, alpha=alpha, power=POWER))
    assert detectable(1 / math.sqrt(n), n - 1, alpha) == pytest.approx(effect, rel=0.01)


def test_what_a_drop_costs_varies_too() -> None:
    quantiles = stats.t.ppf(0.975, 40) + stats.t.ppf(0.8, 40)
    found = detectable(0.01, 40, 0.05, spread=1 / 300)
    assert found == pytest.approx(quantiles * math.sqrt(0.01**2 + found * (1 - found) / 300))
    assert detectable(0.01, 40, 0.05) == pytest.approx(quantiles * 0.01)


@pytest.mark.parametrize(("n", "discordant", "alpha"), [(12, 3, 0.05), (25, 2, 0.05), (25, 20, 0.05), (40, 10, 0.01)])
def test_the_smallest_difference_of_mcnemars_test_is_found_with_its_power(n: int, discordant: int, alpha: float) -> None:
    difference = detectable_share(n, discordant, alpha)
    assert difference is not None
    discordance = min(1.0, discordant / n + difference)
    only_a, only_b = (counts.ravel() for counts in np.meshgrid(np.arange(n + 1), np.arange(n + 1)))
    possible = only_a + only_b <= n
    only_a, only_b = only_a[possible], only_b[possible]
    shares = [(discordance + difference) / 2, max(0.0, (discordance - difference) / 2), 1 - discordance]
    chances = stats.multinomial.pmf(np.stack([only_a, only_b, n - only_a - only_b], axis=1), n, shares)
    assert float(chances[exact_mcnemar(only_a, only_b) <= alpha].sum()) == pytest.approx(POWER, abs=0.002)


def test_the_smallest_difference_grows_with_the_answers_that_flip_anyway_and_shrinks_with_samples() -> None:
    assert detectable_share(5, 0, 0.05) is None, "2 / 2^5 is no significance"
    by_noise = [detectable_share(300, discordant, 0.05) for discordant in (0, 30, 90)]
    by_samples = [detectable_share(n, n // 10, 0.05) for n in (1000, 300, 100)]
    assert by_noise == sorted(by_noise)
    assert by_samples == sorted(by_samples)
    assert (detectable_share(300, 30, 0.005) or 0) > (detectable_share(300, 30, 0.05) or 1)
