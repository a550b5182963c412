"""A night whose gate was killed is told: what it had written by whoever comes next, what it had judged by the sensor and the watch."""

import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from daemon_by_hand import FAILURE, Nights
from few import few
from notice_receivers import NoticeReceiver, notice_receiver

from eval_dagster.assets.instance.instance import open_instance
from eval_dagster.assets.night_watch import watch_nights
from eval_dagster.assets.runs.run_summaries import INTERRUPTED, step_messages
from eval_dagster.assets.tags import JUDGED_BY_TAG, SINCE_TAG, suite_tags
from eval_dagster.cli.check_nights import _requested
from eval_dagster.gate.records import GateResult
from eval_dagster.gate.results import write_result
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.notifications.delivery import is_any_left, notify
from eval_dagster.project import Project
from eval_dagster.records.judgements import Regression, Verdict
from eval_dagster.remembered import Remembered

CONFIG = """
    models:
      a: {backend: scripted, default: " 7"}
    evals:
      one: {task: arithmetic, limit: 2}
    suites:
      nightly: {evals: [one], models: [a], cron: "30 2 * * *", notify: [PAGER]}
      other: {evals: [one], models: [a]}
"""
TICK = datetime(2026, 1, 31, 2, 30, tzinfo=UTC)


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[NoticeReceiver]:
    with notice_receiver() as receiver:
        monkeypatch.setenv("PAGER", receiver.address)
        yield receiver


@pytest.fixture
def nights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, receiver: NoticeReceiver) -> Iterator[Nights]:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home" / "dagster"))
    (tmp_path / "evals.yaml").write_text(textwrap.dedent(CONFIG))
    project = Project.open(config_path=tmp_path / "evals.yaml", home=tmp_path / "home")
    with open_instance(project.home) as instance:
        yield Nights(project, instance)


def _judge(project: Project, gate: dg.DagsterRun, verdict: Verdict = Verdict.REGRESSED) -> None:
    row = Regression(suite="nightly", eval="one", model="a", metric="exact_number", verdict=verdict)
    judged = GateResult(
        suite="nightly",
        judged_at=datetime.now(UTC),
        run_id=gate.run_id,
        alpha=0.05,
        level=0.05,
        severity="error",
        regressions=[row],
        changes=[],
    )
    write_result(project.lake, judged)


def _killed_command(nights: Nights) -> dg.DagsterRun:
    """The gate of a command that ended without an end."""
    tags = {**suite_tags(nights.project.home, "nightly"), SINCE_TAG: datetime.now(UTC).isoformat(), JUDGED_BY_TAG: "command"}
    return nights.start(dg.RunRequest(tags=tags), "gate_nightly")


def _statuses(project: Project) -> list[tuple[str, str]]:
    publish(project.lake)
    return [(row["title"], row["status"]) for row in read_rows(project.lake, "select title, status from notices order by written_at")]


@pytest.mark.long
def test_a_gate_that_was_killed_while_it_sent_is_told_under_the_id_that_it_gave(nights: Nights, receiver: NoticeReceiver) -> None:
    nights.night(TICK)
    gate = nights.start(nights.sense()[0])
    _judge(nights.project, gate)
    receiver.mode = "cuts"
    notify(nights.project, "nightly", title="nightly: worse in one", body="", kind="regression", run_id=gate.run_id, night=TICK.isoformat())
    nights.end(gate, FAILURE)
    receiver.mode = "well"
    daemon = Nights(nights.project, nights.instance)  # as it starts, whenever the last try was
    assert daemon.sense("failed_nights") == "left unsent before: nightly: worse in one: sent to PAGER at attempt 5"
    assert daemon.sense("failed_nights") == "every night that failed was told"
    assert (len(receiver.taken), len({notice["id"] for notice in receiver.came})) == (1, 1)
    assert _statuses(nights.project) == [("nightly: worse in one", "sent")]


