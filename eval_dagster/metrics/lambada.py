"""The metrics of LAMBADA (Paperno et al. 2016, arXiv:1606.06031): each text has one continuation, which a model should predict.

Of several correct choices the best counts. Every metric here raises a `DataError` if no choice is marked as correct.
"""

from eval_dagster.errors import DataError
from eval_dagster.metrics.base import LoglikelihoodMetric
from eval_dagster.metrics.choices import gold_positions
from eval_dagster.metrics.perplexity import CorpusPerplexityMetric
from eval_dagster.records import Loglikelihood


class GreedyAccuracy(LoglikelihoodMetric):
    """Whether greedy decoding gives the correct choice: each of its tokens is the most probable one.

    For a single choice this is the accuracy of lm-evaluation-harness.
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
    """exp(-log P(choices) / choices): the perplexity of whole choices, whatever their number of words or tokens."""

    NAME = "target_perplexity"
    STATISTICS = ("log_probability", "choices")

    def units(self, response: Loglikelihood, index: int) -> int:  # noqa: ARG002
        """One choice."""
        return 1
