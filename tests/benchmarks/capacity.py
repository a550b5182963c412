"""What `eval-dagster plan` predicts, and what runs take: pools of 8, 64 and 256 workers that sleep.

`python tests/benchmarks/capacity.py`. The workers are threads, because so many processes would not fit into one machine. All else is that
of a run: the requests are cut and given out by the pool, and the answers are stored by the stage that asks a model.
"""

import random
import sys
import tempfile
import threading
import time
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from eval_dagster.models.pooled.handle import PooledModel
from eval_dagster.models.pooled.worker import Batch
from eval_dagster.models.scripted import ScriptedHandle
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.records import GenerationSettings, ModelResponse, Request
from eval_dagster.stages.inference import AskedModel, ask
from eval_dagster.statistics.capacity import Work, fit, run_seconds

REQUEST_S, READ_S, WRITTEN_S = 0.03, 0.0003, 0.006
"""What a worker sleeps: for a request, a token read (a character here), a token written."""
SPREAD = 0.3
"""Standard deviation of the factor by which an answer takes longer or shorter than that."""
EVALS = {"long questions": (2000, 0), "choices": (700, 0), "short texts": (200, 20), "texts": (400, 80), "long texts": (300, 160)}
"""Characters of the prompts, and most tokens of the texts, which take a quarter of them."""
RUNS = ((8, 200), (8, 1200), (64, 1600), (64, 9200), (256, 6400), (256, 36800))
"""Workers and requests."""
FITTED = (16, 400)
"""Workers and requests of the run that the rates are fitted to."""


class Stream:
    """Answers of a worker, as they come."""

    def __init__(self, there: threading.Condition) -> None:
        self._there = there
        self.batches: SimpleQueue[Batch | None] = SimpleQueue()

    def put(self, batch: Batch | None) -> None:
        with self._there:
            self.batches.put(batch)
            self._there.notify_all()

    def __next__(self) -> Batch:
        batch = self.batches.get()
        if batch is None:
            raise StopIteration
        return batch


@dataclass(eq=False, kw_only=True)
class Sleeper:
    """A worker that sleeps."""

    name: str
    there: threading.Condition
    usages: Sequence[Any] = ()

    @property
    def actor(self) -> Any:
        return types.SimpleNamespace(answer=types.SimpleNamespace(options=lambda **_: types.SimpleNamespace(remote=self.begin)))

    def begin(self, requests: Sequence[Request]) -> Stream:
        stream = Stream(self.there)
        threading.Thread(target=self.answer, args=(requests, stream), daemon=True).start()
        return stream

    def answer(self, requests: Sequence[Request], stream: Stream) -> None:
        for request in requests:
            began = time.monotonic()
            time.sleep(seconds_of(request))
            text = "x" * (request.generation.max_tokens or 0) if request.generation else ""
            took = time.monotonic() - began
            answer = ModelResponse(text=(text,), finish_reason=("stop",), worker=self.name, worker_s=took, gpu_s=0.0)
            stream.put(Batch(answers=[(request.request_id, answer)], usages=()))
        stream.put(None)


@dataclass(kw_only=True)
class Crew:
    """Workers that are all ready."""

    config: Any
    idle: list[Any] = field(default_factory=list)
    starting: dict[Any, Any] = field(default_factory=dict)

    def nothing(self, *_: Any) -> None:
        """No worker starts, is lost or ends."""

    start = require = answered = end = nothing

    def usages(self) -> list[Any]:
        return []

    def state(self) -> str:
        return ""


def seconds_of(request: Request) -> float:
    written = written_tokens(request)
    factor = max(0.2, random.Random(request.request_id).gauss(1, SPREAD))
    return factor * (REQUEST_S + READ_S * len(request.prompt) + WRITTEN_S * written)


def written_tokens(request: Request) -> int:
    return (request.generation.max_tokens or 0) // 4 if request.generation else 0


