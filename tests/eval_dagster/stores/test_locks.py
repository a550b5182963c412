"""A process that waits for a lock of this machine reports who holds it."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from eval_dagster.progress.reporting import LogReporter, use_reporter
from eval_dagster.stores import locks
from eval_dagster.stores.locks import locked

HOLDER = """
import sys
from pathlib import Path
from eval_dagster.stores.locks import locked

with locked(Path(sys.argv[2])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> "subprocess.Popen[str]":
    """A process that holds a lock until its standard input ends."""
    command = [sys.executable, "-c", HOLDER, "gc", str(tmp_path / "catalog")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.parametrize("has_reporter", [False, True])
def test_a_long_wait_is_told_once_with_the_holder(
    holder: "subprocess.Popen[str]",
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    has_reporter: bool,
) -> None:
    monkeypatch.setattr(locks, "TOLD_AFTER_S", 0.05)
    lines: list[str] = []
    release = threading.Timer(0.5, holder.communicate)
    release.start()
    if has_reporter:
        with use_reporter(LogReporter(lines.append)), locked(tmp_path / "catalog"):
            pass
    else:
        with locked(tmp_path / "catalog"):
            pass
    release.join()
    told = capsys.readouterr().err.splitlines()
    assert (lines, told)[has_reporter] == []
    [line] = lines or told
    assert line.startswith(f"waiting for the lock {tmp_path / 'catalog'}, which process {holder.pid} on ")
    assert line.endswith(" UTC) holds")
    assert "(-c gc since " in line


def test_a_short_wait_is_not_told(holder: "subprocess.Popen[str]", tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    release = threading.Timer(0.1, holder.communicate)
    release.start()
    with locked(tmp_path / "catalog"):
        pass
    release.join()
    assert capsys.readouterr().err == ""


def test_a_lock_is_held_where_its_file_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full() -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(locks, "_this_process", full)
    with locked(tmp_path / "catalog"):
        assert locks.is_held(tmp_path / "catalog")
