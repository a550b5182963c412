"""Functions for metrics of choices: checked values, normalisation by length, the highest value, probabilities.

All lists are in the order of the choices, so that choices with the same text stay separate.
"""

import math
from collections.abc import Collection, Sequence

from eval_dagster.errors import DataError
from eval_dagster.records import Loglikelihood


def choice_values(response: Loglikelihood) -> list[float]:
    """The log-probability of each choice (natural logarithm).

    Raises:
        DataError: There is none, one is not a finite number, or they are not as many as the choices.
    """
    return _finite(response.loglikelihoods, "log-probabilities", response)


def unconditioned_values(response: Loglikelihood) -> list[float]:
    """The log-probability of each choice after the unconditioned prompt (natural logarithm).

    Raises:
        DataError: The response has none, one is not a finite number, or they are not as many as the choices.
    """
    if response.unconditioned_loglikelihoods is None:
        raise DataError(
            "the choices have no log-probabilities after an unconditioned prompt, by which pointwise mutual information normalises; "
            "let the task return one (`Answer:`, say) from _get_unconditioned_query, and score the choices anew"
        )
    return _finite(response.unconditioned_loglikelihoods, "unconditioned log-probabilities", response)


def gold_positions(response: Loglikelihood) -> frozenset[int]:
    """Positions of the correct choices.

    Raises:
        DataError: There is none, or one lies outside the choices.
    """
    count = len(response.loglikelihoods)
    if not response.gold_indices:
        raise DataError("no choice is marked as correct; expected at least one gold index")
    if not all(0 <= index < count for index in response.gold_indices):
        raise DataError(f"the gold indices {list(response.gold_indices)} do not fit {count} choices; expected 0 to {count - 1}")
    return frozenset(response.gold_indices)


def per_length(values: Sequence[float], lengths: Sequence[int], unit: str, response: Loglikelihood) -> list[float]:
    """Each value divided by the length of its choice.

    Raises:
        DataError: A choice has the length 0, or the lengths are not as many as the values.
    """
    if len(lengths) != len(values):
        raise DataError(f"cannot normalise by {unit}: the response holds those of {len(lengths)} choices; expected {len(values)}")
    if not all(lengths):
        raise DataError(f"cannot normalise by {unit}: a choice is empty in {list(response.choices)}")
    return [value / length for value, length in zip(values, lengths, strict=True)]


def first_highest(values: Sequence[float]) -> int:
    """Position of the highest value; of equal ones the first."""
    return max(range(len(values)), key=lambda index: values[index])


def probability_of(values: Sequence[float], positions: Collection[int]) -> float:
    """The total probability of some positions by the softmax of the values: from 0 to 1, and exactly equal for every order."""
    highest = max(values)  # subtracted so that no exponential overflows
    weights = [math.exp(value - highest) for value in values]
    return math.fsum(weights[position] for position in positions) / math.fsum(weights)


def _finite(values: Sequence[float], what: str, response: Loglikelihood) -> list[float]:
    if not values or not all(math.isfinite(value) for value in values):
        raise DataError(f"the choices have the {what} {list(values)}; expected one number a choice, and a finite one")
    count = len(response.choices or response.loglikelihoods)
    if len(values) != count:
        raise DataError(f"there are {len(values)} {what} for {count} choices; expected one number a choice")
    return list(values)
