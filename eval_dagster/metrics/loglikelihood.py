"""Metrics of the log-probabilities of choices: accuracies, probabilities, calibration, and the cost of a wrong answer.

An accuracy tells whether the choice with the highest log-probability, normalised or not, is correct: of k choices with exactly the highest
value, one correct one counts 1/k. A probability is the softmax over the log-probabilities of all choices. Metrics of calibration tell
whether the probabilities, not normalised by length, equal the rates at which the choices are correct. Metrics of abstention are for
questions whose last choice is "I don't know", so that a wrong answer can cost more than no answer; it is recognised by its position,
whatever its text. Definitions of probabilities and of abstention are as in eval-framework: normalised by length, a log-probability is
divided by the characters of its choice, the leading space included.

All lists are in the order of the choices, so that choices with the same text stay separate. Every metric here raises a `DataError` if a
log-probability is missing or not finite, no choice is marked as correct, or a choice to be normalised is empty. Those of abstention also
raise it if the last choice is the only one or a correct one.
"""

import math
from bisect import bisect_left
from collections.abc import Collection, Sequence
from math import fsum
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from eval_dagster.errors import DataError, TaskDefinitionError
from eval_dagster.metrics.base import CorpusMetric, LoglikelihoodMetric
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


class AccuracyLoglikelihood(LoglikelihoodMetric):
    """Whether the most probable choice is a correct one: the highest log P(choice | query)."""

    NAME = "accuracy"
    IS_PROPORTION = True

    def calculate(self, response: Loglikelihood) -> float:
        """Return 1 or 0, and a part of 1 for a tie."""
        return _is_gold(choice_values(response), response)


class AccuracyNormLoglikelihood(LoglikelihoodMetric):
    """Accuracy by log P(choice | query) / characters of the choice, so that long choices have no disadvantage.

    As `acc_norm` in EleutherAI's lm-evaluation-harness: the one space that parts a choice from the prompt is not counted.
    """

    NAME = "accuracy_norm"
    IS_PROPORTION = True

    def calculate(self, response: Loglikelihood) -> float:
        """Return 1 or 0, and a part of 1 for a tie.

        Raises:
            DataError: A choice has no characters.
        """
        lengths = [len(choice.removeprefix(" ")) for choice in response.choices]
        return _is_gold(per_length(choice_values(response), lengths, "characters", response), response)


class AccuracyBytesLoglikelihood(LoglikelihoodMetric):
    """Accuracy by log P(choice | query) / UTF-8 bytes of the choice: as by characters, but comparable between scripts.

    The one space that parts a choice from the prompt is not counted.
    """

    NAME = "accuracy_bytes"
    IS_PROPORTION = True

    def calculate(self, response: Loglikelihood) -> float:
        """Return 1 or 0, and a part of 1 for a tie.

        Raises:
            DataError: A choice has no bytes.
        """
        lengths = [len(choice.removeprefix(" ").encode()) for choice in response.choices]
        return _is_gold(per_length(choice_values(response), lengths, "bytes", response), response)


class AccuracyTokensLoglikelihood(LoglikelihoodMetric):
    """Accuracy by log P(choice | query) / tokens of the choice (Brown et al. 2020, arXiv:2005.14165, section 2.4).

    The tokens are the choice's own; padding that a batch gave it is none of them. Their number depends on the tokenizer, so that the
    values of two models with different ones are not quite alike.
    """

    NAME = "accuracy_tokens"
    IS_PROPORTION = True

    def calculate(self, response: Loglikelihood) -> float:
        """Return 1 or 0, and a part of 1 for a tie.

        Raises:
            DataError: The response does not tell the tokens of every choice, or a choice has none.
        """
        lengths = [len(tokens) for tokens in response.token_loglikelihoods]
        return _is_gold(per_length(choice_values(response), lengths, "tokens", response), response)


class AccuracyPMILoglikelihood(LoglikelihoodMetric):
    """Accuracy by pointwise mutual information: log P(choice | query) - log P(choice | unconditioned query).

    What is probable whatever the question, as short and frequent texts are, gains nothing (Holtzman et al. 2021, arXiv:2104.08315).
    """

    NAME = "accuracy_pmi"
    IS_PROPORTION = True

    def calculate(self, response: Loglikelihood) -> float:
        """Return 1 or 0, and a part of 1 for a tie.

        Raises:
            DataError: The task has no unconditioned query.
        """
        pairs = zip(choice_values(response), unconditioned_values(response), strict=True)
        return _is_gold([value - unconditioned for value, unconditioned in pairs], response)


def _is_gold(values: Sequence[float], response: Loglikelihood) -> float:
    return correct_share(values, gold_positions(response))


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
