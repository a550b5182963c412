"""The command `tasks` without a name: lists the tasks that evals can use."""

import os
from collections.abc import Mapping, Sequence

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from eval_dagster.cli import task_facts
from eval_dagster.cli.console import out
from eval_dagster.cli.task_facts import TaskClass
from eval_dagster.errors import ConfigError, TaskDefinitionError, UsageError
from eval_dagster.project import Project, default_config_path
from eval_dagster.task_files.registries import opened_registry

_COLUMNS = ("task", "type", "few-shot", "metrics")
_WIDEST = 40
"""Characters of a column."""


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
    _print(tasks)
    out.print("An eval of evals.yaml names one as `task: NAME`; a task of your own is path/to/file.py:Class.")
    out.print("`eval-dagster tasks NAME` shows an example of one and checks its prompts.")
    if problems:
        raise UsageError("\n".join(problems))


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


def _print(tasks: Mapping[str, TaskClass]) -> None:
    """Print two lines for each task: its name and form, and the source of its rows."""
    rows = [(name, task.RESPONSE_TYPE.value, task_facts.fewshot(task), ", ".join(task_facts.metrics(task))) for name, task in tasks.items()]
    widths = [min(max(map(len, column)), _WIDEST) for column in zip(_COLUMNS, *rows, strict=True)]
    out.print(_line(_COLUMNS, widths), style="bold")
    out.rule(style="dim")
    for row, task in zip(rows, tasks.values(), strict=True):
        count = len(task.SUBJECTS)
        about = [
            task_facts.dataset(task),
            f"{count} subjects" if count > 1 else "",
            task_facts.language(task.LANGUAGE),
            task_facts.source(task),
        ]
        out.print(_line(row, widths))
        out.print(Padding(Text(" · ".join(filter(None, about)), style="dim"), (0, 0, 0, 2)))
    out.print()


def _line(cells: Sequence[str], widths: Sequence[int]) -> Table:
    """A line whose cells are aligned with other lines. The last column, the metrics, takes the remaining width."""
    line = Table.grid(padding=(0, 2))
    for width in widths[:-1]:
        line.add_column(width=width, overflow="fold")
    line.add_column()
    line.add_row(*map(Text, cells))
    return line
