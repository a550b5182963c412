"""The metrics of DROP: spans and numbers compared as bags of words (Dua et al. 2019, arXiv:1903.00161, section 5).

An answer is one span or several, each on a line of its own, in the text and in the correct answers. Of several correct answers the best
counts. Words are split at spaces and hyphens, and compared in lower case, without punctuation (ASCII) and English articles; words that
are numbers are compared as numbers. Every metric here raises a `DataError` without a correct text.
"""

import re
import string

import numpy as np

from eval_dagster.metrics.answers import AnswerMetric, gold_texts
from eval_dagster.metrics.base import CompletionMetric
from eval_dagster.records import Completion

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = {"a", "an", "the"}


class DropExactMatch(AnswerMetric):
    """Whether the normalised spans equal a correct answer's, and as many; their order does not matter."""

    NAME = "drop_exact_match"

    def answer_of(self, text: str) -> tuple[int, frozenset[str]]:
        """How many spans there are, and which."""
        spans = [" ".join(words) for words in _spans(text)]
        return len(spans), frozenset(spans)


class DropF1(CompletionMetric):
    """The mean F1 of the spans, paired with a correct answer's spans so that it is highest; from 0 to 1.

    The F1 of two spans compares their sets of words, and is 0 if the correct one has numbers and the other none of them. A span
    without a partner counts 0. Not rounded to two digits, as the official script does.
    """

    NAME = "drop_f1"
    BOUNDS = (0.0, 1.0)

    def calculate(self, response: Completion) -> float:
        """Return the value."""
        spans = [set(words) for words in _spans(response.completion_text)]
        return max(_aligned_f1(spans, [set(words) for words in _spans(truth)]) for truth in gold_texts(response))


def _spans(text: str) -> list[list[str]]:
    """The words of each span. An empty text is one span without words."""
    return [_words(line) for line in text.strip().splitlines() if line.strip()] or [[]]


def _words(span: str) -> list[str]:
    words = []
    for part in re.split(r"[\s-]+", span.lower()):
        word = part if _is_number(part) else part.translate(_PUNCTUATION)
        if word and word not in _ARTICLES:
            words.append(str(float(word)) if _is_number(word) else word)
    return words


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _aligned_f1(spans: list[set[str]], wanted: list[set[str]]) -> float:
    scores = np.array([[_f1(span, truth) for span in spans] for truth in wanted])
    # Imported lazily: slow, and only needed here.
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(scores, maximize=True)
    return float(scores[rows, columns].sum()) / max(len(spans), len(wanted))


def _f1(words: set[str], wanted: set[str]) -> float:
    numbers = {word for word in wanted if _is_number(word)}
    if not words or not wanted or (numbers and not numbers & words):
        return float(words == wanted)
    return 2 * len(words & wanted) / (len(words) + len(wanted))
