"""The process that writes to MLflow: what it writes, what it says, and how it ends."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from test_tracking import all_runs, client_of, result, tracker

from eval_dagster.errors import TrackingError
from eval_dagster.progress.reporting import CombinedReporter, use_reporter
from eval_dagster.stores.locks import locked
from eval_dagster.tracking.tracker import Tracker


class Notes(CombinedReporter):
    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def note(self, line: str) -> None:
        self.notes.append(line)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delitem(sys.modules, "mlflow")  # else no process is started
    return tmp_path


@pytest.fixture
def writer(home: Path) -> Iterator[Tracker]:
    made = tracker(home)
    made.begin()
    yield made
    made.close()


def children() -> list[psutil.Process]:
    return [each for each in psutil.Process().children() if "eval_dagster.tracking.process" in each.cmdline()]


@pytest.fixture
def process(writer: Tracker) -> psutil.Process:
    (found,) = children()
    return found


def test_what_it_writes_is_what_this_process_would_write(
    writer: Tracker, tmp_path_factory: pytest.TempPathFactory, process: psutil.Process
) -> None:
    here = tmp_path_factory.mktemp("here")
    waits = [writer.begin_log(result(key)) for key in ("k1", "k2")]
    ids = [each() for each in waits]
    assert "mlflow" not in sys.modules
    page = here / "page.html"
    page.write_text("a page")
    writer.log_file(ids[0], page)
    report = writer.log_page(page, key="report/night", run_name="night · report", tags={"suite": "night"})
    assert writer.log(result("k1")) == ids[0]
    assert all(map(writer.exists, (*ids, report)))
    other = tracker(here)
    other.log_file(other.log(result("k1")), page)
    (written,) = [each for each in all_runs(writer._home) if each.info.run_id == ids[0]]
    (expected,) = all_runs(here)
    assert (written.data.params, written.data.metrics) == (expected.data.params, expected.data.metrics)
    assert {path.name: path.read_bytes() for path in (writer._home / "mlartifacts").rglob(f"{ids[0]}/artifacts/*")} == {
        path.name: path.read_bytes() for path in (here / "mlartifacts").rglob("artifacts/*")
    }
    writer.close()
    assert not process.is_running()


def test_calls_of_a_killed_process_are_made_here(writer: Tracker, process: psutil.Process) -> None:
    with locked(writer._home / "mlflow.lock"):
        waits = writer.begin_log(result())
        process.kill()
    run_id = waits()
    assert client_of(writer._home).get_run(run_id).info.status == "FINISHED"
    assert writer.log(result("k2")) != run_id
    assert not children()


def test_a_result_that_cannot_be_sent_is_written_here(writer: Tracker) -> None:
    class Setting:
        """Of a class that no other process can import."""

        def __str__(self) -> str:
            return "seven"

    run_id = writer.log(result(params={"setting": Setting()}))
    assert client_of(writer._home).get_run(run_id).data.params == {"setting": "seven"}


def test_a_failure_is_the_one_of_its_call(home: Path) -> None:
    writer = tracker(home / "what?")
    writer.begin()
    try:
        waits = [writer.begin_log(result(key)) for key in ("k1", "k2")]
        for each in waits:
            with pytest.raises(TrackingError, match="choose another folder"):
                each()
        assert children(), "it goes on"
    finally:
        writer.close()


def test_warnings_and_notes_are_those_of_this_process(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    (home / "mlflow.db").write_text("this is no database, but a text " * 100)
    os.utime(home / "mlflow.db", (0, 0))
    notes, released = Notes(), threading.Event()

    def hold() -> None:
        with locked(home / "mlflow.lock"):
            held.set()
            released.wait(60)

    held = threading.Event()
    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    writer = tracker(home)
    try:
        with use_reporter(notes), caplog.at_level(logging.WARNING):
            writer.begin()
            waits = writer.begin_log(result())
            until = time.monotonic() + 60
            while not notes.notes and time.monotonic() < until:
                time.sleep(0.05)
            released.set()
            waits()
    finally:
        released.set()
        holder.join()
        writer.close()
    (note,) = notes.notes
    assert note.startswith(f"waiting for the lock {home / 'mlflow.lock'}, which process {os.getpid()} on ")
    (message,) = caplog.messages
    assert f"{home / 'mlflow.db'} was damaged (" in message


SCRIPT = """
import os, sys
from pathlib import Path
from eval_dagster.tracking.tracker import Tracker

writer = Tracker(home=Path(sys.argv[1]), tracking_uri=None, experiment="tests")
writer.begin()
print(writer._process.pid, flush=True)
input()
"""


@pytest.mark.parametrize("end", ["at its end", "SIGINT", "SIGKILL"])
def test_it_ends_with_this_process(home: Path, end: str) -> None:
    with subprocess.Popen([sys.executable, "-c", SCRIPT, str(home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdin
        assert parent.stdout
        writer = psutil.Process(int(parent.stdout.readline()))
        if end == "at its end":
            parent.stdin.write("\n")
            parent.stdin.flush()
        else:
            os.kill(parent.pid, signal.Signals[end])
        parent.wait(30)
    writer.wait(30)
    assert not writer.is_running()


def test_a_process_that_has_mlflow_writes_itself(tmp_path: Path) -> None:
    writer = tracker(tmp_path)
    writer.begin()
    assert not children()
