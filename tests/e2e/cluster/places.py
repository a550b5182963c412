"""A place on a cluster: workers on nodes of Ray, a lake in an object store, and PostgreSQL under Dagster and MLflow."""

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import yaml
from home_states import TABLES
from servers.object_store import ObjectStore
from servers.postgres import Postgres
from servers.ray_cluster import RayCluster
from teams import Team

from eval_dagster.lake.answers.responses import journal_rows
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, StageFailure

REPOSITORY = Path(__file__).resolve().parents[3]
MODELS = ("words", "letters")
SCRIPTED = {name: {"backend": "scripted", "function": f"answer.py:{name}"} for name in MODELS}
ANSWER = """
import os, time
from pathlib import Path

FOLDER = Path(__file__).parent


def words(request):
    return answer("words", request, 7)


def letters(request):
    return answer("letters", request, 11)


def answer(model, request, most):
    with (FOLDER / "asked.log").open("a") as log:
        log.write(f"{time.time()} {os.getpid()} {os.getppid()} {model} {request.request_id}\\n")
    time.sleep(float((FOLDER / "answer_s").read_text()))
    value = sum(map(ord, request.prompt)) % most
    return f" {value}" if request.choices is None else [-float((value + len(choice)) % most) for choice in request.choices]
"""
"""Answers slowly, and writes down when, in which process, and as a child of which: the parent of a worker is its node."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request that a worker began to answer."""

    at: float
    pid: int
    node: int
    """The process of the node."""
    model: str
    request_id: str


def config_of(workers: int | None, *, models: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The demo suite with two scripted models, or with others. Each has so many workers; null: it computes in the process of the run."""
    config: dict[str, Any] = yaml.safe_load((REPOSITORY / "evals.yaml").read_text())
    chosen = dict(models or SCRIPTED)
    own = {} if workers is None else {"workers": {"engine": "ray", "count": workers, "cpus": 1}}
    evals = config["suites"]["demo"]["evals"]
    return {
        "models": {name: {**section, **own} for name, section in chosen.items()},
        "evals": {name: config["evals"][name] for name in evals},
        "suites": {"demo": {"evals": evals, "models": list(chosen)}},
    }


class Place(Team):
    """A folder with the demo suite, and what its runs find their cluster by."""

    def __init__(
        self,
        folder: Path,
        *,
        config: Mapping[str, Any],
        answer_s: float,
        postgres: Postgres | None = None,
        store: ObjectStore | None = None,
        cluster: RayCluster | None = None,
    ) -> None:
        super().__init__(folder, postgres)
        (folder / "evals.yaml").write_text(yaml.safe_dump(dict(config)))
        (folder / "answer.py").write_text(ANSWER)
        (folder / "answer_s").write_text(str(answer_s))
        if store is not None:
            self.variables |= {**store.variables, "EVAL_DAGSTER_LAKE": store.url(folder.name)}
        if cluster is not None:
            self.variables["RAY_ADDRESS"] = cluster.address

    def run_here(self) -> None:
        """Evaluate the demo suite in this process, without Dagster."""
        project = Project.open(config_path=self.folder / "evals.yaml", home=self.home)
        suite = project.suite("demo")
        partitions = [(name, model) for model in suite.models for name in suite.evals]
        outcomes = list(evaluate(project, partitions, stages=set(STAGES), run_id="plain", reporter=SilentReporter()))
        assert not [each for each in outcomes if isinstance(each, StageFailure)]

    def begin(self, name: str, *options: str) -> Any:
        """Begin `eval-dagster run --suite demo`."""
        return self.start(name, "-m", "eval_dagster.cli", "run", "--suite", "demo", *options)

    def answered(self) -> set[tuple[str, str]]:
        """Model version and request of each answer that the driver has: in a journal or a file of the response cache."""
        cache = self.home / "lake" / "response_cache"
        found = {(_version(path), row["request_id"]) for path in cache.rglob("*.journal") for row in journal_rows(path)}
        files = [str(path) for path in cache.rglob("[!.]*.parquet")]
        if not files:
            return found
        with duckdb.connect() as connection, suppress(duckdb.IOException):  # a file that was merged since
            return found | set(
                connection.execute("select model_version, request_id from read_parquet($files)", {"files": files}).fetchall()
            )
        return found

    def asked_for(self) -> list[Asked]:
        """All that workers began to answer."""
        lines = (self.folder / "asked.log").read_text().splitlines() if (self.folder / "asked.log").exists() else []
        return [
            Asked(at=float(at), pid=int(pid), node=int(node), model=model, request_id=request)
            for at, pid, node, model, request in (line.split() for line in lines)
        ]

    def contents(self) -> dict[str, list[tuple[Any, ...]]]:
        """The rows of the relations, without times and ids of runs."""
        with duckdb.connect(str(self.home / "evals.duckdb"), read_only=True) as catalog:
            return {name: sorted(catalog.execute(f"select {columns} from {name}").fetchall(), key=repr) for name, columns in TABLES.items()}

    def versions(self) -> dict[str, str]:
        """The version of each model."""
        with duckdb.connect(str(self.home / "evals.duckdb"), read_only=True) as catalog:
            return dict(catalog.execute("select distinct model, model_version from metrics").fetchall())

    def seconds_and_workers(self) -> list[tuple[float | None, str | None]]:
        """The seconds and the worker of each answer."""
        with duckdb.connect(str(self.home / "evals.duckdb"), read_only=True) as catalog:
            return catalog.execute("select worker_s, worker from responses").fetchall()


@dataclass(kw_only=True)
class Followed:
    """What was seen of a run while it was disturbed."""

    snapshots: list[tuple[float, set[tuple[str, str]]]]
    """From this time on, these answers were there."""
    seconds: float

    def asked_again(self, place: Place) -> list[Asked]:
        """What was asked although its answer was there."""
        versions = place.versions()
        since: dict[tuple[str, str], float] = {}
        for at, answers in self.snapshots:
            for key in answers:
                since.setdefault(key, at)
        return [each for each in place.asked_for() if each.at > since.get((versions[each.model], each.request_id), float("inf"))]


def followed(place: Place, run: Any, disturbances: Sequence[tuple[int, Callable[[], None]]], *, most_s: float) -> Followed:
    """Follow a run to its end. Each disturbance happens once so many answers are there."""
    waiting = list(disturbances)
    began = time.monotonic()
    seen = Followed(snapshots=[], seconds=0.0)
    while run.poll() is None:
        assert time.monotonic() - began < most_s, place.printed("run")
        answers = place.answered()
        seen.snapshots.append((time.time(), answers))
        if waiting and len(answers) >= waiting[0][0]:
            waiting.pop(0)[1]()
        time.sleep(0.2)
    seen.seconds = time.monotonic() - began
    assert not waiting, f"the run ended before {len(waiting)} disturbances: {place.printed('run')}"
    return seen


def kill_a_worker(place: Place) -> None:
    """Kill the worker that began to answer last. Its number may be another program's by now, which stays."""
    pid = place.asked_for()[-1].pid
    assert Path(f"/proc/{pid}/cmdline").read_text().startswith("ray::"), "the worker has ended by itself"
    os.kill(pid, signal.SIGKILL)


def _version(journal: Path) -> str:
    return journal.parent.name.removeprefix("model_version=")
