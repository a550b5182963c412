"""No night passes without a word: nights that failed before their gate could say so, and nights that were never judged."""

import gc
import json
import textwrap
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from daemon_by_hand import CANCELED, FAILURE, Nights
from dagster._core.remote_origin import RemoteInstigatorOrigin, RemoteRepositoryOrigin
from dagster._core.scheduler.instigation import InstigatorState, InstigatorStatus, InstigatorType, ScheduleInstigatorData
from dagster._daemon.types import DaemonHeartbeat
from typer.testing import CliRunner

from eval_dagster.assets.definitions import build_definitions
from eval_dagster.assets.due_nights import due_nights
from eval_dagster.assets.instance.instance import open_instance
from eval_dagster.assets.night_watch import Watch, watch_nights
from eval_dagster.assets.runs.skipped_nights import note_skipped
from eval_dagster.assets.tags import JUDGED_BY_TAG, SINCE_TAG, suite_tags
from eval_dagster.assets.workspace import code_location
from eval_dagster.cli.app import app
from eval_dagster.config.schema import SuiteConfig
from eval_dagster.errors import ConfigError
from eval_dagster.gate.records import GateResult
from eval_dagster.gate.results import write_result
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.notifications.delivery import notify
from eval_dagster.project import Project
from eval_dagster.remembered import Remembered, recall, remember, remembered_file

CONFIG = """
    models:
      a: {backend: scripted, default: " 7"}
      b: {backend: scripted, default: " 8"}
    evals:
      one: {task: arithmetic, limit: 2}
    mlflow: {tracking_uri: "sqlite:///s3cret.db"}
    suites:
      nightly: {evals: [one], models: [a, b], cron: "30 2 * * *", timezone: Europe/Berlin, notify: [PAGER], deadline_hours: 6}
"""
TICK = datetime(2026, 1, 31, 1, 30, tzinfo=UTC)
BEFORE = TICK - timedelta(days=5)
DAEMON = "start the daemon: `eval-dagster ui`, or `dagster-daemon run` where DAGSTER_HOME is that of the instance"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.delenv("PAGER", raising=False)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home" / "dagster"))
    monkeypatch.setenv("EVAL_DAGSTER_CONFIG", str(tmp_path / "evals.yaml"))
    monkeypatch.setenv("EVAL_DAGSTER_HOME", str(tmp_path / "home"))
    (tmp_path / "evals.yaml").write_text(textwrap.dedent(CONFIG))
    return Project.open()


@pytest.fixture
def nights(project: Project) -> Iterator[Nights]:
    with open_instance(project.home) as instance:
        yield Nights(project, instance)


def _break(project: Project) -> ConfigError:
    """Mistype a key in evals.yaml; gives the error."""
    project.config_path.write_text(project.config_path.read_text().replace("limit: 2", "limt: 2"))
    with pytest.raises(ConfigError) as found:
        Project.open()
    return found.value


def _notices(project: Project) -> list[dict[str, Any]]:
    publish(project.lake)
    return read_rows(project.lake, "select suite, kind, title, body, status, run_id from notices order by attempted_at")


def _live(nights: Nights) -> None:
    nights.instance.add_daemon_heartbeat(DaemonHeartbeat(time.time(), "SCHEDULER", None, None))


def _look(project: Project, now: datetime, broken: ConfigError | None = None) -> Watch:
    known = Remembered(project=project, loaded_at=BEFORE, since={"nightly": BEFORE})
    return watch_nights(known, broken, now=now)


def _judge(project: Project, at: datetime, *, run_id: str = "gate") -> None:
    judged = GateResult(suite="nightly", judged_at=at, run_id=run_id, alpha=0.05, level=0.05, severity="error", regressions=[], changes=[])
    write_result(project.lake, judged)


def _switch_off(nights: Nights, name: str, kind: InstigatorType) -> None:
    location = code_location(nights.project)
    assert location is not None
    origin = RemoteInstigatorOrigin(RemoteRepositoryOrigin(location, "__repository__"), name)
    data = ScheduleInstigatorData("30 2 * * *") if kind is InstigatorType.SCHEDULE else None
    nights.instance.add_instigator_state(InstigatorState(origin, kind, InstigatorStatus.STOPPED, data))


