"""A notice is written before it is sent, said to be sent only where it was, and sent by whoever comes next."""

import multiprocessing
import os
import signal
import textwrap
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from notice_receivers import NoticeReceiver, notice_receiver

from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.notifications import delivery
from eval_dagster.notifications.delivery import NoticeOutcome, is_any_left, notify, notify_all, send_left
from eval_dagster.notifications.outbox import Message, Unsent, sending, unsent
from eval_dagster.project import Project

CONFIG = """
    models: {one: {backend: scripted}}
    evals: {capitals: {task: capitals}}
    suites:
      nightly: {evals: [capitals], models: [one], notify: [EVALS_HOOK]}
"""


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[NoticeReceiver]:
    with notice_receiver() as receiver:
        monkeypatch.setenv("EVALS_HOOK", receiver.address)
        monkeypatch.setattr(delivery, "_TIMEOUT_S", 5.0)
        yield receiver


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "evals.yaml").write_text(textwrap.dedent(CONFIG))
    return Project.open(config_path=tmp_path / "evals.yaml", home=tmp_path / "home")


def _tell(project: Project, title: str = "nightly: worse in capitals") -> NoticeOutcome:
    return notify(project, "nightly", title=title, body="0.8 → 0.2", kind="regression", run_id="a-run", night="2026-01-31T02:30:00+00:00")


def _rows(project: Project) -> list[dict[str, Any]]:
    publish(project.lake)
    return read_rows(project.lake, "select * from notices order by written_at")


@pytest.mark.long
@pytest.mark.parametrize(
    ("mode", "error", "came"),
    [
        ("redirects", "JSON: answered with a redirect (HTTP status 302), which is not followed: write the address that it leads to", 1),
        (
            "redirects and keeps",
            "JSON: answered with a redirect (HTTP status 307), which is not followed: write the address that it leads to",
            1,
        ),
        ("busy", "JSON: answered with HTTP status 429", 1),
        ("fails", "JSON: answered with HTTP status 500", 4),
        ("refuses", "JSON: answered with HTTP status 403", 1),
        ("cuts", "JSON: the connection ended without an answer", 4),
    ],
)
def test_a_receiver_that_fails_is_not_said_to_have_it_and_gets_it_once_it_takes_it(
    project: Project, receiver: NoticeReceiver, mode: str, error: str, came: int
) -> None:
    receiver.mode = mode
    outcome = _tell(project)
    assert (outcome.is_sent, outcome.deliveries[0].error) == (False, error)
    assert (len(receiver.came), receiver.emptied) == (came, []), "nothing was sent to another address"
    [row] = _rows(project)
    assert (row["status"], row["sent_at"], row["attempts"]) == ("failed", None, came)
    receiver.mode = "well"
    [later] = send_left(project)
    assert later.is_sent
    assert len(receiver.taken) == 1
    [row] = _rows(project)
    assert (row["status"], row["attempts"]) == ("sent", came + 1)
    assert {notice["id"] for notice in receiver.came} == {notice["key"] for notice in receiver.came} == {row["notice_id"]}
    assert send_left(project) == []
    assert not is_any_left(project.home)


