import math
from dataclasses import replace

import pytest

from eval_dagster.errors import DataError
from eval_dagster.metrics.base import LoglikelihoodMetric
from eval_dagster.metrics.explanations import explained
from eval_dagster.metrics.loglikelihood import (
    AccuracyBytesLoglikelihood,
    AccuracyLoglikelihood,
    AccuracyNormLoglikelihood,
    AccuracyPMILoglikelihood,
    AccuracyTokensLoglikelihood,
)
from eval_dagster.records import Loglikelihood


def response(values: list[float], gold: list[int], choices: list[str]) -> Loglikelihood:
    return Loglikelihood(loglikelihoods=values, gold_indices=gold, choices=choices)


def test_the_most_probable_choice_counts() -> None:
    assert AccuracyLoglikelihood().calculate(response([-3.0, -1.0], [1], [" a", " b"])) == 1.0
    assert AccuracyLoglikelihood().calculate(response([-3.0, -1.0], [0], [" a", " b"])) == 0.0


@pytest.mark.parametrize("gold", [0, 1])
def test_a_tie_counts_a_part_wherever_the_correct_choice_stands(gold: int) -> None:
    assert AccuracyLoglikelihood().calculate(response([-1.0, -1.0], [gold], [" a", " b"])) == 0.5
    assert AccuracyLoglikelihood().calculate(response([-1.0, -1.0, -2.0, -1.0], [gold], [" a", " b", " c", " d"])) == pytest.approx(1 / 3)
    assert AccuracyLoglikelihood().calculate(response([-2.0, -2.0, -1.0], [gold], [" a", " b", " c"])) == 0.0


def test_values_that_differ_by_rounding_are_no_tie() -> None:
    assert AccuracyLoglikelihood().calculate(response([-1.0, math.nextafter(-1.0, -2)], [1], [" a", " b"])) == 0.0


def test_a_tie_is_one_of_the_compared_values() -> None:
    """Per character, -2 / 1 and -4 / 2 are equal; the sums are not."""
    answer = replace(
        response([-2.0, -4.0], [1], [" a", " ab"]), token_loglikelihoods=[[-2.0], [-2.0, -2.0]], unconditioned_loglikelihoods=[-1.0, -3.0]
    )
    assert AccuracyLoglikelihood().calculate(answer) == 0.0
    for metric in (AccuracyNormLoglikelihood, AccuracyBytesLoglikelihood, AccuracyTokensLoglikelihood, AccuracyPMILoglikelihood):
        assert metric().calculate(answer) == 0.5


def test_a_tie_is_counted() -> None:
    with explained() as words:
        AccuracyLoglikelihood().calculate(response([-1.0, -2.0, -1.0], [1], [" a", " b", " c"]))
        AccuracyLoglikelihood().calculate(response([-1.0, -2.0, -1.5], [1], [" a", " b", " c"]))
    assert words == {None: {"tie": ["2 choices have the highest value: 0, 2 (counted from 0)"]}}


def test_defect_3_duplicate_choices_are_told_apart() -> None:
    # The first " a" is the highest; where the second one alone is correct, a dict by text could not tell.
    assert AccuracyLoglikelihood().calculate(response([-5.0, -1.0, -2.0], [1], [" x", " a", " a"])) == 1.0
    assert AccuracyLoglikelihood().calculate(response([-5.0, -1.0, -2.0], [2], [" x", " a", " a"])) == 0.0
    assert AccuracyLoglikelihood().calculate(response([-5.0, -1.0, -1.0], [1, 2], [" x", " a", " a"])) == 1.0


def test_long_choices_are_not_at_a_loss() -> None:
    # Per character: -4 / 2 = -2 against -5 / 3 = -1.67.
    assert AccuracyLoglikelihood().calculate(response([-4.0, -5.0], [1], [" ab", " abc"])) == 0.0
    assert AccuracyNormLoglikelihood().calculate(response([-4.0, -5.0], [1], [" ab", " abc"])) == 1.0


