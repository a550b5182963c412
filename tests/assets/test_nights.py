"""When a suite is evaluated and when it is judged: its schedule, and the sensor that follows it."""

import fcntl
import json
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest
from daemon_by_hand import CANCELED, CONFIG, FAILURE, FIRST, SECOND, Nights
from dagster._core.storage.tags import RUN_KEY_TAG

from eval_dagster.assets.definitions import build_definitions
from eval_dagster.assets.evaluation import chosen
from eval_dagster.assets.names import Names
from eval_dagster.assets.runs import suite_evaluations
from eval_dagster.assets.runs.skipped_nights import note_skipped
from eval_dagster.assets.runs.suite_evaluations import find_evaluation
from eval_dagster.assets.tags import CHECKPOINT_TAG, HOME_TAG, JUDGED_BY_TAG, PLANNED_TAG, SINCE_TAG, SUITE_TAG, suite_tags
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.project import Project


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.delenv("PAGER", raising=False)
    (tmp_path / "evals.yaml").write_text(textwrap.dedent(CONFIG))
    return Project.open(config_path=tmp_path / "evals.yaml", home=tmp_path / "home")


@pytest.fixture
def nights(project: Project, tmp_path: Path) -> Iterator[Nights]:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        yield Nights(project, instance)


def test_the_gate_waits_for_every_run_of_a_tick_however_it_ends(nights: Nights) -> None:
    assert nights.sense() == "every evaluation that is over was judged"
    runs = [nights.start(request) for request in nights.tick(FIRST)]
    assert len(runs) == 2
    nights.end(runs[0], FAILURE)
    assert nights.sense() == "nightly of 2026-01-31T02:30:00+00:00: 1 of 2 runs have ended"
    nights.end(runs[1], CANCELED)
    [request] = nights.sense()
    assert isinstance(request, dg.RunRequest)
    assert request.job_name == "gate_nightly"
    assert request.partition_key == request.tags[SUITE_TAG] == "nightly"
    assert request.tags[SINCE_TAG] == FIRST.isoformat() == runs[0].tags[SINCE_TAG]
    assert request.run_key == nights.sense()[0].run_key, "the daemon starts one run a key, also where it is killed in between"


@pytest.mark.long
def test_the_run_of_a_second_daemon_evaluates_nothing(nights: Nights) -> None:
    """Two daemons may request a night at the same time, before either sees the run of the other."""
    request, _ = nights.tick(FIRST)
    assert isinstance(request, dg.RunRequest)
    tags = {**request.tags, RUN_KEY_TAG: str(request.run_key)}

    name = "__anonymous_asset_job_suite_nightly_schedule"

    def evaluated() -> int:
        job = nights.definitions.resolve_job_def(name)
        result = job.execute_in_process(instance=nights.instance, run_config=request.run_config, tags=tags)
        return len([each for each in result.all_events if each.event_type is dg.DagsterEventType.ASSET_MATERIALIZATION])

    first = nights.start(dg.RunRequest(run_config=request.run_config, tags=tags), name)
    assert evaluated() == 0, "the first one is at work"
    nights.end(first)
    assert evaluated() == 0, "the first one has ended"
    for record in nights.instance.get_run_records():
        nights.instance.delete_run(record.dagster_run.run_id)
    nights.end(nights.start(dg.RunRequest(run_config=request.run_config, tags=tags), name), FAILURE)
    assert evaluated() > 0, "nobody else does it"


@pytest.mark.long
def test_a_tick_is_judged_once(nights: Nights) -> None:
    for request in nights.tick(FIRST):
        nights.end(nights.start(request))
    [request] = nights.sense()
    gate = nights.start(request)
    assert nights.sense() == "every evaluation that is over was judged"
    nights.end(gate, FAILURE)
    assert nights.sense() == "every evaluation that is over was judged", "a gate that failed is not tried again"
    for request in nights.tick(SECOND):
        nights.end(nights.start(request))
    [second] = nights.sense()
    assert second.tags[SINCE_TAG] == SECOND.isoformat()
    assert second.run_key != request.run_key


