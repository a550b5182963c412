"""`eval-dagster ui` leaves no process behind, and starts once on a home. tests/e2e/test_ui_endings.py does it with the real servers."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest
from dagster._daemon.types import DaemonHeartbeat

from eval_dagster.assets.instance.instance import open_instance
from eval_dagster.assets.night_watch import daemon_since
from eval_dagster.cli.servers import ui
from eval_dagster.errors import UsageError

SERVER = """
    import subprocess, sys, time
    subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)"])
    time.sleep(600)
"""
PARENT = """
    import signal, sys, time
    from pathlib import Path
    from eval_dagster.cli.servers.ui import _processes
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which `nohup` lets a whole run of tests ignore
    logs = Path(sys.argv[1])
    with _processes({{"Server": ["-c", {server!r}]}}, logs):
        (logs / "started").touch()
        time.sleep(600)
"""


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_the_servers_end_with_the_command_however_it_ends(tmp_path: Path, number: signal.Signals) -> None:
    """Before, they stayed in sessions of their own."""
    program = textwrap.dedent(PARENT).format(server=textwrap.dedent(SERVER))
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)]) as command:
        deadline = time.monotonic() + 60
        while not (tmp_path / "started").exists() or len(psutil.Process(command.pid).children(recursive=True)) < 3:
            assert command.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        started = psutil.Process(command.pid).children(recursive=True)
        time.sleep(0.5)  # until the child of the server ignores SIGINT
        command.send_signal(number)
    _, alive = psutil.wait_procs(started, timeout=30)
    for process in alive:
        process.kill()
    assert alive == []


def test_a_server_that_ends_by_itself_is_seen_with_its_status(tmp_path: Path) -> None:
    with ui._processes({"Server": ["-c", "import sys; sys.exit(7)"]}, tmp_path) as processes:
        assert processes["Server"].wait(30) == 7


def test_a_second_one_names_the_first(tmp_path: Path) -> None:
    with ui._only_one(tmp_path) as (mark, _):
        mark.write("process 17, Dagster at http://127.0.0.1:3000")
        mark.flush()
        with pytest.raises(UsageError, match=r"already runs on .* \(process 17, Dagster at http://127.0.0.1:3000\); .* two daemons"):
            ui._only_one(tmp_path).__enter__()
    with ui._only_one(tmp_path):
        pass


def test_another_daemon_of_the_instance_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "dagster"))
    with open_instance(tmp_path) as instance:
        instance.add_daemon_heartbeat(DaemonHeartbeat(time.time(), "SCHEDULER", None, None))
    with ui._only_one(tmp_path):
        assert "warning: a daemon already runs on the Dagster instance" in capsys.readouterr().err
    with ui._only_one(tmp_path):
        assert capsys.readouterr().err == "", "that of the command that has just ended is none"
    assert daemon_since(tmp_path, time.time() - 600) is not None
    os.utime(tmp_path / "locks" / "ui", (time.time() - 600,) * 2)
    with ui._only_one(tmp_path):
        assert "a daemon already runs" in capsys.readouterr().err
