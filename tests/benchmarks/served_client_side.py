"""The client alone: `python served_client_side.py WORK.json RESULT.json FOLDER respond|ask`. Its server answers at once, on another core.

`respond` is the model alone; `ask` is the stage, which also stores each answer in the response cache.
"""

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import psutil
import yaml

from eval_dagster.progress import SilentReporter
from eval_dagster.project import Project
from eval_dagster.records import GenerationSettings, Request
from eval_dagster.stages.inference import AskedModel, ask

_PARTS = 10
"""The memory is looked at after each of so many parts of the requests."""


class _Requests(Sequence[Request]):
    """Requests that are made when they are sent, so that the memory is that of the client."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._settings = GenerationSettings(max_tokens=16)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Request: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Request]: ...
    def __getitem__(self, index: int | slice) -> Request | Sequence[Request]:
        if isinstance(index, slice) or not 0 <= index < self._count:
            raise IndexError(index)
        prompt = f"Question {index}: what is {index} and one?\nAnswer:"
        return Request(request_id=f"{index:032x}", prompt=prompt, generation=self._settings)

    def __iter__(self) -> Iterator[Request]:
        return (self[index] for index in range(self._count))


def main(work_file: str, result_file: str, _folder: str, what: str) -> None:
    """`WORK.json` has `base_url`, `model`, `requests`, `home`, and `concurrency` if it is fixed."""
    work = json.loads(Path(work_file).read_text("utf-8"))
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    home = Path(work["home"])
    model = {"backend": "openai", "base_url": work["base_url"], "model": work["model"], "concurrency": work.get("concurrency")}
    home.joinpath("evals.yaml").write_text(yaml.safe_dump({"models": {"served": model}, "evals": {"any": {"task": "arithmetic"}}}), "utf-8")
    project = Project.open(config_path=home / "evals.yaml", home=home)
    project.handle("served").check()
    requests = _Requests(work["requests"])
    measured = _asked if what == "ask" else _responded
    started, cpu_started = time.perf_counter(), time.process_time()
    result = measured(project, requests)
    result |= {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu_started}
    Path(result_file).write_text(json.dumps(result), "utf-8")


def _responded(project: Project, requests: Sequence[Request]) -> dict[str, Any]:
    memory = [psutil.Process().memory_info().rss]
    for number, (_, response) in enumerate(project.handle("served").load().respond(requests), start=1):
        if response.error is not None:
            raise RuntimeError(response.error)
        if number % (len(requests) // _PARTS) == 0:
            memory.append(psutil.Process().memory_info().rss)
    return {"memory_bytes": memory}


def _asked(project: Project, requests: Sequence[Request]) -> dict[str, Any]:
    asked = AskedModel(project=project, name="served", version=project.handle("served").version(), run_id="benchmark")
    run = ask(asked, requests, {request.request_id: "any" for request in requests}, SilentReporter())
    errors = [row["error"] for row in run.answers.values() if row["error"] is not None]
    if run.failure or errors or len(run.answers) != len(requests):
        raise RuntimeError(f"{len(run.answers)} of {len(requests)} requests were answered: {run.failure or errors[:1]}")
    return {}


if __name__ == "__main__":
    main(*sys.argv[1:])
