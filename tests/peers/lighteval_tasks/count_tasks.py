"""Counts which of lighteval's own tasks load: `python tests/peers/lighteval_tasks/count_tasks.py <site-packages>/lighteval/tasks/tasks`."""

import sys
from collections import defaultdict
from pathlib import Path

from eval_dagster.errors import EvalDagsterError, TaskDefinitionError
from eval_dagster.peers.lighteval.config import LightevalTaskConfig
from eval_dagster.task_files.loading import _import_file, check_task


def count(folder: Path) -> tuple[list[str], dict[str, list[str]]]:
    """The names of the tasks that load, and for each reason what does not: names of tasks, or files whose tasks are not known."""
    loaded: list[str] = []
    refused: dict[str, list[str]] = defaultdict(list)
    for file in sorted(folder.rglob("*.py")):
        if "TASKS_TABLE" not in file.read_text("utf-8"):
            continue
        try:
            module = _import_file(file, folder)
        except TaskDefinitionError as error:
            refused[str(error)].append(str(file.relative_to(folder)))
            continue
        for config in module.TASKS_TABLE:
            try:
                assert isinstance(config, LightevalTaskConfig)
                check_task(config.task_class(config.name, module.__name__))
                loaded.append(config.name)
            except EvalDagsterError as error:
                refused[str(error)].append(config.name)
    return loaded, refused


def main() -> None:
    """Print the counts."""
    loaded, refused = count(Path(sys.argv[1]).resolve())
    print(f"{len(loaded)} tasks load, of {len(set(loaded))} names")  # noqa: T201 - a command
    for reason, names in sorted(refused.items(), key=lambda pair: -len(pair[1])):
        print(f"{len(names)} not ({', '.join(names[:5])}): {reason}")  # noqa: T201


if __name__ == "__main__":
    main()