@pytest.mark.long
def test_a_slow_receiver_gets_it_once(project: Project, receiver: NoticeReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default of the library is to give up after 4 s and to send again."""
    monkeypatch.setattr(delivery, "_TIMEOUT_S", 30.0)
    receiver.mode, receiver.seconds = "slow", 5.0
    assert _tell(project).is_sent
    assert len(receiver.came) == len(receiver.taken) == 1


@pytest.mark.long
def test_a_receiver_that_is_too_slow_may_have_it_and_is_told_again_under_the_same_id(project: Project, receiver: NoticeReceiver) -> None:
    receiver.mode, receiver.seconds = "slow", 60.0
    outcome = _tell(project)
    assert outcome.deliveries[0].error == "JSON: no answer in time; it may have arrived"
    assert len(receiver.came) == 1, "no second copy at once"
    receiver.mode = "well"
    assert send_left(project)[0].is_sent
    assert len(receiver.ids("worse")) == 1


@pytest.mark.long
def test_an_answer_without_end_is_an_answer(project: Project, receiver: NoticeReceiver) -> None:
    receiver.mode = "endless"
    assert _tell(project).is_sent
    assert len(receiver.came) == 1


@pytest.mark.long
@pytest.mark.parametrize("when", ["while the receiver works", "after it was taken"])
def test_what_a_killed_program_left_is_sent_by_the_next(project: Project, receiver: NoticeReceiver, when: str) -> None:
    receiver.mode, receiver.seconds = "slow" if when.startswith("while") else "well", 60.0
    killed = multiprocessing.get_context("spawn").Process(target=_tell_and_die, args=(project.config_path, project.home, when))
    killed.start()
    killed.join(60)
    assert killed.exitcode == -signal.SIGKILL
    [row] = _rows(project)
    assert (row["status"], row["sent_at"]) == ("unsent", None)
    assert is_any_left(project.home)
    receiver.mode = "well"
    [outcome] = send_left(project, is_patient=True)
    assert outcome.is_sent
    assert {notice["id"] for notice in receiver.taken[-1:]} == {row["notice_id"]} == receiver.ids("worse")
    assert [row["status"] for row in _rows(project)] == ["sent"]


def _tell_and_die(config: Path, home: Path, when: str) -> None:
    """Send a notice, and be killed at some point of that."""
    send = delivery._deliver

    def deliver(*arguments: Any) -> Any:
        if when.startswith("after"):
            send(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    delivery._deliver = deliver
    _tell(Project.open(config_path=config, home=home))


@pytest.mark.long
def test_all_notices_of_a_night_are_written_before_the_first_is_sent(project: Project, receiver: NoticeReceiver) -> None:
    written: list[int] = []
    receiver.on_notice = lambda: written.append(len(unsent(project, "nightly")))
    both = [Message(kind="regression", title="worse", body=""), Message(kind="failure", title="failed", body="")]
    assert [outcome.is_sent for outcome in notify_all(project, "nightly", both)] == [True, True]
    assert written == [2, 1]


@pytest.mark.long
def test_what_a_program_is_sending_is_left_to_it(project: Project, receiver: NoticeReceiver) -> None:
    receiver.mode = "fails"
    _tell(project)
    [left] = unsent(project, "nightly")
    receiver.mode = "well"
    with sending(project.home, [left.notice_id]) as is_free:
        assert is_free
        assert send_left(project) == []
    assert send_left(project)[0].is_sent


@pytest.mark.long
def test_an_address_that_took_it_gets_it_no_second_time(
    project: Project, receiver: NoticeReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with notice_receiver() as other:
        monkeypatch.setenv("EVALS_HOOK", f"{receiver.address} {other.address}")
        other.mode = "refuses"
        assert "1 of 2 addresses reached" in str(_tell(project).deliveries[0].error)
        other.mode = "well"
        assert send_left(project)[0].is_sent
        assert (len(receiver.taken), len(other.taken)) == (1, 1)


def test_one_who_looks_again_and_again_waits_longer_each_time(project: Project, receiver: NoticeReceiver) -> None:
    receiver.mode = "refuses"
    _tell(project)
    assert send_left(project, is_patient=True) == [], "a minute has not passed"
    [left] = unsent(project, "nightly")
    last = max(row["attempted_at"] for row in left.rows)
    for tries, minutes in ((1, 1), (2, 2), (5, 16), (30, 360)):
        again = Unsent(suite="nightly", notice_id=left.notice_id, rows=left.rows, tries=tries)
        assert not again.is_due(last + timedelta(minutes=minutes - 0.5))
        assert again.is_due(last + timedelta(minutes=minutes + 0.5))
    assert not again.is_due(last + timedelta(days=8))
