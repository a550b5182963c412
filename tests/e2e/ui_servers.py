"""The real `eval-dagster ui`: started on a temporary home, stopped as by Ctrl-C, and seen to leave nothing behind."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dagster as dg
import psutil

REPOSITORY = Path(__file__).resolve().parents[2]
_ADDRESSES = re.compile(r"Dagster\s+(http://\S+).*MLflow\s+(http://\S+)", re.DOTALL)
_START_S = 300
_STOP_S = 60
_POLL_S = 0.25


class RunningUi:
    """Both servers, with the addresses that the command printed."""

    def __init__(
        self, config: Path, home: Path, output: Path, *, python: str = sys.executable, variables: Mapping[str, str] | None = None
    ) -> None:
        """Start the command.

        Args:
            config: The evals.yaml.
            home: The folder of all state.
            output: Where the command prints.
            python: The interpreter.
            variables: Environment variables; where given, the command runs in the folder of evals.yaml and finds file and home itself.
        """
        self.home = home
        self._output = output
        port, mlflow_port = free_ports(2)
        environment = variables or os.environ | {
            "EVAL_DAGSTER_CONFIG": str(config),
            "EVAL_DAGSTER_HOME": str(home),
            "DAGSTER_HOME": str(home / "dagster"),
        }
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                [python, "-m", "eval_dagster.cli", "ui", "--port", str(port), "--mlflow-port", str(mlflow_port)],
                cwd=config.parent if variables else REPOSITORY,
                env=environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def printed(self) -> str:
        return self._output.read_text("utf-8", errors="replace")

    def read_addresses(self) -> None:
        found = until(lambda: self._ended() or _ADDRESSES.search(self.printed), _START_S, lambda: f"no addresses in:\n{self.printed}")
        self.dagster, self.mlflow = found.groups()

    def _ended(self) -> None:
        assert self.process.poll() is None, f"the command ended by itself:\n{self.printed}\n{self.logs()}"

    def logs(self) -> str:
        """The last lines of both servers' logs."""
        paths = sorted((self.home / "dagster").glob("ui-*.log"))
        return "\n".join(f"--- {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-30:]) for path in paths)

    def is_running(self) -> bool:
        """Whether the command has not ended."""
        return self.process.poll() is None

    def processes(self) -> list[psutil.Process]:
        """The command and everything it started, in whatever session or process group."""
        parent = psutil.Process(self.process.pid)
        return [parent, *parent.children(recursive=True)]

    def interrupt(self) -> tuple[int, list[psutil.Process]]:
        """Press Ctrl-C, and again out of impatience; gives the exit status and the processes that are alive after it."""
        started = self.processes()
        self.process.send_signal(signal.SIGINT)
        until(lambda: "stopping" in self.printed, _STOP_S, lambda: self.printed)
        self.process.send_signal(signal.SIGINT)
        status = self.process.wait(_STOP_S)
        return status, [process for process in started if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]

    def kill(self) -> None:
        """End what is left of a command that did not come up or did not end."""
        if self.process.poll() is None:
            for process in self.processes():
                process.kill()
            self.process.wait(_STOP_S)

    def query(self, graphql: str, **variables: Any) -> Any:
        """What Dagster's GraphQL answers."""
        body = json.dumps({"query": graphql, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.dagster}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = json.load(response)
        assert "errors" not in answer, answer["errors"]
        return answer["data"]

    def tags(self, run_id: str) -> dict[str, str]:
        """All tags of a run, with those that Dagster's pages and its GraphQL leave out."""
        with dg.DagsterInstance.from_config(str(self.home / "dagster")) as instance:
            run = instance.get_run_by_id(run_id)
        assert run is not None, run_id
        return dict(run.tags)


def until(condition: Callable[[], Any], seconds: float, message: Callable[[], str]) -> Any:
    """The first truthy answer of a condition."""
    deadline = time.monotonic() + seconds
    while True:
        answer = condition()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"after {seconds:.0f} s: {message()}"
        time.sleep(_POLL_S)


def port_of(url: str) -> int:
    return urlsplit(url).port or 80


def is_open(port: int, host: str = "127.0.0.1") -> bool:
    with socket.socket() as probe:
        probe.settimeout(2)
        return probe.connect_ex((host, port)) == 0


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on; the command takes the next one if someone is faster."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for probe in sockets:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in sockets]
    finally:
        for probe in sockets:
            probe.close()


@contextmanager
def running_ui(config: Path, home: Path, output: Path, **options: Any) -> Iterator[RunningUi]:
    """Start the command, and see that Ctrl-C ends it with everything it started."""
    ui = RunningUi(config, home, output, **options)
    try:
        ui.read_addresses()
        yield ui
        if ui.process.poll() is None:
            status, alive = ui.interrupt()
            assert status == 0, ui.printed
            assert alive == []
        assert not is_open(port_of(ui.dagster))
        assert not is_open(port_of(ui.mlflow))
    finally:
        ui.kill()
