"""Metrics as lighteval describes them: a function of one sample, and a function of all samples' values."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from statistics import fmean, mean
from typing import Any, Self

import numpy as np

from eval_dagster.errors import DataError
from eval_dagster.tasks.doc import Doc, SamplingMethod

_MEANS = (np.mean, mean, fmean)


@dataclass
class Metric:
    """One metric, or several that are computed together. Fields and their order are the same as in lighteval."""

    metric_name: Any
    """The name; in a grouping, the names of all values."""
    higher_is_better: Any
    """True or false; in a grouping a mapping from each name."""
    category: SamplingMethod
    """The kind of answer that it scores."""
    sample_level_fn: Any
    """A function, or an object with `compute` or `prepare`; it takes `doc` and `model_response`."""
    corpus_level_fn: Any
    """A function of all samples' values, or an object with `compute_corpus`; in a grouping, possibly a mapping from each name."""
    batched_compute: bool = False
    """Whether the function takes lists of docs and responses."""

    @property
    def value(self) -> Self:
        """The metric itself, as members of an enum have it."""
        return self

    @property
    def names(self) -> list[str]:
        """The names of its values."""
        return [self.metric_name] if isinstance(self.metric_name, str) else list(self.metric_name)

    def __call__(self, sample_params: Mapping[str, object] | None = None) -> Self:
        """The metric with other parameters of its sample function. They become part of its name, as `pass@k:k=1&n=16`."""
        made = deepcopy(self)
        for name, value in (sample_params or {}).items():
            setattr(made.sample_level_fn, name, value)
        shown = "&".join(f"{name}={getattr(value, '__name__', value)}" for name, value in (sample_params or {}).items())
        if isinstance(self.metric_name, str) and not isinstance(self, MetricGrouping):
            made.metric_name = f"{self.metric_name}:{shown}"
        else:
            own = getattr(made.sample_level_fn, "metric_names", None)
            made.metric_name = list(own) if own else [f"{name}:{shown}" for name in self.names]
        return made

    def is_higher_better(self, name: str) -> bool:
        """The direction of one of its values."""
        return bool(_of_name(self.higher_is_better, name, True))

    def aggregation(self, name: str) -> Any:
        """The function that aggregates all samples' values of a name; None for their mean."""
        found = _of_name(self.corpus_level_fn, name, None)
        return None if any(found is each for each in _MEANS) else found

    def sample_value(self, name: str, doc: Doc, response: Any) -> Any:
        """One of the values of a sample.

        Raises:
            DataError: The sample function gives no such value.
        """
        found = self._call(doc, response)
        if isinstance(found, Mapping) and (isinstance(self, MetricGrouping) or name in found):
            if name not in found:
                raise DataError(f"the sample function of the metrics {self.names} gave {sorted(found)}; expected {name!r} among them")
            return found[name]
        return found

    def _call(self, doc: Doc, response: Any) -> Any:
        function = next(
            (
                getattr(self.sample_level_fn, name)
                for name in ("compute", "prepare", "__call__")
                if callable(getattr(self.sample_level_fn, name, None))
            ),
            None,
        )
        if function is None:
            raise DataError(
                f"the metric {self.metric_name} has the sample_level_fn {self.sample_level_fn!r}; expected a function of doc and "
                "model_response, or an object with such a method compute or prepare"
            )
        if not self.batched_compute:
            return function(doc=doc, model_response=response)
        found = function(docs=[doc], responses=[response])
        return found[0] if isinstance(found, Sequence) else {key: value[0] for key, value in found.items()}


@dataclass
class MetricGrouping(Metric):
    """Several metrics of one computation."""


@dataclass
class SampleLevelMetric(Metric):
    """A metric of each sample; the corpus function is usually a mean."""


@dataclass
class CorpusLevelMetric(Metric):
    """A metric of all samples together."""


@dataclass
class SampleLevelMetricGrouping(MetricGrouping):
    """Several metrics of each sample."""


@dataclass
class CorpusLevelMetricGrouping(MetricGrouping):
    """Several metrics of all samples together."""


def _of_name(given: Any, name: str, default: Any) -> Any:
    """A grouping's setting for one name. A name with parameters falls back on the name before the colon."""
    if not isinstance(given, Mapping):
        return given
    return given.get(name, given.get(name.partition(":")[0], default))
