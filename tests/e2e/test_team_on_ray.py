"""The settings of examples/deploy/ray on a real Ray cluster of one node: each model is a Ray job, and a killed one is marked as failed."""

import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import yaml
from servers.postgres import running_postgres
from teams import Team, differences
from ui_servers import REPOSITORY, free_ports, until

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(900)]

SUITE = ("--suite", "nightly", "--launch")
TOKEN = "a token of thirty-two characters"
RUN_S = 400


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    settings = yaml.safe_load((REPOSITORY / "examples/deploy/ray/dagster.yaml").read_text())
    settings["run_monitoring"]["poll_interval_seconds"] = 5
    with running_postgres() as postgres:
        team = Team(tmp_path_factory.mktemp("ray") / "team", postgres, settings=settings)
        ports = dict(zip(("port", "dashboard-port", "dashboard-agent-listen-port", "ray-client-server-port"), free_ports(4), strict=True))
        team.variables |= {
            "EVALS_DAGSTER_DATABASE": team.variables["TEAM_DAGSTER"],
            "RAY_DASHBOARD": f"http://127.0.0.1:{ports['dashboard-port']}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": TOKEN,
            "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
            "PATH": f"{Path(sys.executable).parent}:{team.variables['PATH']}",
            "ANSWER_S": "0.3",
        }
        # Ray's sockets have paths of at most 107 characters.
        scratch = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
        options = [part for name, value in ports.items() for part in (f"--{name}", str(value))]
        addresses = ["--node-ip-address", "127.0.0.1", "--dashboard-host", "127.0.0.1", "--include-dashboard", "true"]
        ray = [shutil.which("ray", path=team.variables["PATH"]) or "ray", "start", "--head", "--block", "--num-cpus", "4"]
        log = (team.folder / "ray.log").open("wb")
        cluster = subprocess.Popen(
            [*ray, *addresses, *options, "--temp-dir", scratch, "--disable-usage-stats"],
            env=team.variables,
            cwd=team.folder,
            stdout=log,
            stderr=log,
        )
        try:
            until(lambda: is_up(team.variables["RAY_DASHBOARD"]), 120, lambda: (team.folder / "ray.log").read_text())
            team.serve(answer_s=0.3)
            yield team
        finally:
            team.stop()
            end(cluster)
            log.close()
            shutil.rmtree(scratch, ignore_errors=True)


def is_up(dashboard: str) -> bool:
    request = urllib.request.Request(f"{dashboard}/api/version", headers={"Authorization": f"Bearer {TOKEN}"})
    try:
        urllib.request.urlopen(request, timeout=5).close()
    except (urllib.error.URLError, OSError):
        return False
    return True


def end(cluster: "subprocess.Popen[bytes]") -> None:
    """End the processes of the cluster: those that descend from its first one."""
    family = psutil.Process(cluster.pid).children(recursive=True) if cluster.poll() is None else []
    cluster.terminate()
    with suppress(subprocess.TimeoutExpired):
        cluster.wait(20)
    for process in [*family, *([psutil.Process(cluster.pid)] if cluster.poll() is None else [])]:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    cluster.wait()


def test_a_command_computes_nothing_here_where_the_daemon_would_end_its_run(team: Team) -> None:
    refused = team.run("--suite", "nightly")
    assert refused.returncode == 2
    assert "launches runs with RayRunLauncher" in refused.stderr
    assert team.asked() == []


def test_a_killed_ray_job_is_marked_as_failed_and_the_next_launch_gives_the_tables_of_one_machine(
    team: Team, tmp_path_factory: pytest.TempPathFactory
) -> None:
    launched = team.start("launched", "-m", "eval_dagster.cli", "run", *SUITE)
    until(
        lambda: {each[2] for each in team.asked()} == {"nines", "sevens"},
        RUN_S,
        lambda: f"{team.printed('launched')}{team.printed('daemon')}",
    )
    processes = {model: process for _, process, model, _ in team.asked()}
    assert processes["nines"] != processes["sevens"], "two models are two runs at the same time"
    psutil.Process(processes["nines"]).send_signal(signal.SIGKILL)
    assert launched.wait(RUN_S) == 1, team.printed("launched")
    assert "nines: failure" in team.printed("launched")
    assert "sevens: success" in team.printed("launched")
    done = team.run(*SUITE, timeout=RUN_S)
    assert done.returncode == 0, done.stderr
    plain = Team(tmp_path_factory.mktemp("plain") / "team", None)
    assert plain.run("--suite", "nightly").returncode == 0
    assert differences(plain.tables(), team.tables()) == {}
    assert team.asked_again() <= 1, "one answer was under way"
