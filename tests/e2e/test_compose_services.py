"""The commands and health checks of compose.yaml as processes on loopback: web server, daemon and code location execute a run together.

Once with SQLite, and once with PostgreSQL as in the containers, where its programs and the extra `postgres` are installed.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from needs import require
from servers.postgres import system_user
from ui_servers import REPOSITORY, free_ports, until

from eval_dagster.cli.init import write_project

pytestmark = [pytest.mark.e2e, pytest.mark.long]

SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((REPOSITORY / "compose.yaml").read_text())["services"]
PROGRAMS = {
    "python": [sys.executable],
    "dagster": [sys.executable, "-m", "dagster"],
    "dagster-daemon": [sys.executable, "-m", "dagster._daemon"],
    "mlflow": [sys.executable, "-m", "mlflow"],
}
PORTS = {"postgres": "5432", "mlflow": "5000", "code": "4000", "webserver": "3000"}
HEALTHY_S = 180
RUN_S = 180
LAUNCH = """
    mutation Launch($params: ExecutionParams!) {
      launchRun(executionParams: $params) { __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } }
    }
"""
STATUS = "query Status($run: ID!) { runOrError(runId: $run) { ... on Run { status } } }"
LINKS = """
    query Links($asset: AssetKeyInput!) {
      assetOrError(assetKey: $asset) {
        ... on Asset { assetMaterializations { metadataEntries { label ... on UrlMetadataEntry { url } } } }
      }
    }
