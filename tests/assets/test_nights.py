"""When a suite is evaluated and when it is judged: its schedule, and the sensor that follows it."""

import json
import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from assets import ticks
from assets.definitions import build_definitions
from assets.jobs import PLANNED_TAG, SINCE_TAG, SUITE_TAG
from eval_dagster.lake.catalog import read_rows
from eval_dagster.project import Project
from task_defs import TASKS

CONFIG = """
    models:
      a: {backend: scripted, default: " 7"}
      b: {backend: scripted, default: " 8"}
    evals:
      one: {task: arithmetic, limit: 2}
      two: {task: capitals, limit: 2}
    suites:
      nightly: {evals: [one], models: [a, b], cron: "30 2 * * *", notify: [PAGER]}
      other: {evals: [two], models: [a], cron: "0 3 * * *"}
      by-hand: {evals: [two], models: [b]}
"""
FIRST, SECOND = datetime(2026, 1, 31, 2, 30, tzinfo=UTC), datetime(2026, 2, 1, 2, 30, tzinfo=UTC)
ENDS = {
    dg.DagsterRunStatus.SUCCESS: dg.DagsterEventType.RUN_SUCCESS,
    dg.DagsterRunStatus.FAILURE: dg.DagsterEventType.RUN_FAILURE,
    dg.DagsterRunStatus.CANCELED: dg.DagsterEventType.RUN_CANCELED,
}
SUCCESS, FAILURE, CANCELED = ENDS


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.delenv("PAGER", raising=False)
    (tmp_path / "evals.yaml").write_text(textwrap.dedent(CONFIG))
    return Project.open(TASKS, config_path=tmp_path / "evals.yaml", home=tmp_path / "home")


class Nights:
    """A daemon's work, done by hand on an instance that lives as long as the test."""

    def __init__(self, project: Project, instance: dg.DagsterInstance) -> None:
        self.project, self.instance = project, instance
        self.definitions = build_definitions(project)
        self.resources: dict[str, Any] = dict(self.definitions.resources or {})

    def tick(self, time: datetime) -> list[dg.RunRequest] | str:
        """What the schedule asks for, or why it asks for nothing."""
        schedule = self.definitions.resolve_schedule_def("suite_nightly_schedule")
        context = dg.build_schedule_context(instance=self.instance, scheduled_execution_time=time, resources=self.resources)
        data = schedule.evaluate_tick(context)
        return list(data.run_requests or []) or str(data.skip_message)

    def sense(self) -> list[dg.RunRequest] | str:
        """What the sensor asks for, or why it asks for nothing."""
        sensor = self.definitions.resolve_sensor_def("suite_gates")
        with dg.build_sensor_context(instance=self.instance, definitions=self.definitions) as context:
            data = sensor.evaluate_tick(context)
        return list(data.run_requests or []) or str(data.skip_message)

    def start(self, request: dg.RunRequest, job: str = "suite_nightly") -> dg.DagsterRun:
        """Start the run of a request."""
        run = dg.DagsterRun(job_name=request.job_name or job, tags=request.tags, status=dg.DagsterRunStatus.STARTED)
        return self.instance.add_run(run)

    def end(self, run: dg.DagsterRun, status: dg.DagsterRunStatus = SUCCESS) -> None:
        """Let a run end."""
        event = dg.DagsterEvent(event_type_value=ENDS[status].value, job_name=run.job_name)
        self.instance.report_dagster_event(event, run.run_id)


@pytest.fixture
def nights(project: Project, tmp_path: Path) -> Iterator[Nights]:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        yield Nights(project, instance)


def test_the_gate_waits_for_every_run_of_a_tick_however_it_ends(nights: Nights) -> None:
    assert nights.sense() == "every tick that is over was judged"
    runs = [nights.start(request) for request in nights.tick(FIRST)]
    assert len(runs) == 2
    nights.end(runs[0], FAILURE)
    assert nights.sense() == "nightly of 2026-01-31T02:30:00+00:00: 1 of 2 runs have ended"
    nights.end(runs[1], CANCELED)
    [request] = nights.sense()
    assert isinstance(request, dg.RunRequest)
    assert request.job_name == "gate_nightly"
    assert request.tags[SUITE_TAG] == "nightly"
    assert request.tags[SINCE_TAG] == FIRST.isoformat() == runs[0].tags[SINCE_TAG]
    assert request.run_key == nights.sense()[0].run_key, "the daemon starts one run a key, also where it is killed in between"


