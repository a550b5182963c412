"""What many workers gain: workers that sleep show the cost of the pool, the demo model shows what dividing its requests computes twice.

    python tests/benchmarks/pool.py sleep --workers 64
    python tests/benchmarks/pool.py demo

Times are from all workers ready to the last answer.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval_dagster.config.models import ScriptedModel, WorkersConfig
from eval_dagster.lake.format.parquet_files import read_rows
from eval_dagster.lake.tables.rows import request_of
from eval_dagster.models.base import ModelHandle
from eval_dagster.models.pooled.handle import PooledModel, open_handle
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import LogReporter, SilentReporter, use_reporter
from eval_dagster.project import Project
from eval_dagster.records import GenerationSettings, ModelResponse, Request
from eval_dagster.stages.partition import Partition

_ROOT = Path(__file__).resolve().parents[2]
_ANSWER = """
import time

def answer(request):
    time.sleep(float(request.prompt.split()[0]))
    return "slept"
"""
_SEED = 17
"""A multiplier modulo a prime, so that the seconds of requests differ in a fixed way."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One call of a pool."""

    seconds: float
    answers: dict[str, ModelResponse]
    tokens: int
    """That went through the networks of all workers."""


def sleeping(workers: int, each: int, seconds: float) -> dict[str, Any]:
    """Workers whose answers take half to one and a half times `seconds`; each worker has about `each` requests."""
    lengths = [seconds * (0.5 + (index * _SEED % 101) / 101) for index in range(workers * each)]
    requests = [
        Request(request_id=f"{index}", prompt=f"{length:.4f} s for {index}", generation=GenerationSettings(max_tokens=64))
        for index, length in enumerate(lengths)
    ]
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "answers.py").write_text(_ANSWER)
        config = WorkersConfig(count=workers, cpus=1 / 64, patience_s=900)
        section = ScriptedModel(backend="scripted", function="answers.py:answer", workers=config)
        found = measured(open_handle("sleepers", section, folder=Path(name), home=Path(name)), workers, requests)
    return {
        "workers": workers,
        "requests": len(requests),
        "sleep_s": round(sum(lengths), 1),
        "seconds": round(found.seconds, 2),
        "efficiency": round(sum(lengths) / workers / found.seconds, 3),
    }


def demo() -> dict[str, Any]:
    """The demo model with one worker and with two, one thread each, on the requests of the demo suite."""
    with tempfile.TemporaryDirectory() as name:
        project = Project.open(config_path=_ROOT / "evals.yaml", home=Path(name))
        evals, models = project.select(suite="demo")
        requests = _requests(project, evals, models[0])
        runs = []
        for count in (1, 2):
            section = project.model(models[0]).model_copy(update={"workers": WorkersConfig(count=count, cpus=1)})
            runs.append(measured(open_handle(models[0], section, folder=project.folder, home=project.home), count, requests))
    one, two = runs
    pairs = [(one.answers[name], two.answers[name]) for name in one.answers]
    return {
        "requests": len(requests),
        "seconds": [round(run.seconds, 1) for run in runs],
        "efficiency": round(one.seconds / two.seconds / 2, 3),
        "tokens": [run.tokens for run in runs],
        "tokens_more": round(two.tokens / one.tokens, 4),
        "texts_differ": sum(before.text != after.text for before, after in pairs),
        "largest_difference": max(
            (abs(x - y) for before, after in pairs for x, y in zip(before.logprobs, after.logprobs, strict=True)), default=0.0
        ),
    }


def measured(handle: ModelHandle, workers: int, requests: Sequence[Request]) -> Measured:
    """Wait for all workers, then ask."""
    began = time.monotonic()
    with use_reporter(LogReporter(lambda line: print(line, flush=True))):  # noqa: T201
        model = handle.load()
        assert isinstance(model, PooledModel)
        model.wait(workers)
    print(f"{workers} workers ready after {time.monotonic() - began:.1f} s", flush=True)  # noqa: T201
    began = time.monotonic()
    answers = {request.request_id: response for request, response in model.respond(requests)}
    seconds = time.monotonic() - began
    assert len(answers) == len(requests)
    assert not any(response.error for response in answers.values())
    return Measured(seconds=seconds, answers=answers, tokens=sum(usage.computed() for usage in model.usage()))


def _requests(project: Project, evals: Sequence[str], model: str) -> list[Request]:
    partitions = [(name, model) for name in evals]
    list(evaluate(project, partitions, stages={"dataset_snapshot", "rendered_prompts"}, run_id="bench", reporter=SilentReporter()))
    files = [Partition(project=project, eval_name=name, model=model, run_id="bench").require("rendered_prompts") for name in evals]
    return list({row["request_id"]: request_of(row) for file in files for row in read_rows(file.path)}.values())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("sleep", "demo"))
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--each", type=int, default=80)
    parser.add_argument("--seconds", type=float, default=0.25)
    chosen = parser.parse_args()
    load = os.getloadavg()
    result = demo() if chosen.what == "demo" else sleeping(chosen.workers, chosen.each, chosen.seconds)
    print(json.dumps({**result, "load_before": load[0], "load_after": os.getloadavg()[0]}))  # noqa: T201
