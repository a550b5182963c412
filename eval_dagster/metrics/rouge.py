"""ROUGE: how many word n-grams, or how long a common subsequence, a text shares with a correct one (Lin 2004, W04-1013).

Computed by Google's package rouge-score: the F measure; of several correct texts the one with the highest value counts. Words are
runs of a to z and 0 to 9 in lower case, so that a text in another script has no words and scores 0. Texts that are too short for an n-gram
score 0, too: a correct text of one word has a ROUGE-2 of 0.
"""

from functools import cache
from typing import Any, ClassVar

from eval_dagster.metrics.base import CompletionMetric, extra_module, gold_texts
from eval_dagster.records import Completion


class RougeMetric(CompletionMetric):
    """One variant of ROUGE; from 0 to 1. Raises a `DataError` without a correct text, a `RequirementError` without the package."""

    PACKAGES = ("nltk", "rouge-score")
    BOUNDS = (0.0, 1.0)
    USE_STEMMER: ClassVar[bool] = False
    """Whether words are cut to their stem first (Porter's, for English), as in HELM."""

    def calculate(self, response: Completion) -> float:
        """Return the value."""
        scores = _scorer(self.NAME, self.USE_STEMMER).score_multi(gold_texts(response), response.completion_text)
        return float(scores[self.NAME].fmeasure)


class Rouge1(RougeMetric):
    """ROUGE-1: single words."""

    NAME = "rouge1"


class Rouge2(RougeMetric):
    """ROUGE-2: pairs of neighbouring words."""

    NAME = "rouge2"


class RougeL(RougeMetric):
    """ROUGE-L: the longest common subsequence of words."""

    NAME = "rougeL"


@cache
def _scorer(name: str, use_stemmer: bool) -> Any:
    return extra_module("rouge_score.rouge_scorer", name).RougeScorer([name], use_stemmer=use_stemmer)
