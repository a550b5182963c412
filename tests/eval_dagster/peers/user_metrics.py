"""Metric files in eval-framework's style, written beside a task, and their scores."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from eval_dagster.metrics.base import BaseMetric
from eval_dagster.peers.eval_framework.responses import Completion
from eval_dagster.records import Message, Role
from eval_dagster.stages.scores import score_response
from eval_dagster.task_files.loading import load_task

HEAD = """
from eval_framework.metrics.base import BaseMetric, MetricResult
from eval_framework.shared.types import Completion, Error
"""
TASK = """
from {file} import {name}
from eval_framework.tasks.base import NO_SUBJECT, BaseTask, ResponseType


class Asked(BaseTask[str]):
    NAME = "Asked"
    DATASET_PATH = "somebody/questions"
    SAMPLE_SPLIT = "test"
    FEWSHOT_SPLIT = "test"
    SUBJECTS = [NO_SUBJECT]
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS = [{name}]

    def _get_instruction_text(self, item):
        return item["question"]

    def _get_ground_truth(self, item):
        return item["answer"]
"""
Load = Callable[..., type[BaseMetric[Any]]]


def load_metric(folder: Path, text: str, name: str, *, head: str = HEAD) -> type[BaseMetric[Any]]:
    """The metric of a task, from a class in a metric file with this text beside the task's."""
    (folder / "measured.py").write_text(f"{head}{text}")
    (folder / "asked.py").write_text(TASK.format(file="measured", name=name))
    (metric,) = load_task("asked.py:Asked", {}, folder).METRICS
    return metric


def scores(metric: type[BaseMetric[Any]], text: str = "a text", **others: Any) -> dict[str, float | str | None]:
    """The values of a text, or the errors, by name."""
    response = Completion(completion=text, **{"messages": [Message(Role.USER, "What?")], **others})
    return {score.metric: score.error or score.value for score in score_response([metric], [response], None)}
