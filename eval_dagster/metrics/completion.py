"""Metrics that compare a generated text with correct ones. Every metric here raises a `DataError` without a correct text."""

import re
import string
from collections import Counter
from decimal import Decimal

from eval_dagster.errors import DataError
from eval_dagster.metrics.answers import AnswerMetric, gold_texts
from eval_dagster.metrics.base import CompletionMetric
from eval_dagster.records import Completion

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
# A minus counts as a sign only where nothing stands right before it: "48-24" holds no negative number.
_NUMBER = re.compile(r"(?:(?<![\w.)])-)?\$?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)")
_ANSWER_MARK = "####"


class AccuracyCompletion(AnswerMetric):
    """Whether the text equals a correct one, character by character, as in eval-framework; `ExactMatch` ignores outer white space."""

    NAME = "accuracy_completion"

    def answer_of(self, text: str) -> str:
        """The text."""
        return text


class ExactMatch(AnswerMetric):
    """Whether the text equals a correct one, without the white space around both."""

    NAME = "exact_match"

    def answer_of(self, text: str) -> str:
        """The text without white space around it."""
        return text.strip()


class NormalizedExactMatch(AnswerMetric):
    """Whether the text equals a correct one after the normalisation of SQuAD (Rajpurkar et al. 2016, arXiv:1606.05250).

    Lower case, no punctuation (ASCII), no English articles, white space folded.
    """

    NAME = "exact_match_normalized"

    def answer_of(self, text: str) -> str:
        """The normalised text."""
        return normalized(text)


class QuasiExactMatch(NormalizedExactMatch):
    """`NormalizedExactMatch` by its name in HELM (Liang et al. 2022, arXiv:2211.09110), in which an empty text never matches."""

    NAME = "quasi_exact_match"

    def calculate(self, response: Completion) -> float:
        """Return 1 or 0."""
        return super().calculate(response) if response.completion_text else 0.0


class PrefixExactMatch(CompletionMetric):
    """Whether the text begins with a correct one, white space around both left out: HELM's (Liang et al. 2022, arXiv:2211.09110).

    What stands behind it does not matter, not even if it makes another word.
    """

    NAME = "prefix_exact_match"
    IS_PROPORTION = True

    def calculate(self, response: Completion) -> float:
        """Return 1 or 0.

        Raises:
            DataError: Nothing is left of a correct text, so that every text would begin with it.
        """
        beginnings = [self.trimmed(truth) for truth in gold_texts(response)]
        if not all(beginnings):
            raise DataError(
                f"a gold answer of {list(response.ground_truths)} is empty for the metric {self.NAME}; every text begins with it"
            )
        return float(self.trimmed(response.completion_text).startswith(tuple(beginnings)))

    def trimmed(self, text: str) -> str:
        """The part of a text that is compared."""
        return text.strip()


class PrefixQuasiExactMatch(PrefixExactMatch):
    """Whether the text begins with a correct one after the normalisation of SQuAD: HELM's `quasi_prefix_exact_match`."""

    NAME = "prefix_quasi_exact_match"

    def trimmed(self, text: str) -> str:
        """The normalised text."""
        return normalized(text)


class F1(CompletionMetric):
    """How far the words of the text agree with a correct one: 2 * precision * recall / (precision + recall); from 0 to 1.

    The token F1 of SQuAD (Rajpurkar et al. 2016, arXiv:1606.05250): words of the normalised texts, each as often as it stands in both;
    the best over the correct texts counts. If a text has no words left, 1 if neither has, else 0 (as SQuAD 2.0, arXiv:1806.03822).
    """

    NAME = "f1"
    BOUNDS = (0.0, 1.0)

    def calculate(self, response: Completion) -> float:
        """Return the value."""
        words = normalized(response.completion_text).split()
        return max(_f1(words, normalized(truth).split()) for truth in gold_texts(response))


class ExactNumber(AnswerMetric):
    """Whether the text's number equals a correct one, as decimals: "$1,234.50" is 1234.5.

    The text's number is the first after `####` if that mark stands (the convention of GSM8K), else the last in the text. A text
    without a number is wrong; a correct answer without one raises a `DataError`.
    """

    NAME = "exact_number"
    ANSWER = "number"

    def answer_of(self, text: str) -> Decimal | None:
        """The text's number."""
        before, mark, after = text.replace("\N{MINUS SIGN}", "-").partition(_ANSWER_MARK)
        found = _NUMBER.findall(after if mark else before)
        if not found:
            return None
        return Decimal((found[0] if mark else found[-1]).replace(",", "").replace("$", ""))


def normalized(text: str) -> str:
    """The text after the normalisation of SQuAD."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _f1(words: list[str], wanted: list[str]) -> float:
    if not words or not wanted:
        return float(words == wanted)
    # Equal to the harmonic mean of precision (common / words) and recall (common / wanted).
    return 2 * (Counter(words) & Counter(wanted)).total() / (len(words) + len(wanted))
