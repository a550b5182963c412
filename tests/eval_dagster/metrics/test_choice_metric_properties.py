"""What holds for every metric of choices, whatever the numbers and texts."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_dagster.errors import DataError
from eval_dagster.metrics.base import LoglikelihoodMetric
from eval_dagster.metrics.loglikelihood import (
    AbstentionMetric,
    AccuracyBytesLoglikelihood,
    AccuracyLoglikelihood,
    AccuracyNormLoglikelihood,
    AccuracyPMILoglikelihood,
    AccuracyTokensLoglikelihood,
    ConfidenceWeightedAccuracy,
    DistributionalCorrectnessScore,
    ProbabilityMass,
    ProbabilityMassNorm,
    TernaryScore,
)
from eval_dagster.metrics.perplexity import BitsPerByteLoglikelihood
from eval_dagster.records import Loglikelihood

IN_BOUNDS: dict[type[LoglikelihoodMetric], Callable[[float], bool]] = {
    AccuracyLoglikelihood: lambda value: 0 <= value <= 1,
    AccuracyNormLoglikelihood: lambda value: 0 <= value <= 1,
    AccuracyBytesLoglikelihood: lambda value: 0 <= value <= 1,
    AccuracyTokensLoglikelihood: lambda value: 0 <= value <= 1,
    AccuracyPMILoglikelihood: lambda value: 0 <= value <= 1,
    ConfidenceWeightedAccuracy: lambda value: 0 <= value <= 1,
    ProbabilityMass: lambda value: 0 <= value <= 1,
    ProbabilityMassNorm: lambda value: 0 <= value <= 1,
    TernaryScore: lambda value: -1 <= value <= 1,
    DistributionalCorrectnessScore: lambda value: -1 <= value <= 1,
    BitsPerByteLoglikelihood: lambda value: value >= 0,
}
BY_BYTES = (AccuracyBytesLoglikelihood, BitsPerByteLoglikelihood)
every_metric = pytest.mark.parametrize("metric", IN_BOUNDS)

# Roots of different primes tie under none of the normalisations, so that no decision hangs on the order of the choices.
ROOTS = [-math.sqrt(number) for number in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71)]
NO_TIES = st.permutations(ROOTS)
ANY_VALUES = st.lists(st.floats(-1e6, 0), min_size=len(ROOTS), max_size=len(ROOTS))


@st.composite
def responses(draw: st.DrawFn, values: st.SearchStrategy[list[float]] = NO_TIES) -> Loglikelihood:
    """Two to six choices, a correct one among all but the last."""
    texts = draw(st.lists(st.text(min_size=1, max_size=8), min_size=2, max_size=6))
    count, numbers = len(texts), draw(values)
    return Loglikelihood(
        loglikelihoods=numbers[:count],
        choices=[f" {text}" for text in texts],
        gold_indices=draw(st.lists(st.integers(0, count - 2), min_size=1, unique=True)),
        token_loglikelihoods=[[-1.0] * draw(st.integers(1, 5)) for _ in texts],
        unconditioned_loglikelihoods=numbers[count : 2 * count],
    )


@pytest.mark.long
@every_metric
@given(response=responses(ANY_VALUES))
def test_values_stay_in_their_bounds(metric: type[LoglikelihoodMetric], response: Loglikelihood) -> None:
    assert IN_BOUNDS[metric](calculate(metric, response))


@pytest.mark.long
@every_metric
@given(response=responses(), data=st.data())
def test_the_order_of_the_choices_does_not_matter(metric: type[LoglikelihoodMetric], response: Loglikelihood, data: st.DataObject) -> None:
    count = len(response.choices)
    fixed = [count - 1] if issubclass(metric, AbstentionMetric) else []
    order = data.draw(st.permutations(range(count - len(fixed)))) + fixed
    assert calculate(metric, response) == calculate(metric, permuted(response, order))


@pytest.mark.long
@every_metric
@given(response=responses(), data=st.data())
def test_the_order_of_equal_choices_does_not_matter(
    metric: type[LoglikelihoodMetric], response: Loglikelihood, data: st.DataObject
) -> None:
    """Choices of one length with one log-probability: wherever the correct ones stand, the value is the same."""
    count = len(response.choices)
    equal = replace(
        response,
        loglikelihoods=[-1.0] * count,
        choices=[" x"] * count,
        token_loglikelihoods=[[-1.0]] * count,
        unconditioned_loglikelihoods=[-2.0] * count,
    )
    gold = data.draw(st.permutations(range(count - 1)))[: len(equal.gold_indices)]
    assert calculate(metric, replace(equal, gold_indices=gold)) == pytest.approx(calculate(metric, equal))


@every_metric
@given(response=responses())
def test_defect_3_equal_texts_are_as_good_as_different_ones(metric: type[LoglikelihoodMetric], response: Loglikelihood) -> None:
    """Only the lengths of the texts count: with all texts alike but for their lengths, many are the same."""
    lengths = [len(choice[1:].encode() if metric in BY_BYTES else choice[1:]) for choice in response.choices]
    twins = replace(response, choices=[f" {'x' * length}" for length in lengths])
    assert calculate(metric, twins) == calculate(metric, response)


@pytest.mark.long
@pytest.mark.parametrize("metric", [AccuracyLoglikelihood, AccuracyNormLoglikelihood, TernaryScore, BitsPerByteLoglikelihood])
@given(response=responses(), data=st.data())
def test_defect_3_a_repeated_choice_changes_no_decision(
    metric: type[LoglikelihoodMetric], response: Loglikelihood, data: st.DataObject
) -> None:
    """A second copy of a choice before it, correct if it is, leaves the best choice what it was."""
    copied = data.draw(st.integers(0, len(response.choices) - 2))
    order = [copied, *range(len(response.choices))]
    assert calculate(metric, permuted(response, order)) == calculate(metric, response)


@given(response=responses())
def test_defect_3_a_repeated_wrong_choice_takes_its_part_of_the_mass(response: Loglikelihood) -> None:
    last = len(response.choices) - 1
    mass = calculate(ProbabilityMass, response)
    wrong = calculate(ProbabilityMass, replace(response, gold_indices=[last]))
    # With w of all mass a second time, all masses are divided by 1 + w.
    repeated = calculate(ProbabilityMass, permuted(response, [*range(last + 1), last]))
    assert repeated == pytest.approx(mass / (1 + wrong))


@every_metric
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loglikelihoods": []}, "expected one number a choice"),
        ({"loglikelihoods": [math.nan, -1.0]}, "expected one number a choice, and a finite one"),
        ({"loglikelihoods": [-1.0, -math.inf]}, "expected one number a choice, and a finite one"),
        ({"loglikelihoods": [math.inf, -1.0]}, "expected one number a choice, and a finite one"),
        ({"choices": [" a", " b", " c"]}, "2 log-probabilities for 3 choices"),
        ({"gold_indices": []}, "no choice is marked as correct"),
        ({"gold_indices": [2]}, r"the gold indices \[2\] do not fit 2 choices; expected 0 to 1"),
        ({"gold_indices": [-1]}, r"the gold indices \[-1\] do not fit 2 choices"),
    ],
)
def test_what_cannot_be_computed_raises(metric: type[LoglikelihoodMetric], change: dict[str, Any], message: str) -> None:
    sound = Loglikelihood(
        loglikelihoods=[-1.0, -2.0],
        choices=[" a", " b"],
        gold_indices=[0],
        token_loglikelihoods=[[-1.0], [-2.0]],
        unconditioned_loglikelihoods=[-1.0, -2.0],
    )
    assert IN_BOUNDS[metric](calculate(metric, sound))
    with pytest.raises(DataError, match=message):
        calculate(metric, replace(sound, **change))


def calculate(metric: type[LoglikelihoodMetric], response: Loglikelihood) -> float:
    value = metric().calculate(response)
    assert isinstance(value, float)
    return value


def permuted(response: Loglikelihood, order: list[int]) -> Loglikelihood:
    """The response whose choices are those at the given positions; a choice is correct if the one it was made of is."""
    unconditioned = response.unconditioned_loglikelihoods
    assert unconditioned is not None
    return Loglikelihood(
        loglikelihoods=[response.loglikelihoods[index] for index in order],
        choices=[response.choices[index] for index in order],
        gold_indices=[position for position, index in enumerate(order) if index in response.gold_indices],
        token_loglikelihoods=[response.token_loglikelihoods[index] for index in order],
        unconditioned_loglikelihoods=[unconditioned[index] for index in order],
    )
