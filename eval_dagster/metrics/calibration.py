"""Metrics of calibration: whether the probabilities of the choices equal the rates at which they are correct.

A choice's probability is the softmax over the log-probabilities of all choices, not normalised by length. Every metric here raises a
`DataError` if a log-probability is missing or not finite, or no choice is marked as correct.
"""

from bisect import bisect_left
from math import fsum
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from eval_dagster.metrics.base import CorpusMetric, LoglikelihoodMetric
from eval_dagster.metrics.choices import choice_values, correct_share, gold_positions, probability_of
from eval_dagster.records import Loglikelihood


class BrierScore(LoglikelihoodMetric):
    """Sum over the choices of (probability - outcome)², the outcome being 1 for the correct one and 0 for the others (Brier 1950).

    The lower, the better; from 0 to 2, and 2 for certainty of a wrong choice. Several correct choices count as one, with their
    probabilities summed.
    """

    NAME = "brier_score"
    HIGHER_IS_BETTER = False
    BOUNDS = (0.0, 2.0)
    BEST = 0.0

    def calculate(self, response: Loglikelihood) -> float:
        """Return the value."""
        values, gold = choice_values(response), gold_positions(response)
        wrong = [probability_of(values, [index]) for index in range(len(values)) if index not in gold]
        return (1 - probability_of(values, gold)) ** 2 + fsum(probability**2 for probability in wrong)


class ExpectedCalibrationError(CorpusMetric[Loglikelihood]):
    """ECE = sum over bins of |bin| / n * |accuracy of the bin - mean confidence of the bin| (Guo et al. 2017, arXiv:1706.04599).

    The confidence is the probability of the most probable choice. Of k equal ones, one correct one is correct by 1/k. The bins have equal
    widths; a bin holds its upper edge. The lower, the better; from 0 to 1. As |bin| cancels out, a bin's statistic is its sum of
    correctness - confidence.
    """

    NAME = "expected_calibration_error"
    HIGHER_IS_BETTER = False
    BOUNDS = (0.0, 1.0)
    BEST = 0.0
    BINS: ClassVar[int] = 15
    STATISTICS = ("count", *(f"gap_{number}" for number in range(1, BINS + 1)))

    def calculate(self, response: Loglikelihood) -> dict[str, float]:
        """Return the statistics of one sample: 1, and its correctness - confidence in the bin of its confidence, 0 in the others."""
        values = choice_values(response)
        correct = correct_share(values, gold_positions(response))
        confidence = probability_of(values, [values.index(max(values))])
        statistics = dict.fromkeys(self.STATISTICS, 0.0)
        statistics["count"] = 1.0
        bin_number = bisect_left([number / self.BINS for number in range(1, self.BINS)], confidence) + 1
        statistics[f"gap_{bin_number}"] = correct - confidence
        return statistics

    @classmethod
    def aggregate(cls, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the error; not a number without samples."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.abs(sums[..., 1:]).sum(axis=-1) / sums[..., 0])