def test_the_leading_space_is_not_counted_as_a_character() -> None:
    # -3 / 1 = -3 against -4.6 / 2 = -2.3: the second wins; had the space counted, the first would: -3 / 2 = -1.5 against -4.6 / 3 = -1.53.
    assert AccuracyNormLoglikelihood().calculate(response([-3.0, -4.6], [1], [" a", " ab"])) == 1.0
    assert AccuracyNormLoglikelihood().calculate(response([-3.0, -4.6], [0], ["xa", "xab"])) == 1.0


def test_bytes_count_where_characters_would_not() -> None:
    # Per character: -3 / 1 = -3 against -4 / 2 = -2; per byte (é has two): -3 / 2 = -1.5 against -4 / 2 = -2.
    answer = response([-3.0, -4.0], [0], [" é", " ab"])
    assert AccuracyNormLoglikelihood().calculate(answer) == 0.0
    assert AccuracyBytesLoglikelihood().calculate(answer) == 1.0


def test_the_leading_space_is_not_counted_as_a_byte() -> None:
    # As for characters: -3 / 1 = -3 against -4.6 / 2 = -2.3, but -3 / 2 = -1.5 against -4.6 / 3 = -1.53.
    assert AccuracyBytesLoglikelihood().calculate(response([-3.0, -4.6], [1], [" a", " ab"])) == 1.0


def test_defect_8_tokens_are_the_choice_s_own_and_no_padding() -> None:
    # Per own token: -2 / 1 = -2 against -6 / 4 = -1.5. Padded to the longest, both would be divided by 4: -0.5 against -1.5.
    answer = replace(response([-2.0, -6.0], [1], [" a", " b"]), token_loglikelihoods=[[-2.0], [-1.0, -2.0, -2.5, -0.5]])
    assert AccuracyTokensLoglikelihood().calculate(answer) == 1.0
    assert AccuracyLoglikelihood().calculate(answer) == AccuracyNormLoglikelihood().calculate(answer) == 0.0


def test_defect_9_pointwise_mutual_information_changes_a_decision() -> None:
    # -1 - -0.5 = -0.5 against -2 - -4 = 2: the second is rare by itself, the question makes it likely.
    answer = replace(response([-1.0, -2.0], [1], [" a", " b"]), unconditioned_loglikelihoods=[-0.5, -4.0])
    assert AccuracyLoglikelihood().calculate(answer) == 0.0
    assert AccuracyPMILoglikelihood().calculate(answer) == 1.0


def test_without_an_unconditioned_query_the_message_says_what_to_do() -> None:
    with pytest.raises(DataError, match=r"let the task return one .* from _get_unconditioned_query"):
        AccuracyPMILoglikelihood().calculate(response([-1.0, -2.0], [0], [" a", " b"]))


@pytest.mark.parametrize(
    ("unconditioned", "message"),
    [
        ([-1.0], "1 unconditioned log-probabilities for 2 choices"),
        ([math.nan, -1.0], "expected one number a choice, and a finite one"),
        ([-math.inf, -1.0], "expected one number a choice, and a finite one"),
    ],
)
def test_broken_unconditioned_values_raise(unconditioned: list[float], message: str) -> None:
    for choices in ([" a", " b"], []):
        answer = replace(response([-1.0, -2.0], [0], choices), unconditioned_loglikelihoods=unconditioned)
        with pytest.raises(DataError, match=message):
            AccuracyPMILoglikelihood().calculate(answer)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([], "cannot normalise by tokens: the response holds those of 0 choices; expected 2"),
        ([[-1.0]], "the response holds those of 1 choices; expected 2"),
        ([[-1.0], []], "a choice is empty"),
    ],
)
def test_missing_tokens_raise(tokens: list[list[float]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        AccuracyTokensLoglikelihood().calculate(replace(response([-1.0, -2.0], [0], [" a", " b"]), token_loglikelihoods=tokens))


@pytest.mark.parametrize("metric", [AccuracyNormLoglikelihood(), AccuracyBytesLoglikelihood()])
def test_an_empty_choice_cannot_be_normalised(metric: LoglikelihoodMetric) -> None:
    with pytest.raises(DataError, match="a choice is empty"):
        metric.calculate(response([-1.0, -2.0], [0], [" ", " b"]))
