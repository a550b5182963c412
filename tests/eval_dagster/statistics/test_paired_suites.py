import gc
from collections.abc import Iterator

import numpy as np
import pytest
from statsmodels.stats.multitest import multipletests

from eval_dagster.records.judgements import Verdict
from eval_dagster.statistics.paired import Comparison, compare_means
from eval_dagster.statistics.verdicts import Case, holm, judge_suite, noise_floor


@pytest.fixture(autouse=True)
def _no_garbage() -> Iterator[None]:
    """Spare what statsmodels does at every correction: to collect the garbage of all that the tests have in memory."""
    gc.freeze()
    yield
    gc.unfreeze()


def test_holm_as_published() -> None:
    # Steps 4, 3, 2, 1 of 0.005 0.01 0.03 0.04, of which none may be less than the one before: the first two are significant at 0.05.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_holm_is_that_of_statsmodels_and_leaves_out_what_was_not_compared() -> None:
    p_values = np.random.default_rng(0).random(12) ** 3
    expected = multipletests(p_values, method="holm")[1].tolist()
    assert holm([None, *p_values.tolist()[:5], None, *p_values.tolist()[5:]]) == [None, *expected[:5], None, *expected[5:]]
    for high in ([1.0] * 5, [0.25, 0.9, 0.8, 0.25], [0.24, 0.9, 0.8, 0.25], [0.5, 0.5, 0.3], [1.0]):
        assert holm(high) == multipletests(high, method="holm")[1].tolist()
    assert holm([None]) == [None]
    assert holm([]) == []
    assert holm([0.7]) == [0.7]


def _fall(lost: int, gained: int = 0, n: int = 100) -> Comparison:
    before = [1.0] * lost + [0.0] * gained + [1.0] * (n - lost - gained)
    return compare_means([1.0 - value for value in before[: lost + gained]] + before[lost + gained :], before)


def _verdict(case: Case, alpha: float = 0.05) -> Verdict:
    [judgement] = judge_suite([case], alpha=alpha)
    return judgement.verdict


def test_the_direction_of_the_metric_decides() -> None:
    assert _verdict(Case(comparison=_fall(10), higher_is_better=True)) == "regressed"
    assert _verdict(Case(comparison=_fall(10), higher_is_better=False)) == "improved"
    assert _verdict(Case(comparison=_fall(0, 10), higher_is_better=True)) == "improved"
    assert _verdict(Case(comparison=_fall(0, 10), higher_is_better=False)) == "regressed"


def test_what_may_be_chance_is_no_change() -> None:
    assert _verdict(Case(comparison=_fall(5), higher_is_better=True)) == "no change seen"
    assert _verdict(Case(comparison=_fall(5), higher_is_better=True), alpha=0.1) == "regressed"
    assert _verdict(Case(comparison=_fall(0), higher_is_better=True)) == "no change seen"


@pytest.mark.parametrize("threshold", ["smallest_difference", "noise_floor"])
def test_what_is_too_small_to_matter_is_no_change(threshold: str) -> None:
    assert _verdict(Case(comparison=_fall(10), higher_is_better=True, **{threshold: 0.11})) == "no change seen"
    assert _verdict(Case(comparison=_fall(10), higher_is_better=True, **{threshold: 0.09})) == "regressed"


def test_what_has_no_data_is_not_comparable_and_costs_the_others_nothing() -> None:
    nothing = [compare_means([1.0, None], [None, 0.0]), compare_means([1.0], [0.0]), compare_means([], [])]
    cases = [Case(comparison=each, higher_is_better=True) for each in [*nothing, _fall(6)]]
    judgements = judge_suite(cases)
    assert [each.verdict for each in judgements] == ["not comparable"] * 3 + ["regressed"]
    assert [each.p_adjusted for each in judgements] == [None, None, None, 2 / 2**6]


def test_a_suite_asks_for_more_than_an_eval() -> None:
    cases = [Case(comparison=each, higher_is_better=True) for each in [_fall(6), *[_fall(0)] * 9]]
    judgements = judge_suite(cases)
    assert judgements[0].p_adjusted == pytest.approx(10 * 2 / 2**6)
    assert {each.verdict for each in judgements} == {"no change seen"}
    certain = judge_suite([Case(comparison=_fall(12), higher_is_better=True), *cases[1:]])
    assert [each.verdict for each in certain] == ["regressed"] + ["no change seen"] * 9


def test_a_noise_floor_by_hand() -> None:
    # Variances 0.5, 0 and 1/3 of 2, 3 and 3 repeats; the fourth sample was answered once. sqrt(2 (5/6)) / 3.
    nan = float("nan")
    repeats = np.array([[1.0, 0.0, nan], [1.0, 1.0, 1.0], [0.0, 0.0, 1.0], [1.0, nan, nan]])
    floor = noise_floor(repeats)
    assert floor is not None
    assert (floor.stderr, floor.n) == (pytest.approx((5 / 3) ** 0.5 / 3), 3)
    # (1/2 + 1/3)^2 / ((1/2)^2 / (1 + 2) + (1/3)^2 / (2 + 2)) = 6.25 degrees of freedom.
    assert floor.difference / floor.stderr == pytest.approx(2.423381)
    by_subject = noise_floor(repeats, subjects=["x", "x", "y", "y"])
    assert by_subject is not None
    assert by_subject.stderr == pytest.approx((2 * (0.5 / 16 + 1 / 3 / 4)) ** 0.5)
    of_four_texts = noise_floor(repeats, texts=4)
    assert of_four_texts is not None
    assert of_four_texts.stderr == pytest.approx(floor.stderr / 2)


@pytest.mark.long
def test_one_sample_that_varies_makes_no_floor_that_hides_a_fall() -> None:
    floor = noise_floor(np.array([[1.0, 0.0], *[[1.0, 1.0]] * 39]))
    assert floor is not None
    # Two runs can differ by this sample alone, 0.025, and by the few that could have varied as well.
    assert 0.05 < floor.difference < 0.1


@pytest.mark.long
def test_what_never_varies_has_no_noise_and_what_was_never_repeated_has_no_floor() -> None:
    steady = noise_floor(np.array([[1.0, 1.0], [0.0, 0.0]]))
    assert steady is not None
    assert (steady.stderr, steady.difference, steady.n) == (0.0, 0.0, 2)
    assert noise_floor(np.array([[1.0, np.nan], [np.nan, np.nan]])) is None
    assert noise_floor(np.empty((0, 3))) is None


@pytest.mark.long
def test_two_runs_of_a_model_differ_by_less_than_the_floor_in_95_of_100_pairs() -> None:
    rng = np.random.default_rng(6)
    within = []
    for _ in range(300):
        easy = rng.beta(0.7, 0.5, 150)[:, np.newaxis]
        floor = noise_floor((rng.random((150, 3)) < easy).astype(float))
        assert floor is not None
        first, second = (rng.random((2, 30, 150, 1)) < easy).mean(axis=(2, 3))
        within.append((np.abs(first - second) <= floor.difference).mean())
    assert np.mean(within) == pytest.approx(0.95, abs=0.015)