def test_a_tick_is_judged_once(nights: Nights) -> None:
    for request in nights.tick(FIRST):
        nights.end(nights.start(request))
    [request] = nights.sense()
    gate = nights.start(request)
    assert nights.sense() == "every tick that is over was judged"
    nights.end(gate, FAILURE)
    assert nights.sense() == "every tick that is over was judged", "a gate that failed is not tried again"
    for request in nights.tick(SECOND):
        nights.end(nights.start(request))
    [second] = nights.sense()
    assert second.tags[SINCE_TAG] == SECOND.isoformat()
    assert second.run_key != request.run_key


@pytest.mark.parametrize("who", ["the tick before", "the gate of the tick before", "somebody on the command line"])
def test_a_tick_is_left_out_while_the_suite_is_at_work(nights: Nights, project: Project, who: str) -> None:
    if who == "somebody on the command line":
        busy = nights.start(dg.RunRequest(tags={SUITE_TAG: "nightly"}), "evaluate_all")
    else:
        runs = [nights.start(request) for request in nights.tick(FIRST)]
        nights.end(runs[0])
        busy = runs[1]
        if who == "the gate of the tick before":
            nights.end(busy)
            assert nights.tick(SECOND) == f"the results of {FIRST.isoformat()} are about to be judged"
            busy = nights.start(nights.sense()[0])
    reason = nights.tick(SECOND)
    assert isinstance(reason, str)
    assert f"1 runs of the suite nightly have not ended: {busy.job_name} {busy.run_id[:8]} (started)" == reason
    notice = read_rows(project.lake, "select suite, kind, status, variable, body from notices order by attempted_at")[-1]
    assert (notice["suite"], notice["kind"], notice["status"], notice["variable"]) == ("nightly", "skipped", "failed", "PAGER")
    assert reason in notice["body"]
    nights.end(busy)
    if who == "the tick before":
        nights.end(nights.start(nights.sense()[0]))
    assert len(nights.tick(SECOND)) == 2


def test_another_suite_is_no_reason_to_wait(nights: Nights) -> None:
    nights.start(dg.RunRequest(tags={SUITE_TAG: "other"}), "suite_other")
    nights.start(dg.RunRequest(tags={}), "evaluate_all")
    assert len(nights.tick(FIRST)) == 2


def test_a_tick_that_was_interrupted_is_resumed(nights: Nights) -> None:
    """The daemon is killed after the first of two runs: it asks the schedule again, and gives the same keys another time."""
    first, _ = nights.tick(FIRST)
    run = nights.start(first)
    again = nights.tick(FIRST)
    assert again[0].run_key == first.run_key
    nights.end(run)
    assert nights.sense() == "nightly of 2026-01-31T02:30:00+00:00: 1 of 2 runs have ended"
    nights.end(nights.start(again[1]))
    assert len(nights.sense()) == 1


def test_what_never_comes_is_not_waited_for_without_end(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the rest of a tick that nobody resumes, nor a gate while its sensor is switched off."""
    first, _ = nights.tick(FIRST)
    nights.end(nights.start(first))
    monkeypatch.setattr(ticks, "_PATIENCE_S", -1.0)
    assert len(nights.tick(SECOND)) == 2
    [request] = nights.sense()
    assert request.tags[SINCE_TAG] == FIRST.isoformat()


def test_runs_that_no_schedule_started_have_no_gate_of_their_own(nights: Nights) -> None:
    nights.end(nights.start(dg.RunRequest(tags={SUITE_TAG: "nightly", SINCE_TAG: FIRST.isoformat()}), "evaluate_all"))
    nights.end(nights.start(dg.RunRequest(tags={SUITE_TAG: "nightly"})))
    assert nights.sense() == "every tick that is over was judged"


def test_each_tick_says_how_many_runs_it_asks_for(nights: Nights) -> None:
    requests = nights.tick(FIRST)
    assert [request.tags[PLANNED_TAG] for request in requests] == ["2", "2"]


def test_a_project_without_a_cron_has_no_sensor_of_gates(tmp_path: Path) -> None:
    (tmp_path / "evals.yaml").write_text(
        json.dumps(
            {
                "models": {"a": {"backend": "scripted"}},
                "evals": {"e": {"task": "capitals"}},
                "suites": {"s": {"evals": ["e"], "models": ["a"]}},
            }
        )
    )
    definitions = build_definitions(Project.open(TASKS, config_path=tmp_path / "evals.yaml", home=tmp_path / "home"))
    assert {sensor.name for sensor in definitions.sensors or []} == {"leaderboard_follows_metrics", "killed_runs"}
    assert {job.name for job in definitions.jobs or []} >= {"suite_s", "gate_s"}
