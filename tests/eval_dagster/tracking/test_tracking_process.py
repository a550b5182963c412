"""The process that writes to MLflow: what it writes, what it says, and how it ends."""

import gc
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psutil
import pytest
from test_tracking import all_runs, client_of, result, tracker

from eval_dagster.errors import TrackingError
from eval_dagster.progress.reporting import CombinedReporter, use_reporter
from eval_dagster.stores.locks import locked
from eval_dagster.tracking.store import forget_connections
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
    found = []
    for each in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # also one that has ended, and that nobody has waited for
            if "eval_dagster.tracking.process" in " ".join(each.cmdline()):
                found.append(each)
    return found


@pytest.fixture
def process(writer: Tracker) -> psutil.Process:
    (found,) = children()
    return found


@pytest.mark.parametrize("is_aside", [True, False], ids=["another process", "this process"])
def test_a_home_that_was_deleted_or_restored_has_its_own_runs(home: Path, tmp_path_factory: pytest.TempPathFactory, is_aside: bool) -> None:
    """A notebook or a daemon writes on, while a person removes the home or puts a copy back."""
    made = tracker(home)
    if is_aside:
        made.begin()
    began = [each.pid for each in children()]
    assert bool(began) == is_aside
    first = made.log(result("k1"))
    kept = tmp_path_factory.mktemp("kept") / "home"
    shutil.copytree(home, kept)
    second = made.log(result("k2"))
    shutil.rmtree(home)
    shutil.copytree(kept, home)
    assert made.exists(first)
    assert not made.exists(second)
    assert made.log(result("k1")) == first
    again = made.log(result("k2"))
    assert {run.info.run_id for run in all_runs(home)} == {first, again}
    shutil.rmtree(home)
    home.mkdir()
    page = kept / "page.html"
    page.write_text("a page")
    report = made.log_page(page, key="report/night", run_name="night", tags={})
    anew = made.log(result("k1"))
    made.log_file(anew, page)
    forget_connections(home / "mlflow.db")  # of this test
    assert {run.info.run_id for run in all_runs(home)} == {report, anew} != {report, first}
    assert [each.pid for each in children()] == began
    made.close()


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


@pytest.mark.long
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


@pytest.mark.long
def test_files_in_the_current_folder_are_not_taken_for_libraries(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = home / "work"
    folder.mkdir()
    for name in ("json", "requests", "queue", "eval_dagster"):
        (folder / f"{name}.py").write_text("raise SystemExit('a file of the user')")
    monkeypatch.chdir(folder)
    writer = tracker(home)
    writer.begin()
    try:
        (process,) = children()
        writer.log(result())
        assert "mlflow" not in sys.modules
        assert process.is_running()
    finally:
        writer.close()


@pytest.mark.long
def test_a_process_that_cannot_import_leaves_the_writing_to_this_one(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a library is on the path of this process alone."""
    (home / "broken" / "mlflow").mkdir(parents=True)
    (home / "broken" / "mlflow" / "__init__.py").write_text("import a_package_that_nobody_has")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [str(home / "broken"), *sys.path])
        writer = tracker(home)
        writer.begin()
    try:
        assert client_of(home).get_run(writer.log(result())).info.status == "FINISHED"
    finally:
        writer.close()


@pytest.mark.long
def test_a_message_that_cannot_be_shown_costs_no_result(home: Path) -> None:
    class Broken(Notes):
        def note(self, line: str) -> None:
            super().note(line)
            raise RuntimeError("no screen")

    notes, writer = Broken(), tracker(home)
    try:
        with use_reporter(notes):
            writer.begin()
            with locked(home / "mlflow.lock"):
                waits = writer.begin_log(result())
                until = time.monotonic() + 60
                while not notes.notes and time.monotonic() < until:
                    time.sleep(0.05)
            assert waits()
        assert notes.notes
    finally:
        writer.close()


@pytest.mark.long
def test_threads_get_their_own_results(writer: Tracker) -> None:
    known = [writer.log(result(key)) for key in ("k0", "k1", "k2")]
    wrong: list[object] = []

    def ask(number: int) -> None:
        for _ in range(100):
            found = writer._begun(writer._facts_by_client, known[number] if number < 3 else "0" * 32)()
            if (found is None) == (number < 3):
                wrong.append((number, found))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


@pytest.mark.long
def test_a_forked_process_writes_itself_and_leaves_the_other_one_alone(writer: Tracker, process: psutil.Process) -> None:
    writer.log(result())
    child = os.fork()
    if child == 0:
        status = 1
        try:
            call = writer._process.call("_log", result()) if writer._process else None
            writer._end = None  # type: ignore[attr-defined]
            writer._process = None
            gc.collect()
            status = 0 if call is not None and call.exception(timeout=5) is not None else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert process.is_running()
    assert writer.log(result("k2"))
    assert children()


@pytest.mark.long
def test_what_waits_for_a_lock_is_not_written_after_the_end(home: Path) -> None:
    """As after Ctrl-C, when the command has ended without the result."""
    with locked(home / "mlflow.lock"):
        writer = tracker(home)
        writer.begin()
        (process,) = children()
        other = tracker(home)  # shares the process, and waits without it
        writer.begin_log(result())
        time.sleep(8)  # for its import
        started = time.monotonic()
        writer._process._connection.send(None)  # type: ignore[union-attr]
        time.sleep(1)
        assert process.is_running()
    process.wait(30)
    assert time.monotonic() - started < 20
    other.prepare()
    assert all_runs(home) == []
    writer.close()


@pytest.mark.long
def test_a_start_that_is_not_possible_leaves_the_writing_to_this_process(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", None)
    writer = tracker(home)
    writer.begin()
    assert client_of(home).get_run(writer.log(result())).info.status == "FINISHED"


def test_an_end_without_a_call_waits_for_no_import(home: Path) -> None:
    writer = tracker(home)
    writer.begin()
    started = time.monotonic()
    writer.close()
    assert time.monotonic() - started < 3


class Refusing(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/health":
            self.send_response(200)
            self.end_headers()
        else:
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


def test_a_password_in_the_address_stays_secret(home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        writer = Tracker(home=home, tracking_uri=f"http://me:TOPSECRET@127.0.0.1:{server.server_port}", experiment="tests")
        writer.begin()
        try:
            for call in (lambda: writer.exists("0" * 32), lambda: writer.log(result())):
                with pytest.raises(TrackingError) as caught:
                    call()
                assert "could not" in str(caught.value)
                assert "TOPSECRET" not in "".join(traceback.format_exception(caught.value))
        finally:
            writer.close()
            server.shutdown()
            thread.join()
    assert "TOPSECRET" not in caplog.text
