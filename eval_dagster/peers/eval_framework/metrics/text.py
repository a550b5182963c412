"""Metrics that compare a generated text with the gold answers."""

import re
import string
from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from eval_dagster.errors import DataError
from eval_dagster.metrics.base import MetricResult
from eval_dagster.peers.eval_framework.metrics.base import BaseMetric, result
from eval_dagster.peers.eval_framework.responses import Completion

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_DIGITS = str.maketrans("", "", string.digits)


class AccuracyCompletion(BaseMetric[Completion]):
    """Whether the text is a gold answer."""

    NAME = "Accuracy Completion"
    IS_PROPORTION = True

    def calculate(self, response: Completion) -> list[MetricResult]:
        """Return 1 or 0."""
        return [result(self, response.completion in response.ground_truth_list)]


def exact_match_hf_evaluate(
    predictions: Sequence[str],
    references: Sequence[str],
    regexes_to_ignore: Sequence[str] | None = None,
    ignore_case: bool = False,
    ignore_punctuation: bool = False,
    ignore_numbers: bool = False,
) -> dict[str, Any]:
    """The share of texts that equal their references, after ignored parts are removed from both."""

    def folded(text: str) -> str:
        for regex in regexes_to_ignore or ():
            text = re.sub(regex, "", text)
        if ignore_case:
            text = text.lower()
        if ignore_punctuation:
            text = text.translate(_PUNCTUATION)
        return text.translate(_DIGITS) if ignore_numbers else text

    return {"exact_match": np.mean([folded(text) == folded(truth) for text, truth in zip(predictions, references, strict=True)])}


class AccuracyCompletionWithEvaluate(AccuracyCompletion):
    """The share of gold answers that equal the text, after ignored parts are removed from both."""

    BOUNDS = (0.0, 1.0)

    IS_PROPORTION = False

    def __init__(self, regexes_to_ignore: list[str], ignore_case: bool = False, ignore_punctuation: bool = False) -> None:
        self.regexes_to_ignore = regexes_to_ignore
        self.ignore_case = ignore_case
        self.ignore_punctuation = ignore_punctuation

    def calculate(self, response: Completion) -> list[MetricResult]:
        """Return the value."""
        truths = response.ground_truth_list
        found = exact_match_hf_evaluate(
            [response.completion] * len(truths), truths, self.regexes_to_ignore, self.ignore_case, self.ignore_punctuation
        )
        return [result(self, found["exact_match"])]


class AccuracyCompletionOLMES(AccuracyCompletionWithEvaluate):
    """Ignores commas, dollar signs, a final full stop, and everything up to `#### `."""

    def __init__(self) -> None:
        super().__init__(regexes_to_ignore=[",", r"\$", "(?s).*#### ", r"\.$"])


class F1(BaseMetric[Completion]):
    """The F1 of the words in lower case; the highest over the gold answers."""

    NAME = "F1"
    BOUNDS = (0.0, 1.0)

    def normalize(self, text: str) -> str:
        """The text in lower case."""
        return text.lower()

    def tokenize(self, text: str) -> list[str]:
        """The words of the normalised text."""
        return self.normalize(text).split()

    def calculate(self, response: Completion) -> list[MetricResult]:
        """Return the value; 0 without a gold answer."""
        words = self.tokenize(response.completion)
        found = [calculate_f1(self.tokenize(truth), words) for truth in response.ground_truth_list if truth is not None]
        return [result(self, max(found, default=0.0))]


class F1SquadNormalized(F1):
    """The same without punctuation and English articles, as for SQuAD."""

    NAME = "F1 SQuAD Normalized"

    def normalize(self, text: str) -> str:
        """The text in lower case, without punctuation and articles, with single spaces."""
        return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def calculate_f1(ref_tokens: Sequence[Hashable], hyp_tokens: Sequence[Hashable]) -> float:
    """The F1 of two bags of tokens; 1 if both are empty."""
    if not ref_tokens or not hyp_tokens:
        return float(not ref_tokens and not hyp_tokens)
    return _f1(sum((Counter(ref_tokens) & Counter(hyp_tokens)).values()), len(hyp_tokens), len(ref_tokens))


def _f1(shared: int, predicted: int, wanted: int) -> float:
    if not shared:
        return 0.0
    precision, recall = shared / predicted, shared / wanted
    return 2 * precision * recall / (precision + recall)


class _Rouge(BaseMetric[Completion]):
    """The highest value over the gold answers; 0 for an empty text. Words are separated by white space."""

    BOUNDS = (0.0, 1.0)

    def calculate(self, response: Completion) -> list[MetricResult]:
        """Return the value.

        Raises:
            DataError: The gold answer is missing.
        """
        if response.completion == "":
            return [result(self, 0.0)]
        if None in response.ground_truth_list:
            raise DataError(f"there is no gold answer; expected a text for the metric {self.NAME}")
        return [result(self, self._of_response(response))]

    def _of_response(self, response: Completion) -> float:
        return max(self._of_words(response.completion.split(), truth.split()) for truth in response.ground_truth_list)

    def _of_words(self, words: list[str], wanted: list[str]) -> float:
        raise NotImplementedError


class ROUGE_1(_Rouge):  # noqa: N801 - eval-framework's name
    """The F1 of the words."""

    NAME = "ROUGE-1"

    def _of_words(self, words: list[str], wanted: list[str]) -> float:
        return calculate_f1(wanted, words)


class ROUGE_2(_Rouge):  # noqa: N801 - eval-framework's name
    """The F1 of the pairs of adjacent words."""

    NAME = "ROUGE-2"

    def _of_words(self, words: list[str], wanted: list[str]) -> float:
        pairs, wanted_pairs = (list(pairwise(each)) for each in (words, wanted))
        return calculate_f1(wanted_pairs, pairs)


class ROUGE_L(_Rouge):  # noqa: N801 - eval-framework's name
    """The F1 of the longest common subsequence of words."""

    NAME = "ROUGE-L"

    def _of_words(self, words: list[str], wanted: list[str]) -> float:
        longest = [0] * (len(wanted) + 1)
        for word in words:
            before = longest
            longest = [0]
            for position, other in enumerate(wanted):
                longest.append(before[position] + 1 if word == other else max(before[position + 1], longest[-1]))
        return _f1(longest[-1], len(words), len(wanted))


class ROUGE_GEOMETRIC_MEAN(_Rouge):  # noqa: N801 - eval-framework's name
    """The geometric mean of ROUGE-1, ROUGE-2 and ROUGE-L, each the highest over the gold answers."""

    NAME = "ROUGE-Geometric-Mean"

    def _of_response(self, response: Completion) -> float:
        first, second, longest = (metric()._of_response(response) for metric in (ROUGE_1, ROUGE_2, ROUGE_L))
        return float((first * second * longest) ** (1 / 3))
