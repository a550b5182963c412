"""Metrics of translations over a corpus, by the package sacrebleu: the values that its command prints, from 0 to 100.

The statistics of a sample are those that sacrebleu itself sums and uses for its bootstrap. Samples may have several correct
translations, and different numbers of them. Every metric here raises a `DataError` without a correct text and a
`RequirementError` without the package.
"""

import math
from functools import cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from eval_dagster.metrics.base import CorpusMetric, extra_module, gold_texts
from eval_dagster.records import Completion


class SacreBLEUMetric(CorpusMetric[Completion]):
    """A metric of sacrebleu. A subclass may change its `OPTIONS`, and should then have a name of its own."""

    SCORER: ClassVar[str]
    """The class in `sacrebleu.metrics`."""
    OPTIONS: ClassVar[tuple[tuple[str, Any], ...]] = ()
    """Arguments of that class that differ from its defaults, in pairs of name and value."""
    BEST = 100.0
    PACKAGES = ("sacrebleu",)
    BOUNDS = (0.0, 100.0)

    def calculate(self, response: Completion) -> dict[str, float]:
        """Return the sample's statistics."""
        references = [[text] for text in gold_texts(response)]
        [statistics] = self.scorer()._extract_corpus_statistics([response.completion_text], references)
        return dict(zip(self.STATISTICS, map(float, statistics), strict=True))

    @classmethod
    def aggregate(cls, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the score of summed statistics."""
        rows = sums.reshape(-1, len(cls.STATISTICS))
        scores = [cls.scorer()._compute_score_from_stats(row.tolist()).score for row in rows]
        return np.array(scores, dtype=np.float64).reshape(sums.shape[:-1])

    @classmethod
    def scorer(cls) -> Any:
        """The configured scorer of sacrebleu."""
        return _scorer(cls.SCORER, cls.OPTIONS, cls.NAME)


class BLEU(SacreBLEUMetric):
    """BLEU: precision of n-grams up to 4 words, times a penalty for short texts (Papineni et al. 2002, P02-1040).

    With sacrebleu's defaults: tokenizer 13a, exponential smoothing, case counts (Post 2018, arXiv:1804.08771). A corpus whose texts
    are all shorter than 4 words scores 0, correct or not.
    """

    NAME = "bleu"
    SCORER = "BLEU"
    STATISTICS = ("length", "reference_length", *(f"{kind}_{n}" for kind in ("correct", "total") for n in range(1, 5)))


class ChrF(SacreBLEUMetric):
    """chrF2: F score of character n-grams up to 6, recall weighing twice as much as precision (Popović 2015, W15-3049)."""

    NAME = "chrf"
    SCORER = "CHRF"
    STATISTICS = tuple(f"{kind}_{n}" for n in range(1, 7) for kind in ("total", "reference_total", "correct"))


class TER(SacreBLEUMetric):
    """TER: edits per word of the correct text; a shift of several words is one edit (Snover et al. 2006).

    The lower, the better; above 100 where more is edited than the correct text has words. Of several correct texts the one with the
    fewest edits counts, divided by their mean length.
    """

    NAME = "ter"
    HIGHER_IS_BETTER = False
    BOUNDS = (0.0, math.inf)
    BEST = 0.0
    SCORER = "TER"
    STATISTICS = ("edits", "reference_length")


@cache
def _scorer(kind: str, options: tuple[tuple[str, Any], ...], metric: str) -> Any:
    return getattr(extra_module("sacrebleu.metrics", metric), kind)(**dict(options))