# ---- nights that failed


@pytest.mark.long
def test_a_night_that_could_not_read_evals_yaml_is_told_once(nights: Nights, project: Project) -> None:
    """The code server still has the configuration that it has loaded, and its addresses."""
    runs = [nights.start(request) for request in nights.tick(TICK)]
    error = _break(project)
    for run in runs:
        nights.instance.report_run_failed(run, str(error))
    gate = nights.start(nights.sense()[0])
    nights.instance.report_run_failed(gate, f"eval_dagster.errors.ConfigError: {error}")
    assert "nightly of 2026-01-31T01:30:00+00:00: failed (PAGER)" in str(nights.sense("failed_nights"))
    assert nights.sense("failed_nights") == "every night that failed was told"
    [notice] = _notices(project)
    assert (notice["suite"], notice["kind"], notice["run_id"]) == ("nightly", "failure", gate.run_id)
    assert notice["title"] == "nightly: the night of 2026-01-31 01:30 UTC failed, and nothing was judged"
    assert "evals.yaml:6: evals.one.limt: found an unknown key; expected one of task, " in notice["body"]
    assert notice["body"].count("unknown key") == 1, "the runs of all models, and the gate, failed for one reason"
    assert "eval-dagster run --suite nightly" in notice["body"]

    nights.night(TICK + timedelta(days=1))
    nights.end(nights.start(nights.sense()[0]), CANCELED)
    nights.sense("failed_nights")
    assert [each["title"][22:32] for each in _notices(project)] == ["2026-01-31", "2026-02-01"], "each night is told"


@pytest.mark.long
@pytest.mark.parametrize("night", [TICK.isoformat(), None], ids=["named", "of an earlier version"])
def test_a_gate_that_told_or_that_a_command_started_is_not_told_again(nights: Nights, project: Project, night: str | None) -> None:
    nights.night(TICK)
    gate = nights.start(nights.sense()[0])
    notify(project, "nightly", title="nightly: worse in one", body="", kind="regression", run_id=gate.run_id, night=night)
    nights.end(gate, FAILURE)
    tags = {**suite_tags(project.home, "nightly"), SINCE_TAG: datetime.now(UTC).isoformat(), JUDGED_BY_TAG: "command"}
    nights.end(nights.start(dg.RunRequest(tags=tags), "gate_nightly"), FAILURE)
    assert nights.sense("failed_nights") == "every night that failed was told"
    assert len(_notices(project)) == 1


@pytest.mark.long
def test_a_gate_that_failed_after_it_judged_says_what_it_found(nights: Nights, project: Project) -> None:
    nights.night(TICK)
    gate = nights.start(nights.sense()[0])
    _judge(project, datetime.now(UTC), run_id=gate.run_id)
    nights.instance.report_run_failed(gate, "the disk is full")
    nights.sense("failed_nights")
    [notice] = _notices(project)
    assert notice["title"] == "nightly: the night of 2026-01-31 01:30 UTC failed after it was judged"
    assert notice["body"].startswith("Judged before it failed: ")
    assert "\n- the disk is full\n" in notice["body"]


# ---- nights that were not judged


def test_a_night_that_was_judged_is_well(nights: Nights, project: Project) -> None:
    _live(nights)
    _judge(project, TICK + timedelta(minutes=20))
    found = _look(project, TICK + timedelta(hours=9))
    assert found.is_well
    assert found.seen[-1] == "nightly: due 2026-01-31 01:30 UTC, judged 01:50"
    assert found.seen[1] == "daemon: alive"
    assert _notices(project) == []


@pytest.mark.long
def test_without_a_daemon_a_night_is_told_once_and_stays_red(nights: Nights, project: Project) -> None:
    assert _look(project, TICK + timedelta(minutes=5)).seen[-1] == "nightly: due 2026-01-31 01:30 UTC, its runs are awaited until 01:45"
    for number in range(2):
        found = _look(project, TICK + timedelta(minutes=16 + number))
        [night] = found.findings
        assert (night.cause, night.cure) == ("No run was started, and no daemon is there: none has ever run", DAEMON)
        assert (night.notice is None) == bool(number), "one notice for a night"
    [notice] = _notices(project)
    assert (notice["kind"], notice["title"]) == ("missed", "nightly: the night of 2026-01-31 01:30 UTC was not judged")
    assert notice["body"] == f"{night.cause}\nNext: {DAEMON}"
    nights.instance.add_daemon_heartbeat(DaemonHeartbeat(time.time() - 3 * 3600, "SCHEDULER", None, None))
    assert _look(project, TICK + timedelta(hours=1)).seen[1] == "daemon: the last sign of life was 3 h ago"


