"""A suite in which nothing has changed says that something got worse in at most 5 of 100 nights."""

import gc
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray
from simulated_pairs import EVALS, Eval

from eval_dagster.records.judgements import Verdict
from eval_dagster.statistics.paired import ALPHA, Comparison
from eval_dagster.statistics.verdicts import Case, judge_suite

SUITES = 1000
RUNS = [pytest.param(number, id=each.scores) for number, each in enumerate(EVALS)]


@cache
def _comparisons(number: int) -> list[Comparison]:
    rng = np.random.default_rng((20251121, number))
    return [EVALS[number].draw(rng).compare() for _ in range(SUITES)]


def _p_values(comparisons: list[Comparison]) -> NDArray[np.float64]:
    p_values = np.array([each.p_value for each in comparisons], dtype=float)
    assert np.isfinite(p_values).all(), "every simulated eval can be compared"
    return p_values


@pytest.fixture
def suites() -> Iterator[list[tuple[Comparison, ...]]]:
    drawn = list(zip(*(_comparisons(number) for number in range(len(EVALS))), strict=True))
    # statsmodels collects garbage at every correction: 50 ms a suite, with all that the tests have in memory.
    gc.freeze()
    yield drawn
    gc.unfreeze()


@pytest.mark.long
def test_a_suite_in_which_nothing_changed_seldom_regresses(suites: list[tuple[Comparison, ...]]) -> None:
    alarms, uncorrected = 0, 0
    for suite in suites:
        cases = [Case(comparison=each, higher_is_better=True) for each in suite]
        alarms += any(each.verdict is Verdict.REGRESSED for each in judge_suite(cases))
        uncorrected += any((each.p_value or 0) <= ALPHA and (each.difference or 0) < 0 for each in suite)
    assert alarms <= 0.05 * SUITES
    assert uncorrected > 0.1 * SUITES, "ten evals without Holm's correction cry wolf: the simulation could show it"


@pytest.mark.long
@pytest.mark.parametrize("number", RUNS)
def test_a_p_value_is_what_it_says(number: int) -> None:
    p_values = _p_values(_comparisons(number))
    for alpha in (0.1, 0.05, 0.01, 0.005):
        # Four standard errors of the simulation.
        assert (p_values <= alpha).mean() <= alpha + 4 * np.sqrt(alpha * (1 - alpha) / SUITES)
    assert (p_values <= 0.1).mean() > 0.02, "and it does see what chance does"


@pytest.mark.long
@pytest.mark.parametrize("number", RUNS)
def test_an_interval_contains_no_difference(number: int) -> None:
    comparisons = _comparisons(number)
    low, high, stderr = (np.array([getattr(each, name) for each in comparisons], dtype=float) for name in ("ci_low", "ci_high", "stderr"))
    spread = np.std([each.difference for each in comparisons])
    assert 0.93 < ((low <= 0) & (high >= 0)).mean() < 0.995
    assert np.sqrt((stderr**2).mean()) / spread == pytest.approx(1, abs=0.07)


@pytest.mark.long
@pytest.mark.parametrize("number", RUNS)
def test_the_smallest_detectable_drop_is_found_in_80_of_100_nights_or_more(number: int) -> None:
    drop = float(np.median([each.min_detectable or np.nan for each in _comparisons(number)]))
    rng = np.random.default_rng((8, number))
    found = [EVALS[number].draw(rng).with_drop(rng, drop).compare().p_value or 0 for _ in range(200)]
    assert 0.7 < np.mean(np.array(found) <= ALPHA) < 0.98


CLUSTERED = [pytest.param(each, id=each.scores) for each in EVALS if each.draw(np.random.default_rng(0)).clusters]


@pytest.mark.parametrize("each", CLUSTERED)
def test_samples_of_a_cluster_taken_for_independent_cry_wolf(each: Eval) -> None:
    rng = np.random.default_rng(8)
    assert (_p_values([each.draw(rng).compare(clusters_are_told=False) for _ in range(100)]) <= ALPHA).mean() > 0.1
