"""The command that starts the user interfaces."""

import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from eval_dagster.addresses import noted
from eval_dagster.cli.check_nights import watched
from eval_dagster.cli.console import errors, out
from eval_dagster.cli.options import Origins
from eval_dagster.cli.servers.loopback_guard import LOOPBACK, ORIGINS_VARIABLE, origin_of
from eval_dagster.cli.servers.mlflow_server import APP_NAME
from eval_dagster.errors import EvalDagsterError, RequirementError, UsageError
from eval_dagster.project import Project

HOST = "127.0.0.1"
_START_S = 240.0
"""A cold start takes over a minute on two busy cores."""
_STOP_S = 5.0
_TIED = Path(__file__).resolve().with_name("tied_process.py")
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Requests to loopback never use a proxy."""


def serve(
    *,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of Dagster; the next free one if it is in use.")] = 3000,
    mlflow_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of MLflow; the next free one if it is in use.")] = 5000,
    origins: Origins,
) -> None:
    """Run both servers until Ctrl-C, the end of the terminal, or the end of one of them.

    Raises:
        UsageError: They already run on the home.
    """
    os.environ[ORIGINS_VARIABLE] = " ".join(map(allowed_origin, origins))
    project = Project.open()
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as `nohup` asks for
        signal.signal(signal.SIGHUP, signal.default_int_handler)
    with _only_one(project.home) as (mark, was_killed):
        _serve(project, port, mlflow_port, mark, was_killed=was_killed)


def _serve(project: Project, port: int, mlflow_port: int, mark: TextIO, *, was_killed: bool) -> None:
    """Run both servers, and write their addresses into the file `mark`. After a kill of the last command, its unstarted runs are ended."""
    from eval_dagster.assets.instance.instance import open_instance, prepare_instance
    from eval_dagster.assets.instance.killed_runs import end_unstarted_runs
    from eval_dagster.assets.partitions import add_partitions
    from eval_dagster.assets.workspace import code_location, workspace_file

    code_location(project)  # raises ConfigError where the workspace cannot be read

    dagster_url = f"http://{HOST}:{free_port(port)}"
    served_at = ["--host", HOST, "--port", dagster_url.rpartition(":")[2]]
    commands = {"Dagster": ["-m", "eval_dagster.cli.servers.dagster_server", "--workspace", str(workspace_file(project)), *served_at]}
    if project.tracker.is_server:
        mlflow_url = project.tracker.shown_uri
    else:
        if not entry_points(group="mlflow.app", name=APP_NAME):
            raise RequirementError("eval_dagster was installed before this version of it: install it again (`make`, or `pip install -e .`)")
        port = free_port(mlflow_port)
        mlflow_url = f"http://{HOST}:{port}"
        store = project.tracker.prepare()
        served_at = ["--host", HOST, "--port", str(port), "--workers", "1", "--app-name", APP_NAME]
        # Not an argument: everybody on a machine can read those, and the address of a database may hold a password.
        os.environ["MLFLOW_BACKEND_STORE_URI"] = store
        hosts = [*(f"{name}:{port}" for name in LOOPBACK), *(each.partition("://")[2] for each in os.environ[ORIGINS_VARIABLE].split())]
        commands["MLflow"] = ["-m", "mlflow", "server", *served_at, "--allowed-hosts", ",".join(hosts)]
    os.environ.setdefault("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")  # workers for features that are not used here
    logs = prepare_instance(project.home)
    with open_instance(project.home) as instance:
        if was_killed:
            end_unstarted_runs(instance, project.home)
        add_partitions(instance, project)  # so that the first page has them; the daemon adds those to come
    served = {"dagster": dagster_url} | ({} if project.tracker.is_server else {"mlflow": mlflow_url})
    mark.write(f"process {os.getpid()}, Dagster at {dagster_url}, MLflow at {mlflow_url}")
    mark.flush()
    with noted(project.home, served, os.getpid()), _processes(commands, logs) as processes:
        for name, process in processes.items():
            url = {"Dagster": dagster_url, "MLflow": mlflow_url}[name]
            _wait_for(name, url, process, _log(logs, name))
        out.print(f"Dagster   {dagster_url}   assets, runs, schedules\nMLflow    {mlflow_url}   parameters and scores")
        out.print("Ctrl-C stops what was started here.")
        sys.stdout.flush()
        try:
            with watched(project, _log(logs, "nights")):
                while all(process.poll() is None for process in processes.values()):
                    time.sleep(0.5)
        except KeyboardInterrupt:
            _ignore_interrupts()
            with suppress(OSError):  # the terminal may be gone
                errors.print("stopping ...")
            return
        ended = next(name for name, process in processes.items() if process.poll() is not None)
        raise EvalDagsterError(f"{ended} ended by itself; its log is {_log(logs, ended)}")


@contextmanager
def _only_one(home: Path) -> Iterator[tuple[TextIO, bool]]:
    """Keep a second command from starting a second daemon on a home.

    Yields a file that says where this one is, and whether the last command was killed.

    The daemon of another program is named, as far as it can be known: it gave a sign of life after the last command had ended.
    """
    path = home / "locks" / "ui"
    path.parent.mkdir(parents=True, exist_ok=True)
    was_killed = path.exists() and path.stat().st_size > 0
    last_end = 0.0 if not path.exists() else path.stat().st_mtime if path.stat().st_size == 0 else None
    with path.open("a+", encoding="utf-8") as mark:
        try:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            mark.seek(0)
            raise UsageError(
                f"`eval-dagster ui` already runs on {home} ({mark.read() or 'it is starting'}); open its pages, or stop it before you "
                "start another one: two daemons would start each night twice"
            ) from None
        mark.truncate(0)
        if last_end is not None:
            from eval_dagster.assets.night_watch import daemon_since

            if seen := daemon_since(home, last_end):
                errors.print(f"warning: a daemon already runs on the Dagster instance ({seen}); this command starts another one")
        yield mark, was_killed
        mark.truncate(0)


@contextmanager
def _processes(commands: Mapping[str, list[str]], logs: Path) -> Iterator[dict[str, "subprocess.Popen[bytes]"]]:
    """Start Python processes, and yield them by name.

    Each has its own process group, which ends as a whole, as Dagster starts several. It ends, too, if this process is killed.
    """
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, arguments in commands.items():
            with _log(logs, name).open("wb") as file:
                command = [sys.executable, "-P", str(_TIED), sys.executable, *arguments]
                processes[name] = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
                )
        yield processes
    finally:
        previous = _ignore_interrupts()
        _stop(list(processes.values()))
        for number, handler in previous.items():
            signal.signal(number, handler)


def _ignore_interrupts() -> dict[signal.Signals, Any]:
    """Ignore what ends this process, since a second Ctrl-C would leave servers behind. Returns the handlers before."""
    return {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}


def _log(logs: Path, name: str) -> Path:
    return logs / f"ui-{name.lower()}.log"


def _stop(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """End all groups: first with SIGINT, then those that remain with SIGTERM, then with SIGKILL."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        alive = [process.pid for process in processes if _signal_group(process.pid, number)]
        deadline = time.monotonic() + _STOP_S
        while alive and time.monotonic() < deadline:
            time.sleep(0.1)
            for process in processes:
                process.poll()
            alive = [group for group in alive if _signal_group(group, None)]
        if not alive:
            break
    for process in processes:
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