@pytest.mark.long
def test_a_missing_night_stays_red_while_the_next_one_is_awaited(nights: Nights, project: Project) -> None:
    assert not _look(project, TICK + timedelta(hours=1)).is_well
    for minutes in (5, 10):
        found = _look(project, TICK + timedelta(days=1, minutes=minutes))
        assert [each.night.name[:10] for each in found.findings if each.night] == ["2026-01-31"]
        assert found.seen[-1] == "nightly: due 2026-02-01 01:30 UTC, its runs are awaited until 01:45"
    assert len(_notices(project)) == 1
    _judge(project, TICK + timedelta(days=1, minutes=12))
    assert _look(project, TICK + timedelta(days=1, minutes=13)).is_well


def test_a_daemon_that_died_days_ago_is_missed_whatever_is_awaited(nights: Nights, project: Project) -> None:
    nights.night(TICK)
    _judge(project, TICK + timedelta(minutes=20))
    found = _look(project, TICK + timedelta(days=4, minutes=5))
    assert "No daemon starts the nights: none has ever run" in [each.cause for each in found.findings]


@pytest.mark.long
def test_nights_since_the_last_look_are_told_together(nights: Nights, project: Project) -> None:
    _live(nights)
    _judge(project, TICK - timedelta(days=2, hours=23))
    _look(project, TICK - timedelta(days=2, hours=20))
    assert _notices(project) == []
    _switch_off(nights, "suite_nightly_schedule", InstigatorType.SCHEDULE)
    found = _look(project, TICK + timedelta(hours=1))
    assert [each.night.name[:10] for each in found.findings if each.night] == ["2026-01-29", "2026-01-30", "2026-01-31"]
    [notice] = _notices(project)
    assert notice["title"] == "nightly: 3 nights were not judged, the last of 2026-01-31 01:30 UTC"
    assert "2026-01-29 01:30 UTC; 2026-01-30 01:30 UTC; 2026-01-31 01:30 UTC" in notice["body"]
    assert notice["body"].startswith("The schedule `suite_nightly_schedule` is switched off\n")
    found = _look(project, TICK + timedelta(hours=2))
    assert [each.night.name[:10] for each in found.findings if each.night] == ["2026-01-31"], "earlier ones were told"
    _judge(project, TICK + timedelta(hours=3))
    assert _look(project, TICK + timedelta(hours=4)).is_well, "something else than the schedule started it"


def test_nights_that_dagster_does_not_start_need_no_daemon(nights: Nights, project: Project) -> None:
    """They come from cron or a pipeline. If the daemon started the last one, none will start the next one without it."""
    _judge(project, TICK + timedelta(minutes=20))
    found = _look(project, TICK + timedelta(hours=9))
    assert found.is_well
    assert found.seen[1:] == ["daemon: none has ever run", "nightly: due 2026-01-31 01:30 UTC, judged 01:50"]
    nights.night(TICK)
    assert [each.cause for each in _look(project, TICK + timedelta(hours=9)).findings] == ["No daemon starts the nights: none has ever run"]
    _live(nights)
    _switch_off(nights, "suite_nightly_schedule", InstigatorType.SCHEDULE)
    assert [each.cause for each in _look(project, TICK + timedelta(hours=9)).findings] == [
        "The schedule `suite_nightly_schedule` is switched off"
    ]


