"""Metrics of the probabilities of the choices: the softmax over their log-probabilities.

Definitions as in eval-framework. If they normalise by length, each log-probability is first divided by the characters of its
choice, the leading space included. Every metric here raises a `DataError` if a log-probability is missing or not finite, no choice
is marked as correct, or a choice to be normalised is empty.
"""

from typing import ClassVar

from eval_dagster.metrics.base import LoglikelihoodMetric
from eval_dagster.metrics.choices import choice_values, correct_share, gold_positions, per_length, probability_of
from eval_dagster.records import Loglikelihood


class ProbabilityMetric(LoglikelihoodMetric):
    """A metric of the choices' probabilities: p_i = exp(s_i) / sum_j exp(s_j), where s is the log-probability, normalised or not."""

    LENGTH_NORMALIZED: ClassVar[bool] = True
    """Whether s is the log-probability divided by the characters of the choice."""

    def softmax_values(self, response: Loglikelihood) -> list[float]:
        """The s of each choice."""
        values = choice_values(response)
        if not self.LENGTH_NORMALIZED:
            return values
        return per_length(values, [len(choice) for choice in response.choices], "characters", response)


class ConfidenceWeightedAccuracy(ProbabilityMetric):
    """The probability of the most probable choice if that is a correct one, else 0. Normalised by length; from 0 to 1.

    As accuracy, with the same share of a tie, but an answer that is right by a hair counts less than one that the model is sure of.
    """

    NAME = "confidence_weighted_accuracy"
    BOUNDS = (0.0, 1.0)

    def calculate(self, response: Loglikelihood) -> float:
        """Return the value."""
        values = self.softmax_values(response)
        share = correct_share(values, gold_positions(response))
        return share * probability_of(values, [values.index(max(values))])


class ProbabilityMass(ProbabilityMetric):
    """The sum of the probabilities of the correct choices, not normalised by length; from 0 to 1.

    The `MC2` of TruthfulQA (Lin et al. 2021, arXiv:2109.07958).
    """

    NAME = "probability_mass"
    BOUNDS = (0.0, 1.0)
    LENGTH_NORMALIZED = False

    def calculate(self, response: Loglikelihood) -> float:
        """Return the value."""
        return probability_of(self.softmax_values(response), gold_positions(response))


class ProbabilityMassNorm(ProbabilityMass):
    """The sum of the probabilities of the correct choices, normalised by length; from 0 to 1."""

    NAME = "probability_mass_norm"
    LENGTH_NORMALIZED = True