def _signal_group(group: int, number: signal.Signals | None) -> bool:
    """Signal a process group, or without a number only look for members. Returns whether it has members."""
    try:
        os.killpg(group, number or 0)
    except ProcessLookupError:
        return False
    return True


def _wait_for(name: str, url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Wait until a server answers, and check that it refuses requests with a foreign host name."""
    deadline = time.monotonic() + _START_S
    while True:
        if time.monotonic() > deadline or process.poll() is not None:
            raise EvalDagsterError(f"{name} did not start; its log is {log}")
        try:
            with _DIRECT.open(url, timeout=5):
                break
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    try:
        with _DIRECT.open(urllib.request.Request(url, headers={"Host": "guard.invalid"}), timeout=60) as answer:  # noqa: S310 - loopback
            status = answer.status
    except urllib.error.HTTPError as refusal:
        status = refusal.code
    if status != HTTPStatus.FORBIDDEN:
        raise EvalDagsterError(f"{name} answers web pages of other sites (status {status} instead of 403), so it was stopped")


def allowed_origin(url: str) -> str:
    """An origin that a person names. Raises `UsageError` if the address is not an origin."""
    if (origin := origin_of(url)) is None or url not in (origin, f"{origin}/"):
        raise UsageError(f"--origin: {url!r} is no origin; write scheme, host and port alone, as in https://evals.example.org")
    return origin


def free_port(wanted: int) -> int:
    """The first free port from one on. Raises `UsageError` if none of fifty is free."""
    for port in range(wanted, min(wanted + 50, 65536)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise UsageError(f"no free port from {wanted} to {wanted + 49} on {HOST}; choose another")