@pytest.mark.long
@pytest.mark.parametrize("who", ["the tick before", "the gate of the tick before", "somebody on the command line"])
def test_a_tick_is_left_out_while_the_suite_is_at_work(nights: Nights, project: Project, who: str) -> None:
    if who == "somebody on the command line":
        busy = nights.start(dg.RunRequest(tags={**suite_tags(project.home, "nightly")}), "evaluate_all")
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
    name = busy.job_name.removeprefix("__anonymous_asset_job_").removesuffix("_schedule")
    assert f"1 runs of the suite nightly have not ended: {name} {busy.run_id[:8]} (started)" == reason
    nights.end(busy)
    if who == "the tick before":
        nights.end(nights.start(nights.sense()[0]))
    assert len(nights.tick(SECOND)) == 2


def test_another_suite_is_no_reason_to_wait(nights: Nights) -> None:
    nights.start(dg.RunRequest(tags=suite_tags(nights.project.home, "other")), "suite_other")
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
    monkeypatch.setattr(suite_evaluations, "_PATIENCE_S", -1.0)
    assert len(nights.tick(SECOND)) == 2
    [request] = nights.sense()
    assert request.tags[SINCE_TAG] == FIRST.isoformat()


@pytest.mark.long
def test_a_run_that_somebody_launches_is_judged_like_a_tick(nights: Nights) -> None:
    run = nights.launch()
    assert "0 of 1 runs have ended" in str(nights.sense())
    nights.end(run, FAILURE)
    [record] = nights.instance.get_run_records(dg.RunsFilter(run_ids=[run.run_id]))
    assert nights.judge() == [record.create_timestamp.isoformat()]
    assert nights.judge() == []
    second = nights.launch(chosen(Names(), models=["a"]))
    nights.end(second)
    assert len(nights.judge()) == 1


@pytest.mark.long
def test_what_a_command_evaluates_it_judges_itself(nights: Nights) -> None:
    tags = {**suite_tags(nights.project.home, "nightly"), SINCE_TAG: FIRST.isoformat(), JUDGED_BY_TAG: "command"}
    run = nights.start(dg.RunRequest(tags=tags))
    nights.end(run)
    assert nights.judge() == []
    again = nights.start(dg.RunRequest(tags=tags), parent=run)
    nights.end(again)
    [since] = nights.judge()
    assert since != FIRST.isoformat(), "whoever executes it again in the UI judges nothing himself"


@pytest.mark.long
def test_a_night_is_judged_though_somebody_executes_an_older_run_again(nights: Nights) -> None:
    """The second run bears the tags of the first one: it must neither be taken for the newest tick nor hide it."""
    runs = nights.night(FIRST)
    assert nights.judge() == [FIRST.isoformat()]
    second = [nights.start(request) for request in nights.tick(SECOND)]
    again = nights.start(dg.RunRequest(tags=runs[0].tags, run_config=runs[0].run_config), parent=runs[0])
    for run in second:
        nights.end(run)
    assert nights.judge() == [SECOND.isoformat()], "while the other run is at work"
    nights.end(again)
    [third] = nights.judge()
    assert third not in (FIRST.isoformat(), SECOND.isoformat()), "what was executed again is judged by itself, once"
    assert nights.judge() == []


def test_the_newest_tick_is_the_one_of_the_latest_time(nights: Nights) -> None:
    """A tick that is tried in the UI has an older time and younger runs."""
    nights.night(SECOND)
    for request in nights.tick(FIRST) if isinstance(nights.tick(FIRST), list) else []:
        nights.end(nights.start(request))
    assert nights.judge() == [SECOND.isoformat()]


@pytest.mark.long
def test_a_trial_of_a_tick_to_come_is_judged_by_what_it_made_and_hides_no_later_tick(nights: Nights) -> None:
    """Its gate has to look at results since the trial: no result is as young as the time of the tick."""
    runs = nights.night(datetime(2100, 1, 1, tzinfo=UTC))
    [since] = nights.judge()
    evaluation = find_evaluation(nights.instance, nights.project, "nightly", since)
    assert evaluation is not None
    assert [record.dagster_run.run_id for record in evaluation.records] == [run.run_id for run in runs]
    assert evaluation.began <= datetime.now(UTC)
    assert evaluation.is_whole
    nights.end(nights.launch())
    assert len(nights.judge()) == 1


