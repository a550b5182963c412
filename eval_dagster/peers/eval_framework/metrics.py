"""Metrics in eval-framework's way: they see its `Completion` or `Loglikelihood` and return a list of results.

Choices with the same text are one choice, as in eval-framework.
"""

import ast
import inspect
import math
import textwrap
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ClassVar

import numpy as np

from eval_dagster.metrics import base
from eval_dagster.metrics.base import MetricResult, ResponseT
from eval_dagster.metrics.loglikelihood import count_tie
from eval_dagster.peers.eval_framework.responses import Completion, Loglikelihood, foreign_view


def _directions(metric: type) -> set[bool]:
    """Whether higher is better, as the results in a class's code say."""
    try:
        source = ast.parse(textwrap.dedent(inspect.getsource(metric)))
    except (OSError, TypeError, SyntaxError):
        return set()
    given = (each for call in ast.walk(source) for each in getattr(call, "keywords", ()) if each.arg == "higher_is_better")
    return {bool(each.value.value) for each in given if isinstance(each.value, ast.Constant)}


class BaseMetric(base.BaseMetric[ResponseT]):
    """A metric in eval-framework's way."""

    BEST: ClassVar[float | None] = None

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Give `calculate` the view that it expects, and take from its code whether higher is better."""
        super().__init_subclass__(**arguments)
        own = vars(cls)
        if "BEST" not in own and {"calculate", "__init__"} & own.keys():
            cls.BEST = None  # the base's value may be wrong for it
        if "calculate" in own:
            cls.calculate = _with_view(own["calculate"])  # type: ignore[method-assign]
            if "HIGHER_IS_BETTER" not in own and (found := _directions(cls)):
                cls.HIGHER_IS_BETTER = any(found)


def _with_view(calculate: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(calculate)
    def calculated(self: BaseMetric[Any], response: Any) -> Any:
        return calculate(self, foreign_view(response))

    return calculated


def _result(metric: BaseMetric[Any], value: float) -> list[MetricResult]:
    return [MetricResult(metric_name=metric.NAME, value=float(value), higher_is_better=metric.HIGHER_IS_BETTER)]


class AccuracyCompletion(BaseMetric[Completion]):
    """Whether the text is a gold answer."""

    NAME = "Accuracy Completion"
    IS_PROPORTION = True

    def calculate(self, response: Completion) -> list[MetricResult]:
        """Return 1 or 0."""
        return _result(self, response.completion in response.ground_truth_list)


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
        return _result(self, _best(self._compared(response)) in response.ground_truth_list)

    def _compared(self, response: Loglikelihood) -> Mapping[str, float]:
        return response.by_text()


class AccuracyNormLoglikelihood(AccuracyLoglikelihood):
    """Whether the choice with the highest log-probability per character is a gold answer."""

    NAME = "Accuracy Normalized Loglikelihood"

    def _compared(self, response: Loglikelihood) -> Mapping[str, float]:
        return _per_character(response.by_text())


class ProbabilityMass(BaseMetric[Loglikelihood]):
    """The gold answers' share of the probability of all choices. Gold answers are one text or a list of texts."""

    NAME = "Probability Mass"
    BEST = 1.0
    COMPARES_TEXTS = True
    BOUNDS = (0.0, 1.0)

    def calculate(self, response: Loglikelihood) -> list[MetricResult]:
        """Return the value."""
        truths, compared = response.ground_truth_list, self._compared(response)
        weights = np.exp(list(compared.values()))
        return _result(self, float(np.sum((weights / np.sum(weights))[[text in truths for text in compared]])))

    def _compared(self, response: Loglikelihood) -> Mapping[str, float]:
        return response.by_text()


class ProbabilityMassNorm(ProbabilityMass):
    """The same with log-probabilities per character."""

    NAME = "Probability Mass Normalized"

    def _compared(self, response: Loglikelihood) -> Mapping[str, float]:
        return _per_character(response.by_text())


class _ProbabilityMetric(BaseMetric[Loglikelihood]):
    """The base of metrics that compare probabilities. Gold answers are compared in lower case, without outer white space."""

    def __init__(self, *, len_normalised: bool = True) -> None:
        self.len_normalised = len_normalised

    def _compared(self, response: Loglikelihood) -> Mapping[str, float]:
        return _per_character(response.by_text()) if self.len_normalised else response.by_text()

    def _probabilities(self, response: Loglikelihood) -> dict[str, float]:
        compared = self._compared(response)
        highest = max(compared.values(), default=0.0)
        weights = {text: math.exp(value - highest) for text, value in compared.items()}
        total = sum(weights.values())
        return {text: weight / total for text, weight in weights.items()}

    def _truths(self, response: Loglikelihood) -> set[str]:
        return {_folded(text) for text in response.ground_truth_list}


def _folded(text: str) -> str:
    return text.strip().lower()


class ConfidenceWeightedAccuracy(_ProbabilityMetric):
    """The probability of the most probable choice if it is a gold answer, else 0."""

    NAME = "Confidence-weighted Accuracy"
    BEST = 1.0
    BOUNDS = (0.0, 1.0)

    def calculate(self, response: Loglikelihood) -> list[MetricResult]:
        """Return the value."""
        best = _best(self._compared(response))
        return _result(self, self._probabilities(response)[best] if _folded(best) in self._truths(response) else 0.0)


class _AbstainingMetric(_ProbabilityMetric):
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
        return _folded(list(response.by_text())[-1])


class TernaryScore(_AbstainingMetric):
    """`lc` for a gold answer, 0 for the last choice, `-lw` for another one (Kalai et al. 2025, arXiv:2509.04664)."""

    NAME = "Ternary Score"
    BEST = 1.0

    def calculate(self, response: Loglikelihood) -> list[MetricResult]:
        """Return the value."""
        best = _folded(_best(self._compared(response)))
        if best in self._truths(response):
            return _result(self, self._lc)
        return _result(self, 0.0 if best == self._abstention(response) else -self._lw)


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
        truths, abstention = self._truths(response), self._abstention(response)
        by_kind = {"right": 0.0, "abstained": 0.0, "wrong": 0.0}
        for text, probability in self._probabilities(response).items():
            folded = _folded(text)
            by_kind["right" if folded in truths else "abstained" if folded == abstention else "wrong"] += probability
        return _result(self, (self._lc * by_kind["right"] - self._lw * by_kind["wrong"]) * (1.0 - by_kind["abstained"]))
