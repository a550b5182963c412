"""Notices, sent by apprise to a real server on loopback."""

import contextlib
import json
import logging
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from commands import run_command

from eval_dagster.errors import UsageError
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.notifications import delivery as notices
from eval_dagster.notifications.delivery import NoticeOutcome, notify
from eval_dagster.notifications.outbox import Kind
from eval_dagster.project import Project

SECRET = "s3cr3tT0k3n"
CONFIG = """
models: {{one: {{backend: scripted}}}}
evals: {{capitals: {{task: capitals}}}}
suites:
  nightly: {{evals: [capitals], models: [one], notify: {notify}}}
"""


@dataclass(kw_only=True)
class Receiver:
    """A server that answers with these statuses in turn, then always with the last."""

    port: int
    statuses: list[int] = field(default_factory=lambda: [200])
    seconds: float = 0.0
    received: list[dict[str, Any]] = field(default_factory=list)

    def address(self, parameters: str = "wait=0.05") -> str:
        return f"json://user:{SECRET}@127.0.0.1:{self.port}/hooks/{SECRET}?{parameters}"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            at = receiving.received
            at.append({"path": self.path, "header": self.headers["Idempotency-Key"], **content})
            time.sleep(receiving.seconds)
            with contextlib.suppress(BrokenPipeError):
                self.send_response(receiving.statuses[min(len(at), len(receiving.statuses)) - 1])
                self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiving = Receiver(port=server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield receiving
    server.shutdown()
    server.server_close()


def project(tmp_path: Path, names: str = "[EVALS_HOOK]") -> Project:
    (tmp_path / "evals.yaml").write_text(CONFIG.format(notify=names))
    return Project.open(tasks={"capitals": object}, config_path=tmp_path / "evals.yaml", home=tmp_path / "home")  # type: ignore[dict-item]


def tell(opened: Project, title: str = "nightly: worse in capitals", kind: Kind = "regression") -> NoticeOutcome:
    return notify(opened, "nightly", title=title, body="0.8 → 0.7 | <b>&", kind=kind, run_id="a-run")


def recorded(opened: Project) -> list[dict[str, Any]]:
    return read_rows(opened.lake, "select * from notices order by attempted_at, variable")


def dead_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.long
def test_a_notice_arrives_as_it_was_written(tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVALS_HOOK", receiver.address())
    opened = project(tmp_path)
    outcome = tell(opened)
    assert outcome.is_sent
    assert outcome.words() == "sent to EVALS_HOOK"
    (received,) = receiver.received
    assert received["title"] == "nightly: worse in capitals"
    (row,) = recorded(opened)
    assert received["message"] == f"0.8 → 0.7 | <b>&\nNotice {row['notice_id']}"
    assert received["id"] == received["header"] == row["notice_id"], "by which a second copy can be dropped"
    assert received["type"] == "failure"
    assert received["path"] == f"/hooks/{SECRET}"
    assert {name: row[name] for name in ("suite", "kind", "title", "body", "variable", "status", "attempts", "error", "run_id")} == {
        "suite": "nightly",
        "kind": "regression",
        "title": "nightly: worse in capitals",
        "body": "0.8 → 0.7 | <b>&",
        "variable": "EVALS_HOOK",
        "status": "sent",
        "attempts": 1,
        "error": None,
        "run_id": "a-run",
    }
    assert row["attempted_at"] <= row["sent_at"]


@pytest.mark.long
def test_a_server_that_fails_twice_is_asked_again(tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver.statuses = [500, 500, 200]
    monkeypatch.setenv("EVALS_HOOK", receiver.address())
    opened = project(tmp_path)
    outcome = tell(opened)
    assert outcome.is_sent
    assert outcome.words() == "sent to EVALS_HOOK at attempt 3"
    assert len(receiver.received) == 3
    assert recorded(opened)[0]["attempts"] == 3


@pytest.mark.long
def test_a_server_that_keeps_failing_is_recorded(tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver.statuses = [503]
    monkeypatch.setenv("EVALS_HOOK", receiver.address())
    opened = project(tmp_path)
    outcome = tell(opened)
    assert not outcome.is_sent
    assert outcome.words() == "failed (EVALS_HOOK): JSON: answered with HTTP status 503"
    (row,) = recorded(opened)
    assert (row["status"], row["attempts"], row["sent_at"]) == ("failed", 4, None)


@pytest.mark.long
def test_where_nobody_listens_it_ends_within_the_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVALS_HOOK", f"json://127.0.0.1:{dead_port()}?wait=0.05")
    opened = project(tmp_path)
    began = time.monotonic()
    outcome = tell(opened)
    assert time.monotonic() - began < 20
    assert outcome.deliveries[0].error == "JSON: no connection"
    assert recorded(opened)[0]["status"] == "failed"


@pytest.mark.long
@pytest.mark.parametrize(
    ("kill_after_s", "error"),
    [(10.0, "JSON: no answer in time; it may have arrived"), (-2.0, "not done within 1 s")],
    ids=["by the program that sends", "by ending that program"],
)
def test_a_service_that_hangs_is_given_up(
    kill_after_s: float, error: str, tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.seconds = 30
    monkeypatch.setattr(notices, "_TIMEOUT_S", 3.0)
    monkeypatch.setattr(notices, "_KILL_AFTER_S", kill_after_s)
    monkeypatch.setenv("EVALS_HOOK", receiver.address("rto=60"))
    began = time.monotonic()
    outcome = tell(project(tmp_path))
    assert time.monotonic() - began < 15
    assert outcome.deliveries[0].error == error


@pytest.mark.long
def test_several_addresses_each_have_their_outcome(tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVALS_HOOK", f"{receiver.address()}, json://127.0.0.1:{dead_port()}?retry=0\n{receiver.address()}")
    monkeypatch.setenv("EVALS_OTHER", receiver.address())
    opened = project(tmp_path, "[EVALS_HOOK, EVALS_OTHER]")
    first, second = tell(opened).deliveries
    assert first.error == "2 of 3 addresses reached; JSON: no connection"
    assert second.status == "sent"
    assert len(receiver.received) == 3
    assert [row["status"] for row in recorded(opened)] == ["failed", "sent"]


def test_no_address_is_recorded(tmp_path: Path) -> None:
    opened = project(tmp_path, "[]")
    outcome = tell(opened)
    assert not outcome.is_sent
    assert outcome.words() == "no address: the suite has no `notify` in evals.yaml"
    assert [(row["status"], row["variable"]) for row in recorded(opened)] == [("no address", None)]


@pytest.mark.long
@pytest.mark.parametrize("value", [None, " \n"])
def test_a_missing_variable_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv("EVALS_HOOK", raising=False)
    if value is not None:
        monkeypatch.setenv("EVALS_HOOK", value)
    opened = project(tmp_path)
    assert "EVALS_HOOK is not set, or empty" in str(tell(opened).deliveries[0].error)
    assert recorded(opened)[0]["status"] == "failed"


@pytest.mark.long
@pytest.mark.parametrize("address", [f"{SECRET}", f"nothing://{SECRET}", f"slack://{SECRET}", f"json:/{SECRET}"])
def test_a_malformed_address_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("EVALS_HOOK", address)
    opened = project(tmp_path)
    outcome = tell(opened)
    assert outcome.deliveries[0].error == "address 1: apprise cannot send to this address"
    assert SECRET not in str(recorded(opened))


@pytest.mark.long
def test_words_before_an_address_count_as_one(tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVALS_HOOK", f"slack//{SECRET} {receiver.address()}")
    outcome = tell(project(tmp_path))
    assert outcome.deliveries[0].error == "1 of 2 addresses reached; address 1: apprise cannot send to this address"


@pytest.mark.long
@pytest.mark.parametrize("statuses", [[200], [500, 200], [404]])
def test_an_address_is_written_nowhere(
    tmp_path: Path,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    statuses: list[int],
) -> None:
    caplog.set_level(logging.DEBUG - 5)
    receiver.statuses = statuses
    monkeypatch.setenv("EVALS_HOOK", f"{receiver.address()} slack://{SECRET}")
    opened = project(tmp_path)
    outcome = tell(opened)
    tell(opened)
    printed = capfd.readouterr()
    for text in (repr(outcome), outcome.words(), caplog.text, printed.out, printed.err, str(recorded(opened))):
        assert SECRET not in text
    for path in tmp_path.rglob("*"):
        assert SECRET not in path.name
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
    assert receiver.received


@pytest.mark.long
def test_what_reached_nobody_is_sent_after_the_next_notice(tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = project(tmp_path)
    monkeypatch.delenv("EVALS_HOOK", raising=False)
    tell(opened, "one")
    tell(opened, "a test", kind="test")
    tell(opened, "two")
    monkeypatch.setenv("EVALS_HOOK", receiver.address())
    tell(opened, "three")
    tell(opened, "four")
    assert [each["title"] for each in receiver.received] == ["three", "one", "two", "four"]
    assert "\nWritten 20" in receiver.received[1]["message"]
    assert "UTC, and not sent before: the environment variable EVALS_HOOK is not set" in receiver.received[1]["message"]
    assert [row["status"] for row in recorded(opened)] == ["failed", "sent", "sent", "sent", "sent"], "the test alone stays unsent"


def test_a_lake_that_cannot_be_written_fails_no_run(tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVALS_HOOK", receiver.address())
    opened = project(tmp_path)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "lake").write_text("in the way")
    outcome = tell(opened)
    assert outcome.is_sent
    assert "not recorded: " in outcome.words()
    assert len(receiver.received) == 1


def test_an_unknown_suite_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown suite 'nihgtly'; did you mean 'nightly'"):
        notify(project(tmp_path), "nihgtly", title="", body="", kind="test")


def command(opened: Project, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "EVAL_DAGSTER_CONFIG": str(opened.config_path), "EVAL_DAGSTER_HOME": str(opened.home)}
    return run_command("notify", *arguments, environment=environment)


@pytest.mark.long
def test_the_command_sends_a_test(tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVALS_HOOK", receiver.address())
    done = command(project(tmp_path), "nightly")
    assert (done.returncode, done.stdout, done.stderr) == (0, "sent to EVALS_HOOK\n", "")
    assert receiver.received[0]["title"] == "nightly: this is a test"
    assert receiver.received[0]["type"] == "info"


@pytest.mark.long
def test_the_command_says_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVALS_HOOK", f"slack://{SECRET}")
    done = command(project(tmp_path), "nightly")
    assert done.returncode == 1
    assert done.stderr == "not sent: failed (EVALS_HOOK): address 1: apprise cannot send to this address\n"
    assert command(project(tmp_path), "nihgtly").returncode == 2


def test_a_damaged_file_hides_no_other_notice(tmp_path: Path) -> None:
    opened = project(tmp_path, "[]")
    tell(opened, "one")
    tell(opened, "two")
    first, _ = sorted((opened.lake.root / "notices").rglob("*.parquet"))
    first.write_bytes(first.read_bytes()[:100])
    tell(opened, "three")
    assert [row["title"] for row in recorded(opened)] == ["two", "three"]
    assert read_rows(opened.lake, "select path from damaged_files") == [{"path": str(first)}]
