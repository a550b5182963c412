"""Metrics of questions whose last choice is "I don't know", so that a wrong answer can cost more than no answer.

The last choice is recognised by its position, whatever its text. The choices' log-probabilities are normalised by length, as in
eval-framework: divided by the characters of the choice, the leading space included. Every metric here raises a `DataError` if the
last choice is the only one or a correct one, a log-probability is missing or not finite, no choice is marked as correct, or a choice is
empty.
"""

from typing import Any, ClassVar

from eval_dagster.errors import DataError, TaskDefinitionError
from eval_dagster.metrics.choices import gold_positions, highest, probability_of
from eval_dagster.metrics.probability import ProbabilityMetric
from eval_dagster.records import Loglikelihood


class AbstentionMetric(ProbabilityMetric):
    """A metric of choices of which the last one is "I don't know"."""

    LOAD_CORRECT: ClassVar[float] = 1.0
    """The score of a correct answer; at least 0."""
    LOAD_WRONG: ClassVar[float] = 1.0
    """The cost of a wrong answer; at least 0. A subclass with a name of its own may set both."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Refuse negative loads, which would reverse the score. The loads are the bounds, and the load of a correct one is the best score.

        Raises:
            TaskDefinitionError: A load is negative.
        """
        super().__init_subclass__(**arguments)
        if not (cls.LOAD_CORRECT >= 0 and cls.LOAD_WRONG >= 0):
            raise TaskDefinitionError(
                f"the metric {cls.__name__} has LOAD_CORRECT {cls.LOAD_CORRECT} and LOAD_WRONG {cls.LOAD_WRONG}; expected at least 0 of "
                "both: what a wrong answer costs is subtracted"
            )
        if "BEST" not in vars(cls):
            cls.BEST = float(cls.LOAD_CORRECT)
        if "BOUNDS" not in vars(cls) and cls.LOAD_CORRECT + cls.LOAD_WRONG > 0:
            cls.BOUNDS = (-float(cls.LOAD_WRONG), float(cls.LOAD_CORRECT))


class TernaryScore(AbstentionMetric):
    """The score of the most probable choice: `LOAD_CORRECT` if correct, 0 for "I don't know", minus `LOAD_WRONG` if wrong.

    Kalai et al. 2025, arXiv:2509.04664. Equally probable choices count by the mean of their scores. Answers pay off from a
    confidence t on where `LOAD_WRONG` is t / (1 - t).
    """

    NAME = "ternary_score"

    def calculate(self, response: Loglikelihood) -> float:
        """Return the value: -1, 0 or 1 with the default loads, and a mean of these for a tie."""
        best = highest(self.softmax_values(response))
        gold, unknown = _gold_and_unknown(response)
        right = sum(position in gold for position in best)
        wrong = len(best) - right - (unknown in best)
        return (self.LOAD_CORRECT * right - self.LOAD_WRONG * wrong) / len(best)


class DistributionalCorrectnessScore(AbstentionMetric):
    """`(LOAD_CORRECT * p_correct - LOAD_WRONG * p_wrong) * (1 - p_unknown)`; from -1 to 1 with the default loads.

    Burns 2025, arXiv:2510.04302. p_correct is the sum over the correct choices, p_unknown the probability of the last one, p_wrong of
    all others. A model that is unsure between answers gets less than one that says so.
    """

    NAME = "distributional_correctness_score"

    def calculate(self, response: Loglikelihood) -> float:
        """Return the value."""
        values = self.softmax_values(response)
        gold, unknown = _gold_and_unknown(response)
        wrong = set(range(unknown)) - gold
        answered = self.LOAD_CORRECT * probability_of(values, gold) - self.LOAD_WRONG * probability_of(values, wrong)
        return answered * (1 - probability_of(values, [unknown]))


def _gold_and_unknown(response: Loglikelihood) -> tuple[frozenset[int], int]:
    """Positions of the correct choices and of "I don't know"."""
    unknown = len(response.loglikelihoods) - 1
    if unknown == 0:
        raise DataError(
            f'there is only one choice, {list(response.choices)}; expected answers and then, as the last choice, "I don\'t know"'
        )
    gold = gold_positions(response)
    if unknown in gold:
        raise DataError(
            f"the last choice is marked as correct (gold indices {sorted(gold)} of {unknown + 1} choices, {list(response.choices)}); "
            'expected it to be "I don\'t know": let _get_possible_completions add it at the end'
        )
    return gold, unknown