"""


class Services:
    """The containers of compose.yaml as processes on 127.0.0.1, with ports and folders of their own."""

    def __init__(self, folder: Path, *, has_postgres: bool) -> None:
        self.folder = folder
        self.port = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
        self._has_postgres = has_postgres
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._prepare()

    def here(self, text: str) -> str:
        """A text of compose.yaml, with what is a container there and a process here."""
        for service, port in PORTS.items():
            text = re.sub(rf"\b(127\.0\.0\.1|localhost):{port}\b", rf"\g<1>:{self.port[service]}", text)
            text = re.sub(rf"\b{service}:{port}\b", f"localhost:{self.port[service]}", text)
            text = re.sub(rf"^{port}$", self.port[service], text)
        text = text.replace("0.0.0.0", "127.0.0.1").replace("/opt/dagster", str(self.folder / "dagster"))
        return text.replace("/var/lib/", f"{self.folder}/")

    def start(self, name: str) -> None:
        """Start a service, and wait until its health check passes."""
        with (self.folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                self._command(SERVICES[name]["command"]),
                cwd=self.folder,
                env=self._variables(name),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        check = self._command(SERVICES[name]["healthcheck"]["test"][1:])

        def is_healthy() -> bool:
            assert self._processes[name].poll() is None, self.log(name)
            return subprocess.run(check, env=self._variables(name), cwd=self.folder, capture_output=True, check=False).returncode == 0

        until(is_healthy, HEALTHY_S, lambda: self.log(name))

    def stop(self) -> None:
        """End all processes with those that they started."""
        for process in reversed(self._processes.values()):
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(20)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def log(self, name: str) -> str:
        return f"{name}:\n{(self.folder / f'{name}.log').read_text(errors='replace')[-4000:]}"

    def _command(self, command: list[str]) -> list[str]:
        return [*PROGRAMS[command[0]], *(self.here(argument) for argument in command[1:])]

    def _variables(self, name: str) -> dict[str, str]:
        own = {key: self.here(value) for key, value in SERVICES[name].get("environment", {}).items() if value is not None}
        own = {key: re.sub(r"\$\{POSTGRES_PASSWORD[^}]*\}", "secret", value) for key, value in own.items()}
        if "POSTGRES_HOST" in own:
            own["POSTGRES_HOST"] = "127.0.0.1"
        if not self._has_postgres and "MLFLOW_BACKEND_STORE_URI" in own:
            own["MLFLOW_BACKEND_STORE_URI"] = f"sqlite:///{self.folder}/mlflow/mlflow.db"
        image = {
            "DAGSTER_HOME": str(self.folder / "dagster"),
            "EVAL_DAGSTER_HOME": str(self.folder / "evals"),
            "EVAL_DAGSTER_CONFIG": str(self.folder / "project" / "evals.yaml"),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")])),
        }
        return {**os.environ, **image, **own}

    def _prepare(self) -> None:
        for name in ("dagster", "evals", "mlflow"):
            (self.folder / name).mkdir()
        write_project(self.folder / "project")
        settings = yaml.safe_load(self.here((REPOSITORY / "deploy/dagster.yaml").read_text()))
        if self._has_postgres:
            settings["storage"]["postgres"]["postgres_db"]["port"] = int(self.port["postgres"])
        else:
            del settings["storage"]
        (self.folder / "dagster" / "dagster.yaml").write_text(yaml.safe_dump(settings))
        workspace = yaml.safe_load((REPOSITORY / "deploy/workspace.yaml").read_text())
        workspace["load_from"][0]["grpc_server"] |= {"host": "127.0.0.1", "port": int(self.port["code"])}
        (self.folder / "dagster" / "workspace.yaml").write_text(yaml.safe_dump(workspace))


def _start_postgres(programs: Path, folder: Path, port: str, stack: ExitStack) -> None:
    """A cluster of its own, as a system user where this is root, which PostgreSQL refuses."""
    if user := system_user():
        shutil.chown(folder, user["user"], user["group"])

    def run(program: str, *arguments: str, **more: Any) -> None:
        command = [str(programs / program), *arguments]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120, **user, **more)
        assert done.returncode == 0, done.stdout + done.stderr

    (folder / "password").write_text("secret")
    (folder / "password").chmod(0o644)
    run("initdb", "--username", "evals", "--pwfile", str(folder / "password"), "--auth", "scram-sha-256", str(folder / "data"))
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder}"
    # The server keeps the streams that it is given, so that a pipe would be waited for.
    subprocess.run(
        [str(programs / "pg_ctl"), "start", "--wait", "--pgdata", str(folder / "data"), "--log", str(folder / "log"), "-o", options],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
        timeout=120,
        **user,
    )
    stack.callback(run, "pg_ctl", "stop", "--pgdata", str(folder / "data"), "--mode", "immediate")
    connect = ["--host", "127.0.0.1", "--port", port, "--username", "evals", "--dbname", "postgres"]
    environment = {"env": os.environ | {"PGPASSWORD": "secret"}}
    run("psql", *connect, "--command", "create database dagster", **environment)
    run("psql", *connect, "--command", (REPOSITORY / "deploy/databases.sql").read_text(), **environment)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def services(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    folder = tmp_path_factory.mktemp("compose")
    programs = Path(require("PostgreSQL")) if request.param == "postgres" else None
    started = Services(folder, has_postgres=programs is not None)
    with ExitStack() as stack:
        if programs is not None:
            # Another user cannot reach the folders of pytest.
            cluster = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            _start_postgres(programs, cluster, started.port["postgres"], stack)
        stack.callback(started.stop)
        for name in ("mlflow", "code", "daemon", "webserver"):
            started.start(name)
        yield started


def ask(services: Services, query: str, **variables: Any) -> Any:
    return post(f"http://127.0.0.1:{services.port['webserver']}/graphql", {"query": query, "variables": variables})["data"]


def post(url: str, body: Mapping[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


@pytest.mark.parametrize("service", ["webserver", "mlflow"])
def test_the_guard_refuses_foreign_hosts(services: Services, service: str) -> None:
    request = urllib.request.Request(f"http://127.0.0.1:{services.port[service]}/", headers={"Host": "evil.example"})
    with pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.urlopen(request, timeout=60)
    refusal.value.close()
    assert refusal.value.code == 403


def test_a_run_is_launched_executed_and_tracked(services: Services) -> None:
    selector = {"repositoryLocationName": "eval_dagster", "repositoryName": "__repository__", "jobName": "suite_nightly"}
    launched = ask(services, LAUNCH, params={"selector": selector, "runConfigData": {}})["launchRun"]
    assert launched["__typename"] == "LaunchRunSuccess", launched
    run_id = launched["run"]["runId"]

    def status() -> str:
        return str(ask(services, STATUS, run=run_id)["runOrError"]["status"])

    until(lambda: status() in ("SUCCESS", "FAILURE"), RUN_S, lambda: "\n".join([status(), services.log("code"), services.log("daemon")]))
    assert status() == "SUCCESS", services.log("code")
    materializations = ask(services, LINKS, asset={"path": ["task_metrics"]})["assetOrError"]["assetMaterializations"]
    links = [entry["url"] for each in materializations for entry in each["metadataEntries"] if entry["label"] == "mlflow_run"]
    assert len(links) == 2
    mlflow = f"http://127.0.0.1:{services.port['mlflow']}"
    assert all(link.startswith(f"{mlflow}/#/experiments/") for link in links), "as a browser reaches it, not as containers do"
    experiment = re.findall(r"experiments/(\d+)", links[0])
    runs = post(f"{mlflow}/api/2.0/mlflow/runs/search", {"experiment_ids": experiment})["runs"]
    assert {link.rpartition("/")[2] for link in links} <= {run["info"]["run_id"] for run in runs}
