"""Metric classes of this project, made of lighteval's metrics: one class for each name of a value."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, SupportsFloat

import numpy as np
from numpy.typing import NDArray

from eval_dagster.errors import DataError, TaskDefinitionError
from eval_dagster.metrics.base import BaseMetric, CorpusMetric, LoglikelihoodMetric, PerplexityMetric, RepeatedMetric
from eval_dagster.metrics.fields import context_field
from eval_dagster.metrics.items import Item, ItemMetric
from eval_dagster.peers.lighteval.members import Metrics
from eval_dagster.peers.lighteval.metric import Metric
from eval_dagster.peers.lighteval.responses import generated, of_text, scored
from eval_dagster.records import Completion, Loglikelihood, Row
from eval_dagster.tasks.doc import Doc, SamplingMethod
from eval_dagster.texts.suggestions import did_you_mean

_VERSION = "2"
"""Version of the scores of these metrics. Before 2, all files of a process shared `Metrics`, so that one file could change the metrics of
another."""
DOC_INDEX = "lighteval_doc"
"""Field of the context with the position of a sample's `Doc`, if a row has several."""


@dataclass(frozen=True)
class Origin:
    """The parts of a metric class."""

    metric: Metric
    name: str
    docs: Callable[[Row], Sequence[Doc]]
    """Makes the `Doc`s of a row."""

    def value(self, view: Completion | Loglikelihood, response: Any) -> Any:
        """The result of the sample function, of any type."""
        doc = self.docs(view.row)[context_field(view, DOC_INDEX) or 0]
        return self.metric.sample_value(self.name, doc, response)

    def number(self, view: Completion | Loglikelihood, response: Any) -> float:
        """The result of the sample function as a number.

        Raises:
            DataError: It is not a number.
        """
        value = self.value(view, response)
        if not isinstance(value, SupportsFloat):
            raise DataError(f"the sample function of the metric {self.name} gave {value!r}; expected a number")
        return float(value)


class GenerativeMetric(RepeatedMetric):
    """A mean over the samples, of the texts of each."""

    ORIGIN: ClassVar[Origin]

    def calculate_all(self, responses: Sequence[Completion]) -> float:
        """Return the sample function's value of all texts of a prompt."""
        return self.ORIGIN.number(responses[0], generated(responses))


class ChoiceMetric(LoglikelihoodMetric):
    """A mean over the samples, of the choices' log-probabilities."""

    ORIGIN: ClassVar[Origin]

    def calculate(self, response: Loglikelihood) -> float:
        """Return the sample function's value."""
        return self.ORIGIN.number(response, scored(response))


class WholeTextMetric(PerplexityMetric):
    """A mean over the samples, of the log-probabilities of a text's tokens."""

    SCORES_CHOICES = False
    ORIGIN: ClassVar[Origin]

    def calculate(self, response: Loglikelihood) -> float:
        """Return the sample function's value."""
        return self.ORIGIN.number(response, of_text(response))


