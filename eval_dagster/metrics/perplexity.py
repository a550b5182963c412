"""How well a model predicts texts: perplexities of all texts together, bits a byte, and the metrics of LAMBADA.

A perplexity is the total log-probability by total words, bytes or tokens, so that long texts weigh more. A text is what the model scored,
or `original_text` of the task's context if that is given: WikiText, for instance, is made readable before it is scored, and its words are
counted as they stood before. A text is its response's only choice; of several correct choices the most probable one counts. Without
anything to divide by, the value is not a number. In LAMBADA each text has one continuation, which a model should predict. Every metric here
raises a `DataError` if no choice is marked as correct; those of probabilities also if a log-probability is missing or not finite, or the
text is not there.
"""

import math
import re

import numpy as np
from numpy.typing import NDArray

from eval_dagster.errors import DataError
from eval_dagster.metrics.base import CorpusMetric, LoglikelihoodMetric, PerplexityMetric, context_field
from eval_dagster.metrics.loglikelihood import choice_values, gold_positions
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


class GreedyAccuracy(LoglikelihoodMetric):
    """Whether greedy decoding gives the correct choice: each of its tokens is the most probable one.

    This is the accuracy of LAMBADA (Paperno et al. 2016, arXiv:1606.06031), for a single choice as in lm-evaluation-harness.
    """

    NAME = "greedy_accuracy"
    IS_PROPORTION = True

    def calculate(self, response: Loglikelihood) -> float:
        """Return 1 or 0.

        Raises:
            DataError: The response lacks `is_greedy` for some choices.
        """
        gold = gold_positions(response)
        if len(response.is_greedy) != len(response.loglikelihoods):
            raise DataError(
                f"the response says of {len(response.is_greedy)} choices whether the model would write them, but has "
                f"{len(response.loglikelihoods)}; expected it of each"
            )
        return float(any(response.is_greedy[position] for position in gold))


class TargetPerplexity(CorpusPerplexityMetric):
    """exp(-log P(choices) / choices): the perplexity of whole choices, whatever their number of words or tokens.

    It is the perplexity of LAMBADA (Paperno et al. 2016, arXiv:1606.06031).
    """

    NAME = "target_perplexity"
    STATISTICS = ("log_probability", "choices")

    def units(self, response: Loglikelihood, index: int) -> int:  # noqa: ARG002
        """One choice."""
        return 1


class BitsPerByteLoglikelihood(PerplexityMetric):
    """-log2 P(text | query) / UTF-8 bytes of the text, its leading space included (Gao et al. 2020, arXiv:2101.00027).

    The lower, the better, and comparable between tokenizers. Of several correct choices the one with the fewest bits per byte counts,
    because one spelling of an answer is enough. All texts have the same weight in the mean over samples, whatever their length.
    """

    NAME = "bits_per_byte"
    HIGHER_IS_BETTER = False
    BOUNDS = (0.0, math.inf)
    BEST = 0.0

    def calculate(self, response: Loglikelihood) -> float:
        """Return the value; 0 or more.

        Raises:
            DataError: A log-probability is missing or not finite, no choice is marked as correct, or a correct one is empty.
        """
        values, gold = choice_values(response), gold_positions(response)
        if len(response.choices) != len(values):
            raise DataError(f"the response has {len(values)} log-probabilities and no texts; expected those of the choices, to count bytes")
        lengths = {index: len(response.choices[index].encode()) for index in gold}
        if not all(lengths.values()):
            raise DataError(
                f"cannot count bits per byte: a correct choice is empty (gold indices {sorted(gold)} of {list(response.choices)})"
            )
        return min(-values[index] / math.log(2) / length for index, length in lengths.items())
