"""The metric of DROP: spans and numbers compared as bags of words (Dua et al. 2019, arXiv:1903.00161, section 5)."""

import re
import string
from collections.abc import Sequence

import numpy as np

from eval_dagster.metrics.base import MetricResult
from eval_dagster.peers.eval_framework.contexts import BaseMetricContext, extract_context_metric
from eval_dagster.peers.eval_framework.metrics.base import BaseMetric, result
from eval_dagster.peers.eval_framework.responses import Completion

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


class DropMetricContext(BaseMetricContext):
    """The gold answers, each a list of spans."""

    answer_tuples: list[list[str]]


class DropF1ExactMatch(BaseMetric[Completion]):
    """F1 rounded to two digits, and exact match; the best over the gold answers. Commas separate the spans of the text."""

    NAME = "Drop F1"
    BOUNDS = (0.0, 1.0)
    KEYS = ["f1", "exact_match"]  # noqa: RUF012 - as its base has it

    def calculate(self, response: Completion) -> list[MetricResult]:
        """Return both values."""
        text = (response.completion or "").strip()
        best = best_of(
            [span for span in text.split(",") if span.strip()] or [text], extract_context_metric(response, DropMetricContext).answer_tuples
        )
        return [result(self, best[key], name) for key, name in zip(self.KEYS, self.NAMES, strict=True)]


def best_of(texts: Sequence[str], answers: Sequence[Sequence[str]]) -> dict[str, float]:
    """Exact match and F1 of spans: the best over the gold answers."""
    best = {"exact_match": 0.0, "f1": 0.0}
    spans = [_words(text) for text in texts]
    for gold in answers:
        if not gold or not gold[0].strip():
            continue
        wanted = [_words(span) for span in gold]
        is_same = set(spans) == set(wanted) and len(spans) == len(wanted)
        best["exact_match"] = max(best["exact_match"], float(is_same))
        best["f1"] = max(best["f1"], round(_aligned_f1([set(span) for span in spans], [set(span) for span in wanted]), 2))
    return best


def _words(span: str) -> tuple[str, ...]:
    """The normalised words of a span: in lower case, without punctuation and English articles; numbers as `str` of a float."""
    found: list[str] = []
    for part in re.split("[ -]", span):
        word = part.lower()
        word = word if _is_number(word) else word.translate(_PUNCTUATION)
        word = str(float(word)) if _is_number(word) else word
        found += _ARTICLES.sub(" ", word).split()
    return tuple(found)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _aligned_f1(spans: Sequence[set[str]], wanted: Sequence[set[str]]) -> float:
    """The mean F1 of spans, paired so that it is highest; a span without a partner counts 0."""
    # Imported lazily: slow, and only needed here.
    from scipy.optimize import linear_sum_assignment

    scores = np.array([[_f1(span, truth) for span in spans] for truth in wanted])
    rows, columns = linear_sum_assignment(scores, maximize=True)
    return float(scores[rows, columns].sum()) / max(len(spans), len(wanted))


def _f1(words: set[str], wanted: set[str]) -> float:
    numbers = {word for word in wanted if _is_number(word)}
    if numbers and not numbers & words:
        return 0.0
    shared = len(words & wanted)
    precision = shared / len(words) if words else 1.0
    recall = shared / len(wanted) if wanted else 1.0
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0