def requests_of(count: int) -> dict[str, list[Request]]:
    """Requests by eval."""
    found: dict[str, list[Request]] = {}
    for name, (characters, tokens) in EVALS.items():
        for number in range(count // len(EVALS)):
            prompt = f"{name} {number:06} ".ljust(characters, "?")
            settings = GenerationSettings(max_tokens=tokens) if tokens else None
            choices = None if tokens else ("a", "b")
            request = Request(request_id=f"{name}-{number}", prompt=prompt, generation=settings, choices=choices)
            found.setdefault(name, []).append(request)
    return found


def run(project: Project, workers: int, evals: dict[str, list[Request]]) -> tuple[float, dict[str, float]]:
    """Seconds of a run, and the seconds of workers of each eval."""
    there = threading.Condition()
    crew = Crew(config=types.SimpleNamespace(count=workers), idle=[Sleeper(name=f"w{number}", there=there) for number in range(workers)])
    sys.modules["ray"] = fake_ray(there)
    owners = {request.request_id: name for name, requests in evals.items() for request in requests}
    handle = project.handle("sleeper")
    assert isinstance(handle, ScriptedHandle)
    handle.load = lambda: PooledModel(crew)  # type: ignore[assignment, method-assign, arg-type, return-value]
    asked = AskedModel(project=project, name="sleeper", version=handle.version(), run_id=f"run-{workers}")
    began = time.monotonic()
    done = ask(asked, [request for requests in evals.values() for request in requests], owners, SilentReporter())
    seconds = time.monotonic() - began
    assert done.failure is None, done.failure
    assert len(done.answers) == len(owners)
    times: dict[str, float] = dict.fromkeys(evals, 0.0)
    for name, row in done.answers.items():
        times[owners[name]] += row["worker_s"]
    return seconds, times


def fake_ray(there: threading.Condition) -> Any:
    """What the pool uses of Ray."""

    def wait(streams: Sequence[Stream], *, num_returns: int, timeout: float) -> tuple[list[Stream], list[Stream]]:
        deadline = time.monotonic() + timeout
        with there:
            while True:
                ready = [stream for stream in streams if not stream.batches.empty()]
                left = deadline - time.monotonic()
                if ready or left <= 0:
                    return ready[:num_returns], []
                there.wait(left)

    fake: Any = types.ModuleType("ray")
    fake.wait, fake.get = wait, lambda batch: batch
    fake.exceptions = types.SimpleNamespace(
        RayTaskError=type("RayTaskError", (Exception,), {}), RayError=type("RayError", (Exception,), {})
    )
    return fake


def work_of(requests: Sequence[Request]) -> Work:
    read, written = sum(len(request.prompt) for request in requests), sum(map(written_tokens, requests))
    return Work(requests=len(requests), tokens_read=read, tokens_written=written)


def projects() -> Iterator[Project]:
    """New projects, so that no answer is there."""
    while True:
        with tempfile.TemporaryDirectory() as name:
            path = Path(name) / "evals.yaml"
            path.write_text("models: {sleeper: {backend: scripted}}\nevals: {sums: {task: arithmetic}}\n")
            yield Project.open(config_path=path, home=Path(name) / "home")


def main() -> None:
    """Print a table of predictions and measurements."""
    fresh = projects()
    evals = requests_of(FITTED[1])
    _, times = run(next(fresh), FITTED[0], evals)
    rates = fit([(work_of(requests), times[name]) for name, requests in evals.items()])
    say(f"fitted to {len(evals)} evals: {rates}")
    say("| workers | requests | worker seconds, predicted | measured | run, predicted | measured | efficiency |")
    say("|---|---|---|---|---|---|---|")
    for workers, count in RUNS:
        evals = requests_of(count)
        predicted = sum(rates.seconds(work_of(requests)) for requests in evals.values())
        number = sum(map(len, evals.values()))
        longest = max(seconds_of(request) for requests in evals.values() for request in requests)
        expected = run_seconds(predicted, workers=workers, requests=number, longest_s=longest)
        seconds, times = run(next(fresh), workers, evals)
        total = sum(times.values())
        efficiency = total / workers / seconds
        say(f"| {workers} | {number:,} | {predicted:,.0f} | {total:,.0f} | {expected:.1f} s | {seconds:.1f} s | {efficiency:.2f} |")


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