@pytest.mark.long
@pytest.mark.parametrize("what", ["a stuck run", "a gate that never starts", "a gate whose sensor is off"])
def test_a_night_that_started_and_was_not_judged_has_its_own_words(nights: Nights, project: Project, what: str) -> None:
    _live(nights)
    runs = [nights.start(request) for request in nights.tick(TICK)]
    nights.end(runs[0])
    now = TICK + timedelta(hours=2)
    assert "1 of 2 runs have not ended: suite_nightly" in _look(project, now).seen[-1]
    assert "its judgement is awaited until 2026-01-31 07:30 UTC" in _look(project, now).seen[-1]
    expected = "1 of 2 runs have not ended: suite_nightly "
    if what != "a stuck run":
        nights.end(runs[1])
        expected = "No gate was started"
    if what == "a gate whose sensor is off":
        _switch_off(nights, "suite_gates", InstigatorType.SENSOR)
        expected = "The sensor `suite_gates` is switched off"
    [finding] = _look(project, TICK + timedelta(hours=7)).findings
    assert expected in finding.cause
    assert [each["kind"] for each in _notices(project)] == ["missed"]


@pytest.mark.long
def test_a_failed_gate_that_no_sensor_told_is_told(nights: Nights, project: Project) -> None:
    _live(nights)
    now = datetime.now(UTC)
    last = due_nights("nightly", project.config.suites["nightly"], after=now - timedelta(days=2), until=now)[-1]
    nights.night(last.tick)
    nights.instance.report_run_failed(nights.start(nights.sense()[0]), "the disk is full")
    assert _look(project, now).seen[-1].endswith("its gate failed, and is about to send a notice")
    found = _look(project, now + timedelta(minutes=11)).findings
    assert [each.cause for each in found if each.night == last] == ["The gate failed: the disk is full"]


# Dagster forgets the process of the code server that could not load it.
@pytest.mark.long
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_location_that_cannot_be_loaded_is_named(nights: Nights, project: Project) -> None:
    _live(nights)
    (project.folder / "workspace.yaml").write_text("load_from: [{python_module: {module_name: gone_away, location_name: eval_dagster}}]")
    [finding] = _look(project, TICK + timedelta(hours=1)).findings
    assert finding.cause.startswith("No run was started: the code location cannot be loaded: ")
    error = _break(project)
    settled = [each for each in _look(project, TICK + timedelta(hours=2), error).findings if each.night]
    assert settled[0].cause.startswith("No run was started: evals.yaml cannot be read: ")
    assert len(_notices(project)) == 1
    gc.collect()  # so that the warning about the process is of this test


@pytest.mark.long
def test_a_night_that_was_skipped_has_a_notice_of_its_own(nights: Nights, project: Project) -> None:
    _live(nights)
    note_skipped(project.home, "nightly", "2026-01-31T02:30:00+01:00", "it is at work")
    assert _look(project, TICK + timedelta(hours=7)).seen[-1].endswith("it was skipped, and is about to send a notice")
    assert _notices(project) == []
    nights.sense("skipped_nights")
    [finding] = _look(project, TICK + timedelta(hours=7)).findings
    assert finding.cause.startswith("The night was skipped, as an earlier one was at work")
    assert [each["kind"] for each in _notices(project)] == ["skipped"]


# ---- a configuration that cannot be read


def test_a_broken_evals_yaml_is_told_before_it_costs_a_night(nights: Nights, project: Project) -> None:
    _live(nights)
    remember(project)
    _judge(project, datetime.now(UTC))
    error = _break(project)
    known = recall(project.home)
    assert known is not None
    [fresh] = watch_nights(known, error).findings
    assert fresh.notice is None, "somebody may be editing it"
    later = datetime.now(UTC) + timedelta(minutes=11)
    for told in (True, False):
        [finding] = watch_nights(known, error, now=later).findings
        assert "evals.yaml:6: evals.one.limt: found an unknown key" in finding.cause
        assert (finding.notice is not None) == told
    [notice] = _notices(project)
    assert notice["title"] == "nightly: evals.yaml cannot be read"


def test_the_last_configuration_is_kept_without_secrets(project: Project) -> None:
    first = remember(project)
    assert "s3cret" not in remembered_file(project.home).read_text()
    project.config_path.write_text(project.config_path.read_text().replace("deadline_hours: 6", "deadline_hours: 7"))
    assert remember(Project.open()).since == first.since, "the cron is the same"
    project.config_path.write_text(project.config_path.read_text().replace('"30 2 * * *"', '"30 3 * * *"'))
    changed = remember(Project.open())
    assert changed.since["nightly"] > first.since["nightly"], "no night is due at a cron that was not there yet"
    known = recall(project.home)
    assert known is not None
    assert known.project.config.suites["nightly"].cron == "30 3 * * *"
    assert known.project.lake.configured == project.lake.configured, "the catalog marks the same evals and models"
    remembered_file(project.home).write_text("{}")
    assert recall(project.home) is None


