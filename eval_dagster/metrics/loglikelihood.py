"""Accuracies: whether the choice with the highest log-probability, normalised or not, is correct.

Of k choices with exactly the highest value, one correct one counts 1/k. Every metric here raises a `DataError` if a log-probability
is missing or not finite, or no choice is marked as correct.
"""

from collections.abc import Sequence

from eval_dagster.metrics.base import LoglikelihoodMetric
from eval_dagster.metrics.choices import choice_values, correct_share, gold_positions, per_length, unconditioned_values
from eval_dagster.records import Loglikelihood


class AccuracyLoglikelihood(LoglikelihoodMetric):
    """Whether the most probable choice is a correct one: the highest log P(choice | query)."""

    NAME = "accuracy"
    IS_PROPORTION = True

    def calculate(self, response: Loglikelihood) -> float:
        """Return 1 or 0, and a part of 1 for a tie."""
        return _is_gold(choice_values(response), response)


class AccuracyNormLoglikelihood(LoglikelihoodMetric):
    """Accuracy by log P(choice | query) / characters of the choice, so that long choices have no disadvantage.

    As `acc_norm` in EleutherAI's lm-evaluation-harness: the one space that parts a choice from the prompt is not counted.
    """

    NAME = "accuracy_norm"
    IS_PROPORTION = True

    def calculate(self, response: Loglikelihood) -> float:
        """Return 1 or 0, and a part of 1 for a tie.

        Raises:
            DataError: A choice has no characters.
        """
        lengths = [len(choice.removeprefix(" ")) for choice in response.choices]
        return _is_gold(per_length(choice_values(response), lengths, "characters", response), response)


class AccuracyBytesLoglikelihood(LoglikelihoodMetric):
    """Accuracy by log P(choice | query) / UTF-8 bytes of the choice: as by characters, but comparable between scripts.

    The one space that parts a choice from the prompt is not counted.
    """

    NAME = "accuracy_bytes"
    IS_PROPORTION = True

    def calculate(self, response: Loglikelihood) -> float:
        """Return 1 or 0, and a part of 1 for a tie.

        Raises:
            DataError: A choice has no bytes.
        """
        lengths = [len(choice.removeprefix(" ").encode()) for choice in response.choices]
        return _is_gold(per_length(choice_values(response), lengths, "bytes", response), response)


class AccuracyTokensLoglikelihood(LoglikelihoodMetric):
    """Accuracy by log P(choice | query) / tokens of the choice (Brown et al. 2020, arXiv:2005.14165, section 2.4).

    The tokens are the choice's own; padding that a batch gave it is none of them. Their number depends on the tokenizer, so that the
    values of two models with different ones are not quite alike.
    """

    NAME = "accuracy_tokens"
    IS_PROPORTION = True

    def calculate(self, response: Loglikelihood) -> float:
        """Return 1 or 0, and a part of 1 for a tie.

        Raises:
            DataError: The response does not tell the tokens of every choice, or a choice has none.
        """
        lengths = [len(tokens) for tokens in response.token_loglikelihoods]
        return _is_gold(per_length(choice_values(response), lengths, "tokens", response), response)


class AccuracyPMILoglikelihood(LoglikelihoodMetric):
    """Accuracy by pointwise mutual information: log P(choice | query) - log P(choice | unconditioned query).

    What is probable whatever the question, as short and frequent texts are, gains nothing (Holtzman et al. 2021, arXiv:2104.08315).
    """

    NAME = "accuracy_pmi"
    IS_PROPORTION = True

    def calculate(self, response: Loglikelihood) -> float:
        """Return 1 or 0, and a part of 1 for a tie.

        Raises:
            DataError: The task has no unconditioned query.
        """
        pairs = zip(choice_values(response), unconditioned_values(response), strict=True)
        return _is_gold([value - unconditioned for value, unconditioned in pairs], response)


def _is_gold(values: Sequence[float], response: Loglikelihood) -> float:
    return correct_share(values, gold_positions(response))
