"""Looks at a model that can change behind its name, before a run plans what to ask."""

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

from eval_dagster.lake.files import read_table
from eval_dagster.lake.responses import ResponseCache
from eval_dagster.lake.rows import request_of
from eval_dagster.models.base import WatchedHandle
from eval_dagster.models.looks import Known, Look
from eval_dagster.progress.reporting import Reporter, use_reporter
from eval_dagster.project import Project
from eval_dagster.stages.partition import Partition
from eval_dagster.versions import stable_hash

T = TypeVar("T")
_EVALS, _REQUESTS = 3, 40
"""Evals, and requests of them, among which a look finds some with cached answers."""


def look_at(project: Project, model: str, evals: Sequence[str], run_id: str, reporter: Reporter) -> Look:
    """Look at a model, if it can change. The versions of its handle have the result from then on."""
    handle = project.handle(model)
    if not isinstance(handle, WatchedHandle):
        return Look()
    with use_reporter(reporter):
        return handle.look(partial(_known, project, model, evals, run_id), run_id)


def _known(project: Project, model: str, evals: Sequence[str], run_id: str) -> list[Known]:
    """Some requests of the run with cached answers, in an order that is another one in each run."""
    rows: list[dict[str, Any]] = []
    for name in _drawn(evals, _EVALS, run_id):
        prompts = Partition(project=project, eval_name=name, model=model, run_id=run_id).current("rendered_prompts")
        if prompts is not None:
            table = read_table(prompts.path)
            rows += table.take(_drawn(range(len(table)), _REQUESTS, run_id)).to_pylist()
    chosen = {row["request_id"]: row for row in rows if row["error"] is None}
    found = ResponseCache(project.lake, project.handle(model).version()).find(list(chosen))
    return [(request_of(chosen[name]), found[name]) for name in _drawn([name for name in chosen if name in found], _REQUESTS, run_id)]


def _drawn(items: Sequence[T], count: int, run_id: str) -> list[T]:
    """Some of the items, drawn by their hashes with the run."""
    return sorted(items, key=lambda item: stable_hash([run_id, item]))[:count]