@pytest.mark.long
def test_a_tick_that_was_judged_and_is_launched_again_is_judged_again(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    """`Test schedule` in the UI starts runs with the tags of the tick. The runs of each trial are one evaluation."""
    monkeypatch.setattr(suite_evaluations, "_PAGE", 3)
    nights.night(FIRST)
    assert nights.judge() == [FIRST.isoformat()]
    nights.night(SECOND)
    assert nights.judge() == [SECOND.isoformat()]
    judged = {FIRST.isoformat(), SECOND.isoformat()}
    for _ in range(2):
        runs = nights.night(FIRST)
        [since] = nights.judge()
        assert since not in judged
        judged.add(since)
        evaluation = find_evaluation(nights.instance, nights.project, "nightly", since)
        assert evaluation is not None
        assert [record.dagster_run.run_id for record in evaluation.records] == [run.run_id for run in runs]
        assert evaluation.began > SECOND, "results of before are no part of it"
    assert nights.judge() == []


@pytest.mark.long
@pytest.mark.parametrize("page", [2, 200])
def test_a_tick_that_ends_after_a_later_evaluation_was_judged_is_judged_too(
    nights: Nights, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(suite_evaluations, "_PAGE", page)
    runs = [nights.start(request) for request in nights.tick(FIRST)]
    nights.end(runs[0])
    now = datetime.now(UTC).isoformat()
    tags = {**suite_tags(nights.project.home, "nightly"), SINCE_TAG: now, JUDGED_BY_TAG: "command"}
    nights.end(nights.start(dg.RunRequest(tags=tags)))
    nights.end(nights.start(dg.RunRequest(tags=tags), "gate_nightly"))
    assert nights.sense() == f"nightly of {FIRST.isoformat()}: 1 of 2 runs have ended"
    nights.end(runs[1])
    monkeypatch.setattr(suite_evaluations, "_PATIENCE_S", -1.0)
    assert nights.judge() == [FIRST.isoformat()]
    assert nights.judge() == []


@pytest.mark.long
def test_a_suite_may_have_more_models_than_a_page_of_runs(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many runs a tick, of which all are waited for."""
    monkeypatch.setattr(suite_evaluations, "_PAGE", 7)
    tags = {**suite_tags(nights.project.home, "nightly"), SINCE_TAG: FIRST.isoformat(), PLANNED_TAG: "120"}
    runs = [nights.start(dg.RunRequest(tags=tags)) for _ in range(120)]
    for run in runs[1:]:
        nights.end(run)
    assert nights.sense() == f"nightly of {FIRST.isoformat()}: 119 of 120 runs have ended"
    nights.end(runs[0])
    assert nights.judge() == [FIRST.isoformat()]


@pytest.mark.long
def test_evaluations_that_nobody_judged_are_judged_with_the_last_one(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sensor was off for two nights."""
    nights.night(FIRST)
    monkeypatch.setattr(suite_evaluations, "_PATIENCE_S", -1.0)
    nights.night(SECOND)
    assert nights.judge() == [SECOND.isoformat()]
    assert nights.judge() == []


@pytest.mark.long
def test_projects_on_one_instance_take_no_notice_of_each_other(nights: Nights, project: Project) -> None:
    """Both have a suite of the same name."""
    theirs = {SUITE_TAG: "nightly", SINCE_TAG: FIRST.isoformat(), PLANNED_TAG: "1", HOME_TAG: "/home/of/others"}
    run = nights.start(dg.RunRequest(tags=theirs))
    requests = nights.tick(FIRST)
    assert len(requests) == 2, "their run at work is no reason to wait"
    nights.end(run)
    assert nights.judge() == [], "their tick has a sensor of its own"
    other = Nights(replace(project, home=project.home.with_name("other")), nights.instance)
    keys = {request.run_key for request in [*requests, *other.tick(FIRST)] if isinstance(request, dg.RunRequest)}
    assert len(keys) == 4, "Dagster starts one run a key"


@pytest.mark.long
def test_a_tick_waits_for_no_notice_and_the_sensor_sends_it(nights: Nights, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a tick must not wait for networks and locks")

    nights.start(dg.RunRequest(tags=suite_tags(project.home, "nightly")))
    with monkeypatch.context() as patch:
        patch.setattr("eval_dagster.assets.notifications.notify", refuse)
        reason = nights.tick(FIRST)
        assert nights.tick(FIRST) == reason
    assert isinstance(reason, str)
    assert "have not ended" in reason
    outcome = nights.sense("skipped_nights")
    assert f"nightly of {FIRST.isoformat()}: failed (PAGER)" in str(outcome)
    [notice] = read_rows(project.lake, "select suite, kind, status, variable, body from notices")
    assert (notice["suite"], notice["kind"], notice["status"], notice["variable"]) == ("nightly", "skipped", "failed", "PAGER")
    assert reason in notice["body"]
    assert nights.sense("skipped_nights") == "no notice waits"


@pytest.mark.long
def test_a_notice_that_is_being_sent_is_not_sent_twice(nights: Nights, project: Project) -> None:
    """Dagster gives up an evaluation of a sensor after a minute, which goes on all the same."""
    note_skipped(project.home, "nightly", FIRST.isoformat(), "it is at work")
    [path] = (project.home / "skipped_nights").iterdir()
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert nights.sense("skipped_nights") == "no notice waits"
    assert nights.sense("skipped_nights") != "no notice waits"


def test_each_tick_says_how_many_runs_it_asks_for(nights: Nights) -> None:
    requests = nights.tick(FIRST)
    assert [request.tags[PLANNED_TAG] for request in requests] == ["2", "2"]


def test_a_suite_without_a_cron_is_judged_too_and_a_project_without_suites_has_no_gates(tmp_path: Path) -> None:
    (tmp_path / "evals.yaml").write_text(
        json.dumps(
            {
                "models": {"a": {"backend": "scripted"}},
                "evals": {"e": {"task": "capitals"}},
                "suites": {"s": {"evals": ["e"], "models": ["a"]}},
            }
        )
    )
    definitions = build_definitions(Project.open(config_path=tmp_path / "evals.yaml", home=tmp_path / "home"))
    assert {sensor.name for sensor in definitions.sensors or []} == {
        "leaderboard_follows_metrics",
        "killed_runs",
        "definitions",
        "suite_gates",
        "failed_nights",
    }
    assert {job.name for job in definitions.jobs or []} >= {"suite_s", "gate_s"}


@pytest.mark.long
def test_checkpoints_that_come_one_after_the_other_have_one_gate(nights: Nights) -> None:
    """Each is an evaluation of its own. A gate of each would miss the results of those under way, and be red for it."""

    def evaluate(name: str) -> dg.DagsterRun:
        job = nights.definitions.resolve_job_def("suite_nightly")
        return nights.start(dg.RunRequest(tags={**job.run_tags, CHECKPOINT_TAG: name}, run_config=chosen(Names(), models=["a"])))

    runs = [evaluate(name) for name in ("run-step-1", "run-step-2", "run-step-3")]
    nights.end(runs[0])
    nights.end(runs[2])
    assert "more checkpoints are evaluated" in str(nights.sense())
    nights.end(runs[1])
    requests = nights.sense()
    assert len(requests) == 1
    assert isinstance(requests[0], dg.RunRequest)
    gate = nights.start(requests[0], job="gate_nightly")
    assert "every evaluation that is over was judged" in str(nights.sense())
    nights.end(gate)
    late = evaluate("run-step-4")
    assert not isinstance(nights.sense(), list), "it is at work"
    nights.end(late)
    assert len(nights.sense()) == 1, "of the new one alone"