@pytest.mark.long
def test_a_daemon_that_has_tried_waits_before_it_tries_again(nights: Nights, receiver: NoticeReceiver) -> None:
    receiver.mode = "refuses"
    notify(nights.project, "nightly", title="nightly: worse in one", body="", kind="regression")
    assert "left unsent before" in str(nights.sense("failed_nights"))
    assert nights.sense("failed_nights") == "every night that failed was told"
    assert len(receiver.came) == 2


@pytest.mark.long
@few("who", ["the daemon", "check-nights without a cron", "check-nights"], kept=2)
@pytest.mark.parametrize(("verdict", "told"), [(Verdict.REGRESSED, 1), (Verdict.NO_CHANGE_SEEN, 0)])
def test_a_red_command_that_was_killed_before_it_wrote_a_notice_is_told_once(
    nights: Nights, receiver: NoticeReceiver, who: str, verdict: Verdict, told: int
) -> None:
    """By its exit status it says so itself, which a killed one cannot."""
    if who.endswith("without a cron"):
        path = nights.project.config_path
        path.write_text(path.read_text().replace('cron: "30 2 * * *", ', ""))
        nights.project = Project.open(config_path=path, home=nights.project.home)
    gate = _killed_command(nights)
    _judge(nights.project, gate, verdict)
    nights.end(gate, FAILURE)
    for _ in range(2):
        if who == "the daemon":
            nights.sense("failed_nights")
        else:
            _look(nights.project)
    titles = [notice["title"] for notice in receiver.taken if "after it was judged" in notice["title"]]
    assert len(titles) == told
    assert ("Judged before it failed: 1 of 1 results regressed" in str(receiver.taken)) == bool(told)


@pytest.mark.long
def test_check_nights_sends_what_was_left_and_says_so(nights: Nights, receiver: NoticeReceiver) -> None:
    receiver.mode = "refuses"
    notify(nights.project, "nightly", title="nightly: worse in one", body="", kind="regression")
    assert "nightly: left unsent before: nightly: worse in one: failed (PAGER): JSON: answered with HTTP status 403" in _look(
        nights.project
    )
    receiver.mode = "well"
    assert "nightly: left unsent before: nightly: worse in one: sent to PAGER at attempt 3" in _look(nights.project)


@pytest.mark.long
def test_a_skipped_night_whose_sensor_was_killed_is_told_once(
    nights: Nights, receiver: NoticeReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    nights.launch()
    assert "have not ended" in str(nights.tick(TICK))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            nights.sense("skipped_nights")
    nights.sense("skipped_nights")
    nights.sense("failed_nights")
    assert len({notice["id"] for notice in receiver.came}) == 1
    assert not is_any_left(nights.project.home), "a mark that nothing explains is removed"


def test_a_ping_that_is_redirected_reached_no_monitor(receiver: NoticeReceiver) -> None:
    place = f"http://127.0.0.1:{receiver.port}"
    assert _requested(f"{place}/elsewhere") == "a redirect (HTTP status 302), which is not followed; set the address that it leads to"
    assert _requested(f"{place}/ping") is None
    assert receiver.emptied == ["GET"]


def test_an_interrupt_is_named_as_the_cause() -> None:
    error = dg.DagsterExecutionInterruptedError.__name__
    failure = _Failure(error=_Error(cls_name=error, message=f"dagster._core.errors.{error}\n"))
    assert list(step_messages(failure)) == [INTERRUPTED]


class _Error:
    cause = None

    def __init__(self, **facts: str) -> None:
        self.__dict__.update(facts)


class _Failure:
    user_failure_data = None

    def __init__(self, error: _Error) -> None:
        self.error = error


def _look(project: Project) -> str:
    before = datetime.now(UTC) - timedelta(minutes=1)
    known = Remembered(project=project, loaded_at=before, since=dict.fromkeys(project.config.suites, before))
    return "\n".join(watch_nights(known).seen)
