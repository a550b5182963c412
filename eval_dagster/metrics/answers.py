"""Metrics that find an answer in a text and compare it with the answers in the correct texts."""

from collections.abc import Hashable
from typing import ClassVar

from eval_dagster.errors import DataError
from eval_dagster.metrics.base import CompletionMetric
from eval_dagster.records import Completion


class AnswerMetric(CompletionMetric):
    """Whether the answer in the text is the answer in a correct text.

    A text without an answer is wrong. `answer_of` gives the answer of one text alone, so that several texts can vote on it.
    """

    IS_PROPORTION = True
    ANSWER: ClassVar[str] = "answer"
    """The name of such an answer, for messages."""

    def answer_of(self, text: str) -> Hashable | None:
        """The answer in a text, equal for texts with the same answer; None if there is none."""
        raise NotImplementedError

    def calculate(self, response: Completion) -> float:
        """Return 1 or 0.

        Raises:
            DataError: A correct text holds no answer, or there is none.
        """
        wanted = set()
        for truth in gold_texts(response):
            answer = self.answer_of(truth)
            if answer is None:
                raise DataError(f"the gold answer {truth!r} holds no {self.ANSWER}; expected one for the metric {self.NAME}")
            wanted.add(answer)
        return float(self.answer_of(response.completion_text) in wanted)


def gold_texts(response: Completion) -> list[str]:
    """Every correct text.

    Raises:
        DataError: There is none.
    """
    if not response.ground_truths:
        raise DataError("there is no gold answer to compare with; expected at least one text from _get_ground_truth")
    return list(response.ground_truths)
