"""Functions for metrics of choices: checked values, normalisation by length, the highest value and its ties, probabilities.

All lists are in the order of the choices, so that choices with the same text stay separate.
"""

import math
from collections.abc import Collection, Sequence

from eval_dagster.errors import DataError
from eval_dagster.metrics.explanations import explain
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


def highest(values: Sequence[float]) -> list[int]:
    """Positions of the highest value. If there are several, the sample is counted as a tie.

    Values tie if they are exactly equal. A tolerance would take answers for equal between which a model does decide, and a score would
    depend on a number that nobody chose. Log-probabilities that differ by rounding alone have an order that no position decides.
    """
    best = max(values)
    positions = [index for index, value in enumerate(values) if value == best]
    count_tie(positions)
    return positions


def correct_share(values: Sequence[float], gold: Collection[int]) -> float:
    """The probability that a choice with the highest value is a correct one: 1 or 0, and of k equal choices the correct ones / k.

    Of one correct choice among k equal ones, that is 1/k: as often as a draw among them hits it. The first one would be right wherever a
    benchmark puts the correct choice first, for a model that knows nothing.
    """
    positions = highest(values)
    return sum(position in gold for position in positions) / len(positions)


def count_tie(positions: Collection[int]) -> None:
    """Count the sample whose score is being calculated as a tie, if there are several positions."""
    if len(positions) > 1:
        explain("tie", f"{len(positions)} choices have the highest value: {', '.join(map(str, sorted(positions)))} (counted from 0)")


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
