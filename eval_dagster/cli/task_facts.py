"""Facts about a task as text, for the list of tasks and for the page of one task."""

import inspect
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from eval_dagster.metrics.base import response_kind
from eval_dagster.records import Completion
from eval_dagster.tasks.base import BaseTask, subject_name
from eval_dagster.tasks.benchmark import AdapterTask

TaskClass = type[BaseTask[Any]]
_COMMIT = 8
"""Digits of a commit that are shown."""
_SUBJECTS = 4
"""Names of subjects that are shown."""


def dataset(task: TaskClass) -> str:
    """The source of the rows: `organisation/name@commit`, a folder, or the task itself."""
    if task._load_dataset is not BaseTask._load_dataset:
        return "own rows"
    if Path(task.DATASET_PATH).is_absolute() or task.DATASET_PATH.startswith("."):
        return f"folder {task.DATASET_PATH}"
    return f"{task.DATASET_PATH}@{task.DATASET_REVISION[:_COMMIT]}" if task.DATASET_REVISION else f"{task.DATASET_PATH}, no commit"


def fewshot(task: TaskClass, shots: int | None = None, strategy: str | None = None) -> str:
    """The number of examples, and how they are drawn: as the eval sets them, else the task's default."""
    default = task.customary().num_fewshot
    number = str(default) if shots in (None, default) else f"{shots} (the task's default is {default})"
    if task.FEWSHOT_SPLIT is None or issubclass(task, AdapterTask):
        return number
    return f"{number}, {strategy or task.FEWSHOT_STRATEGY} of {task.FEWSHOT_SPLIT}"


def text_length(task: TaskClass) -> str | None:
    """The maximum length of a generated text; None if the task asks for no text."""
    if issubclass(task, AdapterTask) or not any(response_kind(metric) is Completion for metric in task.METRICS):
        return None
    most = task.customary().max_tokens
    if most is None and task._create_samples is not BaseTask._create_samples:  # as a Doc does by its generation_size
        return "each question may set a maximum; without one generation.max_tokens of the model applies, else the rest of its context"
    if most is None:
        return "the task sets no maximum: generation.max_tokens of the model applies, else the rest of its context"
    return f"at most {most} tokens, fewer if generation.max_tokens of the model is lower"


def metrics(task: TaskClass) -> list[str]:
    """The names of the metrics, the headline first."""
    headline = task.HEADLINE_METRIC or task.METRICS[0]
    return list(dict.fromkeys([headline.NAME, *(metric.NAME for metric in task.METRICS)]))


def language(value: Any) -> str:
    """The name of a language or of several: of a text, a member of `Language`, or a collection of these."""
    if value is None:
        return ""
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(dict.fromkeys(language(part) for part in value))
    return str(value)


def source(task: TaskClass) -> str:
    """Licence and origin, without the address of the dataset."""
    text = task.SOURCE.removeprefix(f"https://huggingface.co/datasets/{task.DATASET_PATH}").strip()
    return text[1:-1] if text.startswith("(") and text.endswith(")") else text


def subjects(task: TaskClass) -> str:
    """The number of subjects, and the names of the first ones."""
    names = [subject_name(subject) for subject in task.SUBJECTS]
    if len(names) == 1:
        return names[0]
    return f"{len(names)}: {', '.join(names[:_SUBJECTS])}{', …' if len(names) > _SUBJECTS else ''}"


def description(task: TaskClass) -> str:
    """The first paragraph of the task's docstring."""
    text = inspect.cleandoc(task.__doc__ or "").partition("\n\n")[0]
    return " ".join(text.split())