# ---- when nights are due


def test_a_night_is_due_by_the_clock_of_its_suite() -> None:
    suite = SuiteConfig(evals=("e",), models=("m",), cron="30 3 * * *", timezone="Europe/Berlin")
    now = datetime(2026, 3, 29, 12, tzinfo=UTC)
    nights = due_nights("s", suite, after=now - timedelta(days=2), until=now)
    assert [night.since for night in nights] == ["2026-03-28T03:30:00+01:00", "2026-03-29T03:30:00+02:00"]
    assert nights[0].deadline == datetime(2026, 3, 28, 14, tzinfo=UTC), "half the 23 hours until the next tick"
    assert due_nights("s", suite, after=now, until=now) == []
    often = SuiteConfig(evals=("e",), models=("m",), cron="* * * * *")
    assert len(due_nights("s", often, after=now - timedelta(days=2), until=now)) == 31


def test_dagster_shows_the_gates_as_overdue_where_a_suite_has_a_cron(project: Project) -> None:
    def policy(opened: Project) -> Any:
        graph = build_definitions(opened).resolve_asset_graph()
        return graph.get(dg.AssetKey("regressions")).freshness_policy

    found = policy(project)
    assert found is not None
    assert timedelta(hours=30) <= found.fail_window.to_timedelta() <= timedelta(hours=31), "a day of 24 or 25 hours, and six"
    project.config_path.write_text(project.config_path.read_text().replace('cron: "30 2 * * *",', ""))
    assert policy(Project.open()) is None


# ---- the command


@pytest.fixture
def monitor() -> Iterator[tuple[str, list[str]]]:
    """A monitor that takes pings; gives its address and the paths that were requested."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(200 if "down" not in self.path else 503)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", paths
    server.shutdown()
    server.server_close()


@pytest.mark.long
def test_the_command_pings_if_all_is_well_and_only_then(
    nights: Nights, project: Project, monitor: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, paths = monitor
    monkeypatch.setenv("WATCH_URL", f"{address}/s3cret")
    remember(project)
    first = CliRunner().invoke(app, ["check-nights", "--ping", "WATCH_URL"])
    assert (first.exit_code, paths) == (0, ["/s3cret"]), first.output
    assert "nightly: no night was due since" in first.output
    assert "All is well" in first.output
    last = due_nights("nightly", project.config.suites["nightly"], after=datetime.now(UTC) - timedelta(days=2), until=datetime.now(UTC))[-1]
    remembered = json.loads(remembered_file(project.home).read_text())
    remembered["since"] = {"nightly": (last.tick - timedelta(days=1)).isoformat()}
    remembered_file(project.home).write_text(json.dumps(remembered))
    nights.night(last.tick)
    _judge(project, datetime.now(UTC))
    second = CliRunner().invoke(app, ["check-nights", "--ping", "WATCH_URL"])
    assert (second.exit_code, paths) == (1, ["/s3cret"]), second.output
    assert "No daemon starts the nights" in second.output
    _live(nights)
    monkeypatch.setenv("WATCH_URL", f"{address}/down/s3cret")
    third = CliRunner().invoke(app, ["check-nights", "--ping", "WATCH_URL"])
    assert third.exit_code == 1
    assert "HTTP status 503" in third.output
    assert "s3cret" not in third.output
    monkeypatch.delenv("WATCH_URL")
    assert CliRunner().invoke(app, ["check-nights", "--ping", "WATCH_URL"]).exit_code != 0
    _break(project)
    broken = CliRunner().invoke(app, ["check-nights"])
    assert broken.exit_code == 1
    assert "evals.yaml:6: evals.one.limt" in broken.output


def test_a_file_that_was_never_read_is_an_error_of_usage(project: Project) -> None:
    _break(project)
    assert isinstance(CliRunner().invoke(app, ["check-nights"]).exception, ConfigError)
    assert json.loads((project.home / "watch" / "checked.json").read_text() if (project.home / "watch").exists() else "{}") == {}
