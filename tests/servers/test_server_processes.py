"""Servers end with the test, however it ends."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from servers.processes import running_server
from servers.stub import stub_server

TESTS = Path(__file__).resolve().parents[1]
ENDING_S = 20


def test_a_server_ends_after_a_failure(tmp_path: Path) -> None:
    pids = []

    def fail() -> None:
        with stub_server(tmp_path) as stub:
            pids.append(stub.server.pid)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not any(map(is_alive, pids))


def test_a_server_ends_with_a_killed_process(tmp_path: Path) -> None:
    program = f"""
        import os, signal
        from pathlib import Path
        from servers.stub import stub_server
        with stub_server(Path({str(tmp_path)!r})) as stub:
            print(stub.server.pid, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    """
    killed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], env=os.environ | {"PYTHONPATH": str(TESTS)}, stdout=subprocess.PIPE, text=True
    )
    assert killed.returncode == -signal.SIGKILL
    pid, deadline = int(killed.stdout), time.monotonic() + ENDING_S
    while is_alive(pid):
        assert time.monotonic() < deadline, f"the server runs {ENDING_S} s after the process that started it was killed"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match=r"ended with status 1(.|\n)*not enough values"),
        running_server("fault_program", model="none", folder=tmp_path),
    ):
        pass
