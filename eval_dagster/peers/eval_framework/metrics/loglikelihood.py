"""Metrics of the log-probabilities of choices. Choices with the same text are one choice, as in eval-framework."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from eval_dagster.errors import DataError
from eval_dagster.metrics.base import Error, MetricResult, RowMetric
from eval_dagster.metrics.loglikelihood import count_tie
from eval_dagster.peers.eval_framework.metrics.base import BaseMetric, result
from eval_dagster.peers.eval_framework.responses import Loglikelihood, foreign_view


def _per_character(loglikelihoods: Mapping[str, float]) -> dict[str, float]:
    return {text: value / (len(text) or 1) for text, value in loglikelihoods.items()}


def _best(loglikelihoods: Mapping[str, float]) -> str:
    """The most probable choice; of equal ones the first, as in eval-framework. A tie is counted."""
    best = max(loglikelihoods.values())
    count_tie([position for position, value in enumerate(loglikelihoods.values()) if value == best])
    return max(loglikelihoods, key=lambda text: loglikelihoods[text])


class AccuracyLoglikelihood(BaseMetric[Loglikelihood]):
    """Whether the most probable choice is a gold answer."""

    NAME = "Accuracy Loglikelihood"
    IS_PROPORTION = True
    BEST = 1.0
    COMPARES_TEXTS = True

    def calculate(self, response: Loglikelihood) -> list[MetricResult]:
        """Return 1 or 0."""
        return [result(self, _best(self._compared(response)) in response.ground_truth_list)]

    def _compared(self, response: Loglikelihood) -> Mapping[str, float]:
        return response.loglikelihoods  # type: ignore[return-value]


class AccuracyNormLoglikelihood(AccuracyLoglikelihood):
    """Whether the choice with the highest log-probability per character is a gold answer."""

    NAME = "Accuracy Normalized Loglikelihood"

    def _compared(self, response: Loglikelihood) -> Mapping[str, float]:
        return _per_character(response.loglikelihoods)  # type: ignore[arg-type]


class PartialEvalAccuracy(BaseMetric[Loglikelihood], RowMetric[Loglikelihood]):
    """Whether the ending of a sentence is more probable after the correct one of two beginnings, each a question of the row."""

    NAME = "Partial Evaluation Accuracy"
    IS_PROPORTION = True

    def calculate_row(self, responses: Sequence[Loglikelihood]) -> list[MetricResult]:
        """Return 1 or 0; of two equal endings the first one counts as the more probable.

        Raises:
            DataError: There are not two questions, or not exactly one of them is marked as correct by the gold answer "True".
        """
        views = [foreign_view(response) for response in responses]
        truths = [view.ground_truth for view in views]
        if sorted(map(str, truths)) != ["False", "True"]:
            raise DataError(f"the gold answers of the questions about a row are {truths}; expected 'True' and 'False' for {self.NAME}")
        best = max(views, key=lambda view: next(iter(view.loglikelihoods.values())))
        return [result(self, best.ground_truth == "True")]


class BitsPerByteLoglikelihood(BaseMetric[Loglikelihood]):
    """The negative log-probability in bits per UTF-8 byte of the gold answer; of several, the first that is a choice."""

    NAME = "BitsPerByte"
    HIGHER_IS_BETTER = False
    BEST = 0.0
    COMPARES_TEXTS = True
    BOUNDS = (0.0, math.inf)

    def calculate(self, response: Loglikelihood) -> list[MetricResult]:
        """Return the value, or the reason for a missing one."""
        scored: Mapping[str, float] = response.loglikelihoods  # type: ignore[assignment]
        gold = next((text for text in response.ground_truth_list if text in scored), None)
        if not gold:
            reason = "no gold answer is among the choices" if gold is None else "the gold answer has no bytes"
            return [result(self, None, error=Error(error_class="ValueError", message=reason))]
        return [result(self, -scored[gold] / (len(gold.encode()) * math.log(2)))]


class BaseLoglikelihoodMetric(BaseMetric[Loglikelihood]):
    """The base of metrics that compare probabilities. Gold answers are compared in lower case, without outer white space."""

    def __init__(self, *, len_normalised: bool = True) -> None:
        self.len_normalised = len_normalised

    def _normalise_text(self, text: str) -> str:
        return text.strip().lower()

    def _length_normalise_loglikelihoods(self, loglikelihoods: Mapping[str, float]) -> dict[str, float]:
        return _per_character(loglikelihoods)

    def _compute_probabilities(self, loglikelihoods: Mapping[str, float]) -> tuple[Mapping[str, float], dict[str, float]]:
        if self.len_normalised:
            loglikelihoods = self._length_normalise_loglikelihoods(loglikelihoods)
        return loglikelihoods, self._softmax(loglikelihoods)

    def _gather_ground_truths(self, response: Loglikelihood) -> set[str]:
        return {self._normalise_text(text) for text in response.ground_truth_list}

    def _softmax(self, log_probs: Mapping[str, float]) -> dict[str, float]:
        highest = max(log_probs.values(), default=0.0)
        weights = {text: math.exp(value - highest) for text, value in log_probs.items()}
        total = sum(weights.values())
        return {text: weight / total for text, weight in weights.items()}


class ConfidenceWeightedAccuracy(BaseLoglikelihoodMetric):
    """The probability of the most probable choice if it is a gold answer, else 0."""

    NAME = "Confidence-weighted Accuracy"
    BEST = 1.0
    BOUNDS = (0.0, 1.0)

    def calculate(self, response: Loglikelihood) -> list[MetricResult]:
        """Return the value."""
        compared, probabilities = self._compute_probabilities(response.loglikelihoods)  # type: ignore[arg-type]
        best = _best(compared)
        is_gold = self._normalise_text(best) in self._gather_ground_truths(response)
        return [result(self, probabilities[best] if is_gold else 0.0)]


class _AbstainingMetric(BaseLoglikelihoodMetric):
    """A metric of tasks whose last choice is "I don't know"."""

    BOUNDS = (-1.0, 1.0)

    def __init__(self, *, lc: float = 1.0, lw: float = 1.0, len_normalised: bool = True) -> None:
        """Take the weights of right and wrong answers.

        Raises:
            ValueError: A weight is negative.
        """
        super().__init__(len_normalised=len_normalised)
        self._lc, self._lw = float(lc), float(lw)
        if self._lc < 0 or self._lw < 0:
            raise ValueError(f"the weights are lc={lc} and lw={lw}; expected 0 or more")

    def _abstention(self, response: Loglikelihood) -> str:
        return self._normalise_text(list(response.loglikelihoods)[-1])  # type: ignore[arg-type]


class TernaryScore(_AbstainingMetric):
    """`lc` for a gold answer, 0 for the last choice, `-lw` for another one (Kalai et al. 2025, arXiv:2509.04664)."""

    NAME = "Ternary Score"
    BEST = 1.0

    def calculate(self, response: Loglikelihood) -> list[MetricResult]:
        """Return the value."""
        compared, _ = self._compute_probabilities(response.loglikelihoods)  # type: ignore[arg-type]
        best = self._normalise_text(_best(compared))
        if best in self._gather_ground_truths(response):
            return [result(self, self._lc)]
        return [result(self, 0.0 if best == self._abstention(response) else -self._lw)]


class DistributionalCorrectnessScore(_AbstainingMetric):
    """The probability of gold answers less wrong answers, times the probability of not abstaining (Burns 2025, arXiv:2510.04302)."""

    NAME = "Distributional Correctness Score"
    BEST = 1.0

    def __init__(self, *, lc: float = 1.0, lw: float = 1.0, len_normalised: bool = True) -> None:
        """Take the weights of right and wrong answers.

        Raises:
            ValueError: A weight is negative, or `lw` is above `lc`.
        """
        super().__init__(lc=lc, lw=lw, len_normalised=len_normalised)
        if self._lw > self._lc:
            raise ValueError(f"the weights are lc={lc} and lw={lw}; expected lc to be the greater one")

    def calculate(self, response: Loglikelihood) -> list[MetricResult]:
        """Return the value."""
        _, probabilities = self._compute_probabilities(response.loglikelihoods)  # type: ignore[arg-type]
        truths, abstention = self._gather_ground_truths(response), self._abstention(response)
        by_kind = {"right": 0.0, "abstained": 0.0, "wrong": 0.0}
        for text, probability in probabilities.items():
            folded = self._normalise_text(text)
            by_kind["right" if folded in truths else "abstained" if folded == abstention else "wrong"] += probability
        return [result(self, (self._lc * by_kind["right"] - self._lw * by_kind["wrong"]) * (1.0 - by_kind["abstained"]))]


class ProbabilityMass(BaseMetric[Loglikelihood]):
    """The gold answers' share of the probability of all choices. Gold answers are one text or a list of texts."""

    NAME = "Probability Mass"
    BEST = 1.0
    COMPARES_TEXTS = True
    BOUNDS = (0.0, 1.0)

    def calculate(self, response: Loglikelihood) -> list[MetricResult]:
        """Return the value."""
        truths = response.ground_truth_list
        compared = self._compared(response)
        weights = np.exp(list(compared.values()))
        is_gold = [text in truths for text in compared]
        return [result(self, float(np.sum((weights / np.sum(weights))[is_gold])))]

    def _compared(self, response: Loglikelihood) -> Mapping[str, float]:
        return response.loglikelihoods  # type: ignore[return-value]


class ProbabilityMassNorm(ProbabilityMass):
    """The same with log-probabilities per character."""

    NAME = "Probability Mass Normalized"

    def _compared(self, response: Loglikelihood) -> Mapping[str, float]:
        return _per_character(response.loglikelihoods)  # type: ignore[arg-type]
