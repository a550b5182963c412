"""Many nights in a real daemon whose clock runs fast, with faults thrown in: nothing grows but what is kept on purpose."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import dagster as dg
import psutil
import pytest
from fast_clock import FastClock, rows_of
from home_states import run_statuses
from workplaces import REPOSITORY

from eval_dagster.assets.instance.killed_runs import end_dead_runs

pytestmark = [pytest.mark.e2e, pytest.mark.long]

NIGHTS = int(os.environ.get("NIGHTS", "100"))
NIGHT_S = 3600.0
"""Of the daemon's clock, which leaps to the next night where one is over."""
CONFIG = """
    models:
      moody: {backend: scripted, function: "moody.py:answer"}
    evals:
      sums: {task: arithmetic, num_fewshot: 1, limit: 2}
    suites:
      often: {evals: [sums], models: [moody], cron: "0 * * * *"}
"""
MODEL = """
    import time

    NIGHT = {night}

    def answer(request):
        time.sleep(0.05)
        {deed}
        return f" {{NIGHT}}"
"""
INSTANCE = """
    telemetry: {enabled: false}
    nux: {enabled: false}
    run_retries: {enabled: true, max_retries: 0, retry_on_asset_or_op_failure: false}
    concurrency: {runs: {max_concurrent_runs: 1}}
    run_coordinator: {module: dagster, class: QueuedRunCoordinator, config: {dequeue_interval_seconds: 1}}
    run_launcher: {module: night_launcher, class: ForkserverLauncher}
"""
JOB = "__anonymous_asset_job_suite_often_schedule"
EVALUATED = f"select status, count(*) from runs where pipeline_name = '{JOB}' group by status"
WARM_UP = 0.25
"""The share of the nights in which caches fill and libraries are imported."""
MOST_GROWTH_MB = 60.0
KEPT = ("lake", "mlartifacts", "dagster/history/runs", "dagster/storage", "reports", "catalogs")
"""Folders that get files each night on purpose: results, their tables in MLflow, events and logs of runs, pages."""


