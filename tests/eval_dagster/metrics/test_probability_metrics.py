from math import log

import pytest

from eval_dagster.metrics.loglikelihood import ConfidenceWeightedAccuracy, ProbabilityMass, ProbabilityMassNorm
from eval_dagster.records import Loglikelihood


def response(values: list[float], gold: list[int], choices: list[str]) -> Loglikelihood:
    return Loglikelihood(loglikelihoods=values, gold_indices=gold, choices=choices)


def test_probability_mass_is_the_part_of_the_correct_choices() -> None:
    # The probabilities of the texts sum to 0.4, those of the correct ones to 0.2 = 0.4 / 2.
    answer = response([log(0.1), log(0.2), log(0.1)], [0, 2], [" a", " long choice", " c"])
    assert ProbabilityMass().calculate(answer) == pytest.approx(0.5)


def test_probability_mass_norm_divides_by_all_characters() -> None:
    # " a" has 2 characters, " abc" 4: per character ln 0.6 and ln 0.2, so 0.6 / 0.8 = 0.75 and 0.2 / 0.8 = 0.25.
    answer = response([2 * log(0.6), 4 * log(0.2)], [1], [" a", " abc"])
    assert ProbabilityMassNorm().calculate(answer) == pytest.approx(0.25)
    # Not normalised: 0.36 and 0.0016 of 0.3616 together.
    assert ProbabilityMass().calculate(answer) == pytest.approx(0.0016 / 0.3616)


def test_characters_are_no_bytes() -> None:
    # " é" has 2 characters and 3 bytes; per character ln 0.6 and ln 0.2.
    assert ProbabilityMassNorm().calculate(response([2 * log(0.6), 2 * log(0.2)], [0], [" é", " a"])) == pytest.approx(0.75)


def test_defect_3_duplicate_choices_keep_their_mass() -> None:
    # Three choices of probability 0.2, two with the same text; two of three are correct. By text there would be two, one of them correct.
    answer = response([log(0.2)] * 3, [0, 1], ["a", "a", "b"])
    assert ProbabilityMass().calculate(answer) == pytest.approx(2 / 3)
    assert ProbabilityMassNorm().calculate(answer) == pytest.approx(2 / 3)
    # Each has the probability 1 / 3, and two of the three equal ones are correct.
    assert ConfidenceWeightedAccuracy().calculate(answer) == pytest.approx(2 / 3 * 1 / 3)
    # Only the second of the two is correct, by whatever the task says.
    assert ProbabilityMass().calculate(response([log(0.1), log(0.3), log(0.6)], [1], ["a", "a", "b"])) == pytest.approx(0.3)


def test_confidence_counts_where_the_best_choice_is_correct() -> None:
    # As above: 0.75 and 0.25 per character.
    values, choices = [2 * log(0.6), 4 * log(0.2)], [" a", " abc"]
    assert ConfidenceWeightedAccuracy().calculate(response(values, [0], choices)) == pytest.approx(0.75)
    assert ConfidenceWeightedAccuracy().calculate(response(values, [1], choices)) == 0
    # Of several correct ones the best alone counts: 0.5, 0.3 and 0.2.
    three = response([log(0.5), log(0.3), log(0.2)], [0, 1], ["a", "b", "c"])
    assert ConfidenceWeightedAccuracy().calculate(three) == pytest.approx(0.5)


def test_the_most_confident_choice_is_found_after_normalisation() -> None:
    # -4 against -5 in all, but per character -4 / 2 = -2 against -5 / 5 = -1: 1 / (1 + exp(-1)) = 0.7311 for the second.
    assert ConfidenceWeightedAccuracy().calculate(response([-4.0, -5.0], [1], [" a", " abcd"])) == pytest.approx(0.7310586)


def test_very_improbable_choices_do_not_overflow_or_vanish() -> None:
    # exp(-5000) is 0 as a float; the two differ by ln 3, so 3 / 4 and 1 / 4.
    assert ProbabilityMass().calculate(response([-5000.0, -5000.0 - log(3)], [0], ["a", "b"])) == pytest.approx(0.75)
