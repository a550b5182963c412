"""The command `tasks` without a name: lists the tasks that evals can use, with facts about each."""

import os
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from eval_dagster.cli.console import out
from eval_dagster.datasets.assets import keys_in
from eval_dagster.errors import ConfigError, TaskDefinitionError, UsageError
from eval_dagster.project import Project, default_config_path
from eval_dagster.task_files.registries import opened_registry
from eval_dagster.tasks.base import BaseTask
from eval_dagster.tasks.benchmark import AdapterTask

TaskClass = type[BaseTask[Any]]
_COLUMNS = ("task", "type", "few-shot", "metrics")
_WIDEST = 40
"""Characters of a column."""
_COMMIT = 8
"""Digits of a commit that are shown."""


def list_tasks() -> None:
    """Print the registry, and the tasks that evals.yaml names by file; then fail if evals.yaml or one of its tasks is wrong."""
    project, problem = open_project()
    problems = [] if problem is None else [str(problem)]
    tasks: dict[str, TaskClass] = {}
    for name in project.task_names():
        try:
            tasks[name] = project.named_task(name)
        except TaskDefinitionError as error:
            problems.append(f"{name}: {error}")
    rows = [(name, task.RESPONSE_TYPE.value, fewshot_of(task), ", ".join(metric_names(task))) for name, task in tasks.items()]
    widths = [min(max(map(len, column)), _WIDEST) for column in zip(_COLUMNS, *rows, strict=True)]
    out.print(_line(_COLUMNS, widths), style="bold")
    out.rule(style="dim")
    for row, task in zip(rows, tasks.values(), strict=True):
        count = len(task.SUBJECTS)
        about = [dataset_of(task), f"{count} subjects" if count > 1 else "", language_name(task.LANGUAGE), source_of(task)]
        out.print(_line(row, widths))
        out.print(Padding(Text(" · ".join(filter(None, about)), style="dim"), (0, 0, 0, 2)))
    out.print()
    out.print("An eval of evals.yaml names one as `task: NAME`; a task of your own is path/to/file.py:Class.")
    out.print("`eval-dagster tasks NAME` shows an example of one and checks its prompts.")
    if problems:
        raise UsageError("\n".join(problems))


def _line(cells: Sequence[str], widths: Sequence[int]) -> Table:
    """A line whose cells are aligned with other lines. The last column, the metrics, takes the remaining width."""
    line = Table.grid(padding=(0, 2))
    for width in widths[:-1]:
        line.add_column(width=width, overflow="fold")
    line.add_column()
    line.add_row(*map(Text, cells))
    return line


def list_registry(source: str, words: Sequence[str]) -> None:
    """Print the names of a registry of another package.

    Args:
        source: The registry.
        words: Only names that hold all of these words.

    Raises:
        TaskDefinitionError: The registry is unknown.
    """
    project, _ = open_project()
    registry = opened_registry(source, project.folder, project.config.environments)
    wanted = [word.casefold() for word in words]
    found = {name: listed for name, listed in registry.names().items() if all(word in name.casefold() for word in wanted)}
    width = max(map(len, found), default=0)
    # Plain lines: a table of 13,000 rows would be measured for seconds.
    out.file.writelines(f"{name:{width}}  {' · '.join(filter(None, (each.kind, each.detail)))}\n" for name, each in sorted(found.items()))
    out.print(f"{len(found):,} names" + (f" with {' and '.join(map(repr, wanted))}" if wanted else ""), highlight=False)
    if found:
        name = min(found, key=lambda each: (len(each), each))
        out.print(f"`eval-dagster tasks {source}:{name}` shows one; an eval names it as `task: {source}:{name}`.", soft_wrap=True)


def open_project() -> tuple[Project, ConfigError | None]:
    """The project of this folder. If evals.yaml is missing or wrong, a project of the registered tasks, and the error of a wrong file."""
    try:
        return Project.open(), None
    except ConfigError as error:
        is_there = default_config_path().exists() or "EVAL_DAGSTER_CONFIG" in os.environ
        return Project.bare(), error if is_there else None


def dataset_of(task: TaskClass) -> str:
    """The source of the rows: `organisation/name@commit`, a folder, or the task itself."""
    if task._load_dataset is not BaseTask._load_dataset:
        return "own rows"
    if Path(task.DATASET_PATH).is_absolute() or task.DATASET_PATH.startswith("."):
        return f"folder {task.DATASET_PATH}"
    if keys_in(task.DATASET_PATH):
        return task.DATASET_PATH
    return f"{task.DATASET_PATH}@{task.DATASET_REVISION[:_COMMIT]}" if task.DATASET_REVISION else f"{task.DATASET_PATH}, no commit"


def fewshot_of(task: TaskClass, shots: int | None = None, strategy: str | None = None) -> str:
    """The number of examples, and how they are drawn: as the eval sets them, else the task's default."""
    default = task.customary().num_fewshot
    number = str(default) if shots in (None, default) else f"{shots} (the task's default is {default})"
    if task.FEWSHOT_SPLIT is None or issubclass(task, AdapterTask):
        return number
    return f"{number}, {strategy or task.FEWSHOT_STRATEGY} of {task.FEWSHOT_SPLIT}"


def metric_names(task: TaskClass) -> list[str]:
    """The names of the metrics, the headline first."""
    headline = task.HEADLINE_METRIC or task.METRICS[0]
    return list(dict.fromkeys([headline.NAME, *(metric.NAME for metric in task.METRICS)]))


def language_name(value: Any) -> str:
    """The name of a language or of several: of a text, a member of `Language`, or a collection of these."""
    if value is None:
        return ""
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(dict.fromkeys(language_name(part) for part in value))
    return str(value)


def source_of(task: TaskClass) -> str:
    """Licence and origin, without the address of the dataset."""
    text = task.SOURCE.removeprefix(f"https://huggingface.co/datasets/{task.DATASET_PATH}").strip()
    return text[1:-1] if text.startswith("(") and text.endswith(")") else text
