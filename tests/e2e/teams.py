"""A team's own Dagster instance on PostgreSQL: code location and daemon as processes, two scripted models, and the command line."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import yaml
from servers.postgres import Postgres
from ui_servers import REPOSITORY, free_ports, until

EVALS = """
    models:
      nines: {backend: scripted, function: "answer.py:nines"}
      sevens: {backend: scripted, function: "answer.py:sevens"}
    evals:
      sums: {task: arithmetic, limit: 4}
      capitals: {task: capitals, limit: 3}
    suites:
      nightly: {evals: [sums, capitals], models: [nines, sevens]}
"""
ANSWER = """
import os, time
from pathlib import Path


def nines(request):
    return _answer("nines", request, " 9")


def sevens(request):
    return _answer("sevens", request, " 7")


def _answer(model, request, text):
    with Path(os.environ["ASKED_LOG"]).open("a") as log:
        log.write(f"{time.time()} {os.getpid()} {model} {request.request_id}\\n")
    time.sleep(float(os.environ.get("ANSWER_S", "0")))
    return text if request.choices is None else [-float(sum(map(ord, choice)) % 17) for choice in request.choices]
"""
"""Answers, and writes down who is asked what, when, and in which process."""
LIMITS: dict[str, Any] = {
    "max_concurrent_runs": 4,
    "tag_concurrency_limits": [{"key": "eval_dagster/model", "value": {"applyLimitPerUniqueValue": True}, "limit": 1}],
}
TABLES = {
    "scores": "select eval, model, sample_id, metric, value, error from scores order by all",
    "metrics": "select eval, model, subject, metric, value, stderr, n, n_errors from metrics order by all",
    "leaderboard": "select eval, model, metric, value, n, rank from leaderboard order by all",
    "responses": "select eval, model, sample_id, request_id, text from responses order by all",
}
START_S = 240


class Team:
    """A folder with an evals.yaml and a home, and an instance whose storage is in PostgreSQL unless `postgres` is None."""

    def __init__(self, folder: Path, postgres: Postgres | None, *, settings: Mapping[str, Any] | None = None) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.instance_folder = folder / "dagster"
        self.log = folder / "asked.log"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self.instance_folder.mkdir()
        (folder / "evals.yaml").write_text(textwrap.dedent(EVALS))
        (folder / "answer.py").write_text(ANSWER)
        self.variables = os.environ | {
            "EVAL_DAGSTER_CONFIG": str(folder / "evals.yaml"),
            "EVAL_DAGSTER_HOME": str(self.home),
            "DAGSTER_HOME": str(self.instance_folder),
            "PYTHONPATH": str(REPOSITORY),
            "ASKED_LOG": str(self.log),
        }
        if postgres is not None:
            self.variables["TEAM_DAGSTER"] = postgres.create_database(f"dagster-{folder.name}")
            self.variables["EVAL_DAGSTER_TRACKING_URI"] = postgres.create_database(f"mlflow-{folder.name}")
            self._write_settings(settings or {})

    def serve(self, *, answer_s: float = 0.0, sensors: bool = True) -> None:
        """Start a code location and a daemon, and wait until the daemon is at work."""
        (port,) = free_ports(1)
        self.variables["ANSWER_S"] = str(answer_s)
        location = {"grpc_server": {"host": "127.0.0.1", "port": port, "location_name": "eval_dagster"}}
        (self.folder / "workspace.yaml").write_text(yaml.safe_dump({"load_from": [location]}))
        module = ["--module-name", "eval_dagster.assets.code_location"]
        self.start("code", "-m", "dagster", "api", "grpc", "--host", "127.0.0.1", "--port", str(port), *module)
        self._wait("code", "-m", "dagster", "api", "grpc-health-check", "--host", "127.0.0.1", "--port", str(port))
        self.start("daemon", "-m", "dagster._daemon", "run", "--workspace", str(self.folder / "workspace.yaml"))
        self._wait("daemon", "-m", "dagster._daemon", "liveness-check")

    def start(self, name: str, *arguments: str, more: Mapping[str, str] | None = None) -> "subprocess.Popen[bytes]":
        """Start a Python program, which `stop` ends with all that it started."""
        with (self.folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=self.folder,
                env={**self.variables, **(more or {})},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self._processes[name]

    def run(self, *options: str, timeout: float = 600, more: Mapping[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
        """Run `eval-dagster run` to its end; `more` is added to the environment."""
        return subprocess.run(
            [sys.executable, "-m", "eval_dagster.cli", "run", *options],
            cwd=self.folder,
            env={**self.variables, **(more or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )

    def stop(self) -> None:
        """End all processes with those that they started."""
        for process in reversed(self._processes.values()):
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(20)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._processes.clear()

    def tables(self, home: Path | None = None) -> dict[str, list[str]]:
        """The rows of the relations as texts, without the columns that differ between two runs: ids and times."""
        with duckdb.connect(str((home or self.home) / "evals.duckdb"), read_only=True) as catalog:
            return {name: list(map(str, catalog.execute(query).fetchall())) for name, query in TABLES.items()}

    def asked(self) -> list[tuple[float, int, str, str]]:
        """What the models were asked: time, process, model, request."""
        lines = [line.split() for line in self.log.read_text().splitlines()] if self.log.exists() else []
        return [(float(at), int(process), model, request) for at, process, model, request in lines]

    def asked_again(self) -> int:
        """How often a model was asked what it had been asked before."""
        asked = [(model, request) for _, _, model, request in self.asked()]
        return len(asked) - len(set(asked))

    def printed(self, name: str) -> str:
        """The end of what a program has printed."""
        return f"{name}:\n{(self.folder / f'{name}.log').read_text(errors='replace')[-6000:]}"

    def _wait(self, name: str, *check: str) -> None:
        def is_ready() -> bool:
            assert self._processes[name].poll() is None, self.printed(name)
            done = subprocess.run([sys.executable, *check], env=self.variables, cwd=self.folder, capture_output=True, check=False)
            return done.returncode == 0

        until(is_ready, START_S, lambda: self.printed(name))

    def _write_settings(self, settings: Mapping[str, Any]) -> None:
        own: dict[str, Any] = {
            "storage": {"postgres": {"postgres_url": {"env": "TEAM_DAGSTER"}}},
            "telemetry": {"enabled": False},
            "concurrency": {"runs": LIMITS},
        }
        (self.instance_folder / "dagster.yaml").write_text(yaml.safe_dump({**own, **settings}))


def differences(one: Mapping[str, Sequence[Any]], other: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """The rows that one side alone has, by relation."""
    return {name: set(one[name]) ^ set(other[name]) for name in one if set(one[name]) != set(other[name])}
