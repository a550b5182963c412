"""Which results a Dagster instance knows, so that a command which has nothing to tell it need not load Dagster, which takes a second."""

import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, partition_key
from eval_dagster.stores.whole_files import replaced

Partition = tuple[str, str]
"""An eval and a model."""
ELSEWHERE = ("storage", "run_storage", "event_log_storage", "schedule_storage")
"""Keys of dagster.yaml by which the databases of an instance are not in its folder."""
_EVENTS = ("index.db", "index.db-wal")
"""The files of the instance with the events of all assets."""


def note_known(project: Project, partitions: Iterable[Partition]) -> None:
    """Note that the Dagster instance knows the newest results of evals and models, and none of them as failed.

    The note holds until anything writes another event to the instance. Nothing is noted if its events are not in files, as with PostgreSQL,
    nor of a lake that other machines write to.
    """
    events, file = _events(project), _file(project)
    with suppress(OSError):
        if events is None:
            file.unlink(missing_ok=True)
            return
        results = {partition_key(*each): _newest(project, each) for each in partitions}
        file.parent.mkdir(parents=True, exist_ok=True)
        with replaced(file) as temporary:
            temporary.write_text(json.dumps({"events": events, "results": results}), "utf-8")


def are_known(project: Project, partitions: Iterable[Partition]) -> bool:
    """Whether the Dagster instance knows the newest results of evals and models. False if that is not certain."""
    events = _events(project)
    try:
        noted = json.loads(_file(project).read_text("utf-8"))
        before, results = noted["events"], dict(noted["results"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return (
        events is not None and before == events and all(results.get(partition_key(*each)) == _newest(project, each) for each in partitions)
    )


def _file(project: Project) -> Path:
    return project.home / "watch" / "known_results.json"


def _events(project: Project) -> list[object] | None:
    """What changes when the instance gets an event, moves or is set up anew, or when the assets get other names.

    None if the events are not in files, or others write to the lake.
    """
    folder = Path(os.environ.get("DAGSTER_HOME") or project.home / "dagster")
    try:
        settings = (folder / "dagster.yaml").read_text("utf-8")
    except (OSError, ValueError):
        return None
    if project.lake.mirror is not None or re.search(rf"\b({'|'.join(ELSEWHERE)})\b", settings):
        return None
    found: list[object] = [str(folder), settings, list(project.config.dagster.key_prefix)]
    for name in _EVENTS:
        try:
            state = (folder / "history" / "runs" / name).stat()
            found.append([state.st_size, state.st_mtime_ns])
        except OSError:
            found.append(None)
    return None if found[-len(_EVENTS)] is None else found


def _newest(project: Project, partition: Partition) -> list[str | None]:
    """The names of the newest file of each stage."""
    lake, (eval_name, model) = project.lake, partition
    folders = [lake.folder(table, eval_name, None if table == "samples" else model) for table in STAGES.values()]
    return [next((path.name for path in reversed(lake.readable_files(folder))), None) for folder in folders]
