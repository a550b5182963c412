from math import log

import pytest

from eval_dagster.errors import DataError, TaskDefinitionError
from eval_dagster.metrics.loglikelihood import AbstentionMetric, DistributionalCorrectnessScore, TernaryScore
from eval_dagster.records import Loglikelihood

UNKNOWN = " I don't know."  # 14 characters


def response(values: list[float], gold: list[int], choices: list[str]) -> Loglikelihood:
    return Loglikelihood(loglikelihoods=values, gold_indices=gold, choices=choices)


class HarshTernaryScore(TernaryScore):
    NAME = "harsh_ternary_score"
    LOAD_CORRECT = 2.0
    LOAD_WRONG = 3.0


class HarshDistributionalCorrectnessScore(DistributionalCorrectnessScore):
    NAME = "harsh_distributional_correctness_score"
    LOAD_CORRECT = 2.0
    LOAD_WRONG = 3.0


@pytest.mark.parametrize(
    ("probabilities", "default", "harsh"),
    [
        ((0.5, 0.2, 0.3), 1, 2),
        ((0.2, 0.5, 0.3), -1, -3),
        ((0.2, 0.3, 0.5), 0, 0),
        # Of equals the mean counts, in whichever order.
        ((0.4, 0.2, 0.4), 1 / 2, 1),
        ((0.4, 0.4, 0.2), 0, -1 / 2),
        ((0.2, 0.4, 0.4), -1 / 2, -3 / 2),
    ],
)
def test_ternary_score(probabilities: tuple[float, ...], default: float, harsh: float) -> None:
    answer = response([log(value) for value in probabilities], [0], ["a", "b", "?"])
    assert TernaryScore().calculate(answer) == default
    assert HarshTernaryScore().calculate(answer) == harsh


def test_ternary_score_is_normalised_by_all_characters() -> None:
    # In all -2 is the highest; by characters -2 / 2 = -1 against -7 / 14 = -0.5 for the last.
    assert TernaryScore().calculate(response([-2.0, -3.0, -7.0], [0], [" a", " b", UNKNOWN])) == 0
    # The leading space counts: -3 / 2 = -1.5 against -6.2 / 4 = -1.55; without it -3 against -2.07.
    assert TernaryScore().calculate(response([-3.0, -6.2, -90.0], [0], [" a", " abc", " ?"])) == 1


def test_defect_4_not_to_know_has_its_real_probability() -> None:
    # Per character ln 0.5, ln 0.2 and ln 0.3: (0.5 - 0.2) * (1 - 0.3) = 0.21; were the last one's probability 0, it would be 0.3.
    answer = response([2 * log(0.5), 2 * log(0.2), 14 * log(0.3)], [0], [" a", " b", UNKNOWN])
    assert DistributionalCorrectnessScore().calculate(answer) == pytest.approx(0.21)


def test_the_loads_weigh_right_and_wrong() -> None:
    # (2 * 0.5 - 3 * 0.2) * (1 - 0.3) = 0.4 * 0.7.
    answer = response([log(0.5), log(0.2), log(0.3)], [0], ["a", "b", "?"])
    assert HarshDistributionalCorrectnessScore().calculate(answer) == pytest.approx(0.28)


def test_several_correct_and_several_wrong_choices_are_summed() -> None:
    # Correct 0.1 + 0.2, wrong 0.3 + 0.2, unknown 0.2: (0.3 - 0.5) * 0.8 = -0.16.
    answer = response([log(0.1), log(0.3), log(0.2), log(0.2), log(0.2)], [0, 2], ["a", "b", "c", "d", "?"])
    assert DistributionalCorrectnessScore().calculate(answer) == pytest.approx(-0.16)


def test_to_be_sure_not_to_know_is_worth_nothing_and_to_be_sure_of_an_answer_all() -> None:
    assert DistributionalCorrectnessScore().calculate(response([-900.0, -900.0, 0.0], [0], ["a", "b", "?"])) == 0
    assert DistributionalCorrectnessScore().calculate(response([0.0, -900.0, -900.0], [0], ["a", "b", "?"])) == 1
    assert DistributionalCorrectnessScore().calculate(response([-900.0, 0.0, -900.0], [0], ["a", "b", "?"])) == -1


def test_defect_3_the_last_choice_is_known_by_its_position() -> None:
    # The first choice reads like the last one, and yet it is an answer, and here the correct one: (0.5 - 0.2) * (1 - 0.3).
    twins = response([log(0.5), log(0.2), log(0.3)], [0], ["?", "b", "?"])
    assert DistributionalCorrectnessScore().calculate(twins) == pytest.approx(0.21)
    assert TernaryScore().calculate(twins) == 1
    # And here it is wrong, as is the second.
    assert TernaryScore().calculate(response([log(0.5), log(0.2), log(0.3)], [1], ["?", "b", "?"])) == -1


@pytest.mark.parametrize("metric", [TernaryScore(), DistributionalCorrectnessScore()])
def test_the_last_choice_must_not_be_an_answer(metric: AbstentionMetric) -> None:
    with pytest.raises(DataError, match=r"the last choice is marked as correct .* expected it to be \"I don't know\""):
        metric.calculate(response([-1.0, -2.0], [1], [" a", " b"]))
    with pytest.raises(DataError, match="the last choice is marked as correct"):
        metric.calculate(response([-1.0, -2.0, -3.0], [0, 2], [" a", " b", " c"]))
    with pytest.raises(DataError, match="there is only one choice"):
        metric.calculate(response([-1.0], [0], [" a"]))


@pytest.mark.parametrize("loads", [{"LOAD_WRONG": -1.0}, {"LOAD_CORRECT": -1.0}, {"LOAD_WRONG": float("nan")}])
def test_negative_loads_are_refused(loads: dict[str, float]) -> None:
    with pytest.raises(TaskDefinitionError, match=r"the metric Mine has LOAD_CORRECT .* expected at least 0 of both"):
        type("Mine", (TernaryScore,), {"NAME": "mine", **loads})


def test_a_load_may_be_nothing() -> None:
    class Mild(TernaryScore):
        NAME = "mild_ternary_score"
        LOAD_WRONG = 0.0

    class Stern(TernaryScore):
        NAME = "stern_ternary_score"
        LOAD_CORRECT = 0.0

    answer = response([log(0.5), log(0.2), log(0.3)], [0], ["a", "b", "?"])
    assert (Mild().calculate(answer), Stern().calculate(answer)) == (1, 0)
    wrong = response([log(0.5), log(0.2), log(0.3)], [1], ["a", "b", "?"])
    assert (Mild().calculate(wrong), Stern().calculate(wrong)) == (0, -1)
    assert (Mild.BEST, Stern.BEST) == (1, 0)
