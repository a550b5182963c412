"""Ctrl-C at moments in which Python or Dagster would drop it, or print a traceback."""

import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dagster._core.execution import compute_logs

from eval_dagster.assets.runs.in_process_runs import _interruption_kept, _output_processes_without_sigint

WORK = """
    import sys, time
    from types import SimpleNamespace
    from eval_dagster.cli import main

    class Busy:
        def __del__(self):
            {fault}

    def work(**_):
        busy = Busy()
        del busy
        time.sleep(20)

    main.app = work
    main.program()
"""
LOGGED = """
    import logging
    from eval_dagster.cli import main

    def work(**_):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            logging.getLogger("sqlalchemy.pool").exception("Exception closing connection")
            raise

    main.app = work
    main.program()
"""


@pytest.fixture
def swallowing() -> Iterator[None]:
    """A handler that takes note of a signal and goes on, as Dagster's between two steps."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("swallowing")
def test_an_interrupt_that_dagster_drops_ends_the_command_after_the_run() -> None:
    with pytest.raises(KeyboardInterrupt), _interruption_kept():
        signal.raise_signal(signal.SIGINT)
    with _interruption_kept():
        signal.raise_signal(signal.SIGCHLD)
    with pytest.raises(ValueError, match="other"), _interruption_kept():
        raise ValueError("other")


def test_processes_that_show_the_output_of_a_step_have_no_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dagsters_tail: Any
) -> None:
    (tmp_path / "out").touch()
    monkeypatch.setattr(compute_logs, "execute_posix_tail", dagsters_tail)
    with _output_processes_without_sigint(), compute_logs.tail_to_stream(str(tmp_path / "out"), sys.__stdout__) as processes:
        for process in processes:
            [blocked] = re.findall(r"SigBlk:\s*(\w+)", Path(f"/proc/{process}/status").read_text())
            assert int(blocked, 16) == 1 << (signal.SIGINT - 1)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def ended(code: str) -> tuple[int, str]:
    """Status and standard error of a program."""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return process.returncode, process.stderr


def test_an_interrupt_in_a_destructor_is_not_lost() -> None:
    assert ended(WORK.format(fault="raise KeyboardInterrupt")) == (130, "interrupted\n")


def test_a_thread_that_has_no_memory_to_begin_ends_the_process() -> None:
    fault = "sys.unraisablehook(SimpleNamespace(exc_type=MemoryError, err_msg='Exception ignored in thread started by'))"
    assert ended(WORK.format(fault=fault))[0] == -signal.SIGKILL


def test_an_interrupt_that_a_library_logs_is_no_traceback() -> None:
    assert ended(LOGGED) == (130, "interrupted\n")