@dataclass(kw_only=True)
class Figures:
    """What a process holds, a value each night."""

    memory_mb: list[float] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)

    def read(self, process: psutil.Process) -> None:
        with suppress(psutil.NoSuchProcess):
            self.memory_mb.append(process.memory_info().rss / 1e6)
            self.threads.append(process.num_threads())
            self.descriptors.append(process.num_fds())

    def growth(self, name: str) -> float:
        """By how much the last quarter of the nights is above the quarter after the warm-up."""
        values = getattr(self, name)
        quarter = max(1, len(values) // 4)
        return median(values[-quarter:]) - median(values[int(len(values) * WARM_UP) :][:quarter])


@pytest.mark.timeout(3600)
def test_many_nights_with_faults_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, chance = tmp_path / "home", random.Random(20261122)
    figures: dict[str, Figures] = {"daemon": Figures(), "code server": Figures()}
    others: list[int] = []
    faults: Counter[str] = Counter()
    monkeypatch.setenv("DAGSTER_HOME", str(home / "dagster"))
    clock = FastClock(tmp_path, home, leap_s=NIGHT_S, most_leaps=NIGHTS)
    with _daemon(tmp_path, home, clock) as daemon:
        for night in range(1, NIGHTS + 1):
            _write_model(tmp_path, night, raises=chance.random() < 0.07, faults=faults)
            clock.leap_to_tick(daemon.is_running)
            if chance.random() < 0.07:
                faults["workers killed"] += _kill_worker(home, tmp_path / "workers")
            elif chance.random() < 0.05:
                faults["files damaged"] += _damage(home, chance)
            elif night == NIGHTS // 2:
                (home / "mlflow.db").write_bytes(b"no database" * 1000)
                faults["stores damaged"] += 1
            # One comes early in the warm-up: the notice of a night that is left out imports libraries, 75 MB of them.
            if night == 2 or chance.random() < 0.05:
                faults["nights that come too early"] += 1
            else:
                _wait_until(lambda: _is_over(home), 300, daemon)
            figures["daemon"].read(daemon)
            figures["code server"].read(_code_server(daemon))
            others.append(len(_other_files(home)))
        _wait_until(lambda: _is_over(home), 180, daemon)
        ticks = _ticks(home)
        evaluated = dict(rows_of(home / "dagster/history/runs.db", EVALUATED))
    with dg.DagsterInstance.get() as instance:
        time.sleep(3)
        end_dead_runs(instance, home)
        statuses = run_statuses(instance)
    sys.stdout.write(f"{NIGHTS} nights: ticks {ticks}, runs {dict(statuses)}, nights evaluated {evaluated}, faults {dict(faults)}\n")
    for name, each in figures.items():
        for what in ("memory_mb", "threads", "descriptors"):
            values = getattr(each, what)
            sys.stdout.write(f"{name} {what}: first {values[0]:.0f}, median {median(values):.0f}, last {values[-1]:.0f}, ")
            sys.stdout.write(f"growth after warm-up {each.growth(what):+.1f}\n")
    temporary = sorted(path.name for path in (tmp_path / "tmp").iterdir())
    sys.stdout.write(f"files beside what is kept: {others[len(others) // 4]} -> {others[-1]}; temporary files: {temporary}\n")

    assert set(ticks) <= {"SUCCESS", "SKIPPED", "STARTED"}, ticks
    assert statuses.keys() <= {"SUCCESS", "FAILURE"}
    disturbed = faults["models raising"] + faults["workers killed"] + faults["nights that come too early"] + faults["stores damaged"]
    assert evaluated["SUCCESS"] >= NIGHTS - disturbed - 2, "no night fails because an earlier one was disturbed"
    for name, each in figures.items():
        assert each.growth("memory_mb") < MOST_GROWTH_MB, name
        # The server's pool gets three threads once, in the night in which calls of the daemon first meet.
        assert each.growth("threads") <= 4, name
        assert each.growth("descriptors") <= 4, name
    assert others[-1] - others[len(others) // 4] <= 6 + 2 * faults["workers killed"] + faults["stores damaged"], _other_files(home)
    assert len(temporary) < 10, temporary


@contextmanager
def _daemon(folder: Path, home: Path, clock: FastClock) -> Iterator[psutil.Process]:
    (folder / "evals.yaml").write_text(textwrap.dedent(CONFIG))
    for name in ("workers", "tmp", "home/dagster"):
        (folder / name).mkdir(parents=True)
    (home / "dagster" / "dagster.yaml").write_text(textwrap.dedent(INSTANCE))
    environment = os.environ | {
        "EVAL_DAGSTER_CONFIG": str(folder / "evals.yaml"),
        "EVAL_DAGSTER_HOME": str(home),
        "DAGSTER_HOME": str(home / "dagster"),
        "WORKERS": str(folder / "workers"),
        "TMPDIR": str(folder / "tmp"),
        **clock.environment,
    }
    environment["PYTHONPATH"] += os.pathsep + os.pathsep.join([str(REPOSITORY), str(Path(__file__).parent)])
    command = [sys.executable, "-m", "dagster._daemon", "run", "-w", str(REPOSITORY / "workspace.yaml")]
    _write_model(folder, 0, raises=False, faults=Counter())
    with (folder / "daemon.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        yield psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _code_server(daemon: psutil.Process) -> psutil.Process:
    for child in daemon.children(recursive=True):
        with suppress(psutil.Error):  # a worker that has just ended
            if "grpc" in child.cmdline():
                return child
    raise AssertionError("no code server is at work")


def _write_model(folder: Path, night: int, *, raises: bool, faults: Counter[str]) -> None:
    faults["models raising"] += raises
    deed = 'raise RuntimeError("the model is down")' if raises else "pass"
    temporary = folder / ".moody.py"
    temporary.write_text(textwrap.dedent(MODEL).format(night=night, deed=deed))
    temporary.replace(folder / "moody.py")


def _ticks(home: Path) -> Counter[str]:
    query = "select status, count(*) from job_ticks where type = 'SCHEDULE' group by status"
    return Counter(dict(rows_of(home / "dagster/schedules/schedules.db", query)))


def _is_over(home: Path) -> bool:
    """Whether no run is at work, and each night that was not left out was judged."""
    runs = Counter(rows_of(home / "dagster/history/runs.db", "select status, pipeline_name from runs"))
    is_at_work = any(status not in ("SUCCESS", "FAILURE") for status, _ in runs)
    evaluated, judged = (
        sum(runs[status, job] for status in ("SUCCESS", "FAILURE")) for job in ("__anonymous_asset_job_suite_often_schedule", "gate_often")
    )
    return not is_at_work and judged >= evaluated > 0


def _wait_until(condition: Callable[[], bool], seconds: float, daemon: psutil.Process) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert daemon.is_running(), "the daemon ended by itself"
        assert time.monotonic() < deadline, f"nothing happened for {seconds:.0f} s"
        time.sleep(0.1)


def _kill_worker(home: Path, workers: Path) -> int:
    """Kill the worker that holds the lock of its run; one that is killed before that is taken for lost after a quarter of an hour."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        marks = list(workers.iterdir())
        if marks and any(path.suffix == "" for path in (home / "locks" / "runs").glob("*")):
            marks[0].unlink(missing_ok=True)
            with suppress(ProcessLookupError):
                os.kill(int(marks[0].name), signal.SIGKILL)
                return 1
        time.sleep(0.02)
    return 0


def _damage(home: Path, chance: random.Random) -> int:
    table = chance.choice(["responses", "scores", "metrics", "prompts"])
    files = sorted((home / "lake" / table).rglob("[!.]*.parquet"))
    if not files:
        return 0
    files[-1].write_bytes(files[-1].read_bytes()[:100])
    return 1


def _other_files(home: Path) -> list[str]:
    """What is not in a folder that gets files each night on purpose."""
    names = (path.relative_to(home).as_posix() for path in home.rglob("*") if path.is_file())
    return sorted(name for name in names if not name.startswith(KEPT))
