"""Tasks whose answers were given and scored elsewhere: their metrics are known by name, and computed from the scores alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eval_dagster.metrics.base import BaseMetric
from eval_dagster.records import Completion, ResponseType
from eval_dagster.tasks.base import BaseTask

IMPORTED = "imported"
"""The `task` of an eval and the `backend` of a model in evals.yaml whose results are imported."""


@dataclass(frozen=True, kw_only=True)
class RecordedMetric:
    """A metric whose values are known."""

    name: str
    """Without a slash. Its values may have a part after it: `detail/length`."""
    is_share: bool
    """Whether each value tells how right an answer is, from 0 to 1."""
    version: str
    headline: str | None = None
    """The full name of the value that the leaderboard shows, if there are several."""
    higher_is_better: bool = True


class RecordedScore(BaseMetric[Completion]):
    """A score that was given elsewhere."""

    BEST = None


class RecordedTask(BaseTask[str]):
    """A task whose results are imported."""

    NAME = IMPORTED
    DATASET_PATH = IMPORTED
    RESPONSE_TYPE = ResponseType.COMPLETION
    SAMPLE_SPLIT = "evaluated"
    FEWSHOT_SPLIT = "evaluated"


def recorded_task(metrics: Sequence[RecordedMetric]) -> type[BaseTask[Any]]:
    """The task with these metrics; the first one is its headline."""
    return type(RecordedTask.__name__, (RecordedTask,), {**_names(RecordedTask), "METRICS": [_class_of(metric) for metric in metrics]})


def _class_of(metric: RecordedMetric) -> type[BaseMetric[Any]]:
    attributes = {
        "NAME": metric.name,
        "IS_PROPORTION": metric.is_share,
        "HIGHER_IS_BETTER": metric.higher_is_better,
        "VERSION": metric.version,
        "HEADLINE": metric.headline,
    }
    return type(RecordedScore.__name__, (RecordedScore,), {**_names(RecordedScore), **attributes})


def _names(base: type) -> Mapping[str, object]:
    """The names by which the code of a class is found."""
    return {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