class _Summed(CorpusMetric[Any]):
    """A value of sums over the samples."""

    ORIGIN: ClassVar[Origin]

    def calculate(self, response: Any) -> Mapping[str, float]:
        """Return what the sample adds to the sums."""
        seen = _response_of(self.ORIGIN.metric, response)
        statistics = self.ORIGIN.metric.aggregation(self.ORIGIN.name).statistics(self.ORIGIN.value(response, seen))
        return dict(zip(self.STATISTICS, map(float, statistics), strict=True))

    @classmethod
    def aggregate(cls, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the corpus function's value of sums."""
        return np.asarray(cls.ORIGIN.metric.aggregation(cls.ORIGIN.name).aggregate(sums))


class SummedGenerativeMetric(_Summed, CorpusMetric[Completion]):
    """A value of sums over the samples, of generated texts."""


class SummedChoiceMetric(_Summed, CorpusMetric[Loglikelihood], LoglikelihoodMetric):
    """A value of sums over the samples, of the choices' log-probabilities."""


class SummedWholeTextMetric(_Summed, CorpusMetric[Loglikelihood], PerplexityMetric):
    """A value of sums over the samples, of texts' log-probabilities."""

    SCORES_CHOICES = False


class _OfItems(ItemMetric[Any]):
    """A value of the items of all samples."""

    ORIGIN: ClassVar[Origin]

    def calculate(self, response: Any) -> Item:
        """Return the result of the sample function."""
        return self.ORIGIN.value(response, _response_of(self.ORIGIN.metric, response))

    @classmethod
    def aggregate(cls, items: Sequence[Item]) -> float:
        """Return the corpus function's result for all items."""
        function = cls.ORIGIN.metric.aggregation(cls.ORIGIN.name)
        found = getattr(function, "compute_corpus", function)(items)
        return float(found[cls.ORIGIN.name] if isinstance(found, Mapping) else found)


class GenerativeItemMetric(_OfItems, ItemMetric[Completion]):
    """A value of the items of all samples, of generated texts."""


class ChoiceItemMetric(_OfItems, ItemMetric[Loglikelihood], LoglikelihoodMetric):
    """A value of the items of all samples, of the choices' log-probabilities."""


class WholeTextItemMetric(_OfItems, ItemMetric[Loglikelihood], PerplexityMetric):
    """A value of the items of all samples, of texts' log-probabilities."""

    SCORES_CHOICES = False


_MEANS: Mapping[SamplingMethod, type[BaseMetric]] = {
    SamplingMethod.GENERATIVE: GenerativeMetric,
    SamplingMethod.LOGPROBS: ChoiceMetric,
    SamplingMethod.PERPLEXITY: WholeTextMetric,
}
_SUMS: Mapping[SamplingMethod, type[BaseMetric]] = {
    SamplingMethod.GENERATIVE: SummedGenerativeMetric,
    SamplingMethod.LOGPROBS: SummedChoiceMetric,
    SamplingMethod.PERPLEXITY: SummedWholeTextMetric,
}

_ITEMS: Mapping[SamplingMethod, type[BaseMetric]] = {
    SamplingMethod.GENERATIVE: GenerativeItemMetric,
    SamplingMethod.LOGPROBS: ChoiceItemMetric,
    SamplingMethod.PERPLEXITY: WholeTextItemMetric,
}


def known_metric(given: Any, task: str, metrics: type[Metrics] = Metrics) -> Metric | type[BaseMetric]:
    """The metric that a configuration means.

    Args:
        given: A metric of lighteval, the name of a member of `Metrics`, or a metric class of this project.
        task: The task's name, for messages.
        metrics: `Metrics` as the task's file left it.

    Raises:
        TaskDefinitionError: It is something else.
    """
    found = given
    if isinstance(given, str):
        members = [name for name in vars(metrics) if not name.startswith("_")]
        found = vars(metrics).get(given)
        if found is None:
            raise TaskDefinitionError(f"the LightevalTaskConfig {task!r} has the metric {given!r}{did_you_mean(given, members)}")
    if isinstance(found, Metric) or (isinstance(found, type) and issubclass(found, BaseMetric)):
        return found
    raise TaskDefinitionError(
        f"the LightevalTaskConfig {task!r} has {given!r} among its metrics; expected a member of Metrics, a SampleLevelMetric, a "
        "CorpusLevelMetric, a grouping of these, or a metric class of eval_dagster"
    )


def metric_classes(metric: Metric, docs: Callable[[Row], Sequence[Doc]], module: str) -> list[type[BaseMetric]]:
    """The metric classes of a metric of lighteval.

    Args:
        metric: The metric.
        docs: Makes the `Doc`s of a row.
        module: The module of the task file, which belongs to the version of the classes.
    """
    return [_metric_class(Origin(metric=metric, name=name, docs=docs), module) for name in metric.names]


def _metric_class(origin: Origin, module: str) -> type[BaseMetric]:
    metric, function = origin.metric, origin.metric.sample_level_fn
    aggregation = metric.aggregation(origin.name)
    attributes: dict[str, Any] = {
        "NAME": origin.name.replace("/", "_"),
        "ORIGIN": origin,
        "HIGHER_IS_BETTER": metric.is_higher_better(origin.name),
        "BEST": None,
        "VERSION": _VERSION,
        # A class within a function: its version is that of the task file as a whole, which holds what it is made of.
        "__module__": module,
        "__qualname__": f"LightevalMetric.<locals>.{origin.name}",
        "__doc__": type(function).__doc__ if aggregation is None else type(aggregation).__doc__,
    }
    if aggregation is None:
        attributes |= {"IS_PROPORTION": getattr(function, "IS_PROPORTION", False), "BEST": getattr(function, "BEST", None)}
        # A subclass in a task file may compute values outside of the inherited bounds.
        is_own = type(function).__module__.startswith("eval_dagster.")
        attributes["BOUNDS"] = function.bounds() if is_own else vars(type(function)).get("BOUNDS")
        return type(origin.name, (_MEANS[metric.category],), attributes)
    if statistics := getattr(aggregation, "STATISTICS", ()):
        attributes["STATISTICS"] = tuple(statistics)
        return type(origin.name, (_SUMS[metric.category],), attributes)
    return type(origin.name, (_ITEMS[metric.category],), attributes)


def _response_of(metric: Metric, view: Any) -> Any:
    if metric.category is SamplingMethod.GENERATIVE:
        return generated([view])
    return scored(view) if metric.category is SamplingMethod.LOGPROBS else of_text(view)
