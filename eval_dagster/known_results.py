"""Which results a Dagster instance knows, so that a command which has nothing to tell it need not load Dagster, which takes a second."""

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, partition_key
from eval_dagster.stores.whole_files import replaced

Partition = tuple[str, str]
"""An eval and a model."""
_EVENTS = ("index.db", "index.db-wal")
"""The files of the instance with the events of all assets."""


def note_known(project: Project, partitions: Iterable[Partition]) -> None:
    """Note that the Dagster instance knows the newest results of evals and models, and none of them as failed.

    The note holds until anything writes another event to the instance. Without its files, as with PostgreSQL, nothing is noted.
    """
    events, file = _events(project), _file(project)
    results = {partition_key(*each): _newest(project, each) for each in partitions}
    with suppress(OSError):
        if events is None:
            file.unlink(missing_ok=True)
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        with replaced(file) as temporary:
            temporary.write_text(json.dumps({"events": events, "results": results}), "utf-8")


def are_known(project: Project, partitions: Iterable[Partition]) -> bool:
    """Whether the Dagster instance knows the newest results of evals and models. False if that is not certain."""
    try:
        noted = json.loads(_file(project).read_text("utf-8"))
    except (OSError, ValueError):
        return False
    events = _events(project)
    return (
        events is not None
        and noted["events"] == events
        and all(noted["results"].get(partition_key(*each)) == _newest(project, each) for each in partitions)
    )


def _file(project: Project) -> Path:
    return project.home / "watch" / "known_results.json"


def _events(project: Project) -> list[object] | None:
    """The state of the instance's events, with the names of the project's assets in it. None if it cannot be told from files."""
    folder = Path(os.environ.get("DAGSTER_HOME") or project.home / "dagster")
    found: list[object] = [str(folder), list(project.config.dagster.key_prefix)]
    for name in _EVENTS:
        try:
            state = (folder / "history" / "runs" / name).stat()
            found.append([state.st_size, state.st_mtime_ns])
        except OSError:
            found.append(None)
    return None if found[2] is None else found


def _newest(project: Project, partition: Partition) -> list[str | None]:
    """The names of the newest file of each stage."""
    lake, (eval_name, model) = project.lake, partition
    folders = [lake.folder(table, eval_name, None if table == "samples" else model) for table in STAGES.values()]
    return [next((path.name for path in reversed(lake.readable_files(folder))), None) for folder in folders]
