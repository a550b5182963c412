"""Perplexities of all texts together: total log-probability by total words, bytes or tokens, so that long texts weigh more.

A text is what the model scored, or `original_text` of the task's context if that is given: WikiText, for instance, is made readable
before it is scored, and its words are counted as they stood before. A text is its response's only choice; of several correct choices
the most probable one counts. Every metric here raises a `DataError` if a log-probability is missing or not finite, no choice is
marked as correct, or the text is not there. Without anything to divide by, the value is not a number.
"""

import math
import re

import numpy as np
from numpy.typing import NDArray

from eval_dagster.errors import DataError
from eval_dagster.metrics.base import CorpusMetric, PerplexityMetric
from eval_dagster.metrics.choices import choice_values, gold_positions
from eval_dagster.metrics.fields import context_field
from eval_dagster.records import Loglikelihood


class CorpusPerplexityMetric(CorpusMetric[Loglikelihood], PerplexityMetric):
    """-log P(texts) / units, as it is or as a power of e. The lower, the better."""

    HIGHER_IS_BETTER = False
    BOUNDS = (1.0, math.inf)

    def calculate(self, response: Loglikelihood) -> dict[str, float]:
        """Return the text's log-probability (natural logarithm) and its number of units."""
        values = choice_values(response)
        index = max(gold_positions(response), key=lambda position: values[position])
        return dict(zip(self.STATISTICS, (values[index], float(self.units(response, index))), strict=True))

    def units(self, response: Loglikelihood, index: int) -> int:
        """How many units the choice at a position has."""
        raise NotImplementedError

    @classmethod
    def aggregate(cls, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the perplexity: exp(-log P / units); infinite if it is too large for a float."""
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(_per_unit(sums)))


class WordPerplexity(CorpusPerplexityMetric):
    """exp(-log P(texts) / words), where white space separates words.

    As in EleutherAI's lm-evaluation-harness, which also counts the empty words before and after white space at either end.
    """

    NAME = "word_perplexity"
    STATISTICS = ("log_probability", "words")

    def units(self, response: Loglikelihood, index: int) -> int:
        """Words of the text."""
        return len(re.split(r"\s+", _text(response, index)))


class BytePerplexity(CorpusPerplexityMetric):
    """exp(-log P(texts) / UTF-8 bytes)."""

    NAME = "byte_perplexity"
    STATISTICS = ("log_probability", "bytes")

    def units(self, response: Loglikelihood, index: int) -> int:
        """Bytes of the text."""
        return len(_text(response, index).encode("utf-8", "surrogatepass"))


class BitsPerByte(BytePerplexity):
    """-log2 P(texts) / UTF-8 bytes (Gao et al. 2020, arXiv:2101.00027).

    `BitsPerByteLoglikelihood` is the mean of the texts' own values instead.
    """

    NAME = "corpus_bits_per_byte"
    BOUNDS = (0.0, math.inf)
    BEST = 0.0

    @classmethod
    def aggregate(cls, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the bits for each byte."""
        return np.asarray(_per_unit(sums) / np.log(2))


class TokenPerplexity(CorpusPerplexityMetric):
    """exp(-log P(texts) / tokens). It cannot compare models with different tokenizers."""

    NAME = "token_perplexity"
    STATISTICS = ("log_probability", "tokens")

    def units(self, response: Loglikelihood, index: int) -> int:
        """Tokens of the text that were scored."""
        if len(response.token_loglikelihoods) != len(response.loglikelihoods):
            raise DataError(
                f"the response has the tokens of {len(response.token_loglikelihoods)} texts, but {len(response.loglikelihoods)} "
                "log-probabilities; expected those of each, to count tokens"
            )
        return len(response.token_loglikelihoods[index])


def _per_unit(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    units = sums[..., 1]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(units > 0, -sums[..., 0] / units, np.nan)


def _text(response: Loglikelihood, index: int) -> str:
    original = context_field(response, "original_text")
    if original is not None:
        return str(original)
    if index >= len(response.choices):
        raise DataError("the response has log-probabilities and no text; expected the text that was scored, to count its words or bytes")
    return response.choices[index]
