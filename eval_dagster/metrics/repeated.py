"""Metrics of several texts of one prompt, made from a metric of one text.

`pass_at_k(ExactNumber, 10)` is a metric with the name `pass@10`; `METRICS = [pass_at_k(ExactNumber, 10), maj_at_k(ExactNumber, 10)]`.
The eval needs `num_samples` of k or more. Every metric here raises a `DataError` if there are fewer texts than k.
"""

from collections import Counter
from collections.abc import Sequence
from math import comb
from statistics import fmean
from typing import ClassVar, TypeVar

from eval_dagster.errors import DataError, TaskDefinitionError
from eval_dagster.metrics.base import AnswerMetric, BaseMetric, CompletionMetric, RepeatedMetric, bounds_of, declared
from eval_dagster.records import Completion


class AtKMetric(RepeatedMetric):
    """A metric of k texts."""

    METRIC: ClassVar[type[BaseMetric[Completion]]]
    """The metric of one text; it gives one value."""
    K: ClassVar[int]
    """How many texts; at least 1."""

    def values(self, responses: Sequence[Completion]) -> list[float]:
        """The value of each text.

        Raises:
            DataError: There are fewer than k texts, or the metric gives something else than a number.
        """
        if len(responses) < self.K:
            raise DataError(f"{self.NAME} needs {self.K} texts of each prompt, and there are {len(responses)}; set num_samples: {self.K}")
        values = [self.METRIC().calculate(response) for response in responses]
        numbers = [float(value) for value in values if isinstance(value, int | float)]
        if len(numbers) != len(values):
            raise DataError(f"the metric {self.METRIC.NAME} gave {values}; expected one number a text, of which to make {self.NAME}")
        return numbers


class PassAtK(AtKMetric):
    """The probability that at least one of k texts is correct, estimated without bias from all n: 1 - C(n - c, k) / C(n, k).

    c of the n texts are correct, which means that the metric of one text gives 1 (Chen et al. 2021, arXiv:2107.03374, equation 1).
    """

    BOUNDS = (0.0, 1.0)

    def calculate_all(self, responses: Sequence[Completion]) -> float:
        """Return the value; from 0 to 1.

        Raises:
            DataError: The metric of one text gives something else than 0 or 1.
        """
        values = self.values(responses)
        if not set(values) <= {0.0, 1.0}:
            raise DataError(f"the metric {self.METRIC.NAME} gave {values}; expected 0 or 1 for every text, of which to make {self.NAME}")
        count, correct = len(values), int(sum(values))
        return 1 - comb(count - correct, self.K) / comb(count, self.K)


class AvgAtK(AtKMetric):
    """The mean over the first k texts."""

    def calculate_all(self, responses: Sequence[Completion]) -> float:
        """Return the value."""
        return fmean(self.values(responses[: self.K]))


class MajAtK(AtKMetric):
    """Whether the answer that most of the first k texts give is correct (Wang et al. 2022, arXiv:2203.11171).

    Of answers with equally many votes the first counts. A text without an answer has no vote. Without any vote the value is 0.
    """

    METRIC: ClassVar[type[AnswerMetric]]

    def calculate_all(self, responses: Sequence[Completion]) -> float:
        """Return the value that the metric gives the first text with that answer."""
        voters = responses[: self.K]
        values = self.values(voters)
        answers = [self.METRIC().answer_of(response.completion_text) for response in voters]
        votes = Counter(answer for answer in answers if answer is not None)
        if not votes:
            return 0.0
        # Of equal counts `most_common` gives the first one counted.
        return values[answers.index(votes.most_common(1)[0][0])]


def pass_at_k(metric: type[BaseMetric[Completion]], k: int, name: str | None = None) -> type[PassAtK]:
    """Make pass@k of a metric whose values are 0 and 1.

    Args:
        metric: Scores one text.
        k: At least 1.
        name: `pass@<k>` if not given.

    Raises:
        TaskDefinitionError: k is not a number of texts, or the metric's values are not all 0 or 1.
    """
    if not metric.IS_PROPORTION:
        raise TaskDefinitionError(
            f"pass@{k} cannot be made of {metric.__name__}, whose IS_PROPORTION is false; expected a metric that gives 0 or 1"
        )
    return _at_k(PassAtK, metric, k, name or f"pass@{k}")


def avg_at_k(metric: type[BaseMetric[Completion]], k: int, name: str | None = None) -> type[AvgAtK]:
    """Make avg@k of a metric. Arguments and errors as for `pass_at_k`, whatever the metric's values."""
    made = _at_k(AvgAtK, metric, k, name or f"avg@{k}")
    made.HIGHER_IS_BETTER, made.BEST, made.BOUNDS = metric.HIGHER_IS_BETTER, metric.BEST, bounds_of(metric)
    return made


def maj_at_k(metric: type[AnswerMetric], k: int, name: str | None = None) -> type[MajAtK]:
    """Make maj@k of a metric that finds the answer in a text. Arguments and errors as for `pass_at_k`."""
    if not (issubclass(metric, CompletionMetric) and hasattr(metric, "answer_of")):
        raise TaskDefinitionError(
            f"maj@{k} cannot be made of {metric.__name__}, which does not say what a text's answer is; expected an AnswerMetric"
        )
    made = _at_k(MajAtK, metric, k, name or f"maj@{k}")
    made.IS_PROPORTION, made.BOUNDS = metric.IS_PROPORTION, bounds_of(metric)
    return made


AtKT = TypeVar("AtKT", bound=AtKMetric)


def _at_k(kind: type[AtKT], metric: type[BaseMetric[Completion]], k: int, name: str) -> type[AtKT]:
    if k < 1:
        raise TaskDefinitionError(f"{name} asks for {k} texts; expected at least 1")
    attributes = {
        "NAME": name,
        "METRIC": metric,
        "EXECUTES_CODE": metric.EXECUTES_CODE,
        "COMPANIONS": declared(metric, "COMPANIONS"),
        "PACKAGES": declared(metric, "PACKAGES"),
        "K": k,
        "__doc__": f"{kind.__name__} of {metric.__name__}, k = {k}.",
        # With this module and this name, the version of the metric covers the code of the metric of one text, too.
        "__module__": metric.__module__,
        "__qualname__": f"{kind.__name__}({metric.__qualname__}, {k})",
    }
    return type(f"{kind.__name__}{k}", (kind,), attributes)
