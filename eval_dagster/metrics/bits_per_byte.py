"""How many bits a model needs for each byte of a correct text."""

import math

from eval_dagster.errors import DataError
from eval_dagster.metrics.base import PerplexityMetric
from eval_dagster.metrics.choices import choice_values, gold_positions
from eval_dagster.records import Loglikelihood


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
