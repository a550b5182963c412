"""A Dagster instance of a team: what is wrong with its storage is said in one line, and runs of other machines are left alone."""

import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.errors import DagsterExecutionInterruptedError
from dagster._core.execution.api import execute_run
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteRepositoryOrigin

from eval_dagster.assets.instance import killed_runs as liveness
from eval_dagster.assets.instance.instance import open_instance, postgres_problem
from eval_dagster.assets.instance.killed_runs import alive, end_dead_runs, run_place, sees_locks_of
from eval_dagster.assets.runs import launched_runs
from eval_dagster.assets.runs.in_process_runs import _require_unwatched
from eval_dagster.assets.runs.launched_runs import Launch, cancel_evaluation, launch_evaluation
from eval_dagster.assets.runs.run_summaries import RunEvents, add_run
from eval_dagster.assets.tags import LAUNCH_TAG, MACHINE_TAG, SINCE_TAG, home_tags
from eval_dagster.cli.run import run
from eval_dagster.errors import StoreError, UsageError
from eval_dagster.gate.run_summary import RunSummary
from eval_dagster.project import Project

ELSEWHERE = "another-machine 00000000-0000-0000-0000-000000000000 1:1"


def settings(folder: Path, url: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(folder))
    (folder / "dagster.yaml").write_text(yaml.safe_dump({"storage": {"postgres": {"postgres_url": url}}}))


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql://u:secret@127.0.0.1:1/d", "write `postgresql+psycopg2://`"),
        ({"env": "NOT_THERE"}, "the environment variable NOT_THERE is not set; set it where this runs"),
    ],
)
def test_a_wrong_address_is_named(url: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings(tmp_path, url, monkeypatch)
    with pytest.raises(StoreError) as raised, open_instance(tmp_path / "home"):
        pass
    assert words in str(raised.value)
    assert "secret" not in str(raised.value)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings(tmp_path, "postgresql+psycopg2://127.0.0.1:1/d", monkeypatch)
    monkeypatch.setitem(sys.modules, "dagster_postgres", None)
    with pytest.raises(StoreError, match=r"pip install 'eval_dagster\[postgres\]'"), open_instance(tmp_path / "home"):
        pass


def test_other_errors_are_not_taken_for_ones_of_postgresql() -> None:
    assert postgres_problem(ValueError("no")) is None
    assert postgres_problem(ModuleNotFoundError("No module named 'torch'", name="torch")) is None


@dg.job
def nothing() -> None:
    pass


def started(instance: dg.DagsterInstance, **tags: str) -> str:
    return instance.create_run_for_job(nothing, status=dg.DagsterRunStatus.STARTED, tags=tags).run_id


def test_runs_of_other_machines_are_left_to_run_monitoring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "is_shared", lambda _: True)
    with dg.DagsterInstance.ephemeral() as instance:
        ours = started(instance, **home_tags(tmp_path), **{MACHINE_TAG: run_place(tmp_path)})
        started(instance, **home_tags(tmp_path), **{MACHINE_TAG: ELSEWHERE})
        end_dead_runs(instance, tmp_path)
        assert {path.stem for path in (tmp_path / "locks" / "runs").iterdir()} == {ours}


def test_a_run_without_a_machine_is_not_suspected_on_an_instance_that_machines_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "is_shared", lambda _: True)
    with dg.DagsterInstance.ephemeral() as instance:
        started(instance, **home_tags(tmp_path))
        assert end_dead_runs(instance, tmp_path) == []
    assert not list((tmp_path / "locks" / "runs").glob("*"))


def test_a_dead_run_of_a_machine_with_an_instance_of_its_own_is_ended_after_its_name_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        locked, lockless = (started(instance, **home_tags(tmp_path), **{MACHINE_TAG: ELSEWHERE}) for _ in range(2))
        with alive(tmp_path, locked):
            pass
        (tmp_path / "locks" / "runs" / locked).write_text(ELSEWHERE)
        monkeypatch.setattr(liveness, "_SETTLED_S", -1.0)
        monkeypatch.setattr(liveness, "_LOST_S", -1.0)
        assert sorted(end_dead_runs(instance, tmp_path)) == sorted([locked, lockless])


def test_a_lock_file_of_another_machine_in_a_shared_folder_counts_as_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "is_shared", lambda _: True)
    with dg.DagsterInstance.ephemeral() as instance:
        run_id = started(instance, **home_tags(tmp_path), **{MACHINE_TAG: run_place(tmp_path)})
        with alive(tmp_path, run_id):
            lock = tmp_path / "locks" / "runs" / run_id
            assert lock.read_text() == run_place(tmp_path)
        lock.write_text(ELSEWHERE)
        monkeypatch.setattr(liveness, "_SETTLED_S", -1.0)
        assert end_dead_runs(instance, tmp_path) == []
        lock.write_text(run_place(tmp_path))
        assert end_dead_runs(instance, tmp_path) == [run_id], "the lock of a process of this machine that has ended"


def test_a_lock_is_seen_in_the_same_folder_of_the_same_kernel_alone(tmp_path: Path) -> None:
    name, boot, folder = run_place(tmp_path).split(" ", 2)
    locks = tmp_path / "locks" / "runs"
    seen = {
        "": True,  # a lock file of an earlier version
        f"{name} {boot} {folder}": True,
        f"another-container {boot} {folder}": True,
        f"another-pod {boot} 1:1": False,
        f"another-machine another-start {folder}": False,
        f"{name} an-earlier-start 1:1": True,
    }
    assert {place: sees_locks_of(place, locks) for place in seen} == seen


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home" / "dagster"))
    (tmp_path / "evals.yaml").write_text(
        "models: {sevens: {backend: scripted, default: ' 7'}}\nevals: {sums: {task: arithmetic, limit: 1}}\n"
    )
    return Project.open(config_path=tmp_path / "evals.yaml", home=tmp_path / "home")


def test_nothing_is_launched_where_no_daemon_takes_it_from_the_queue(project: Project) -> None:
    launch = Launch(project=project, evals=["sums"], models=["sevens"], suite=None)
    with pytest.raises(StoreError, match="no daemon of the Dagster instance takes runs from its queue; start it"):
        launch_evaluation(launch)
    with open_instance(project.home) as instance:
        assert instance.get_runs() == []
    assert cancel_evaluation(launch) == []


def created(instance: dg.DagsterInstance, launch: Launch, status: dg.DagsterRunStatus) -> str:
    tags = {LAUNCH_TAG: launch.key, SINCE_TAG: "2026-01-01T00:00:00+00:00"}
    location = GrpcServerCodeLocationOrigin(host="127.0.0.1", port=1, location_name="nowhere")
    origin = RemoteRepositoryOrigin(location, "repository").get_job_origin(nothing.name)
    return instance.create_run_for_job(nothing, status=status, tags=tags, remote_job_origin=origin).run_id


@pytest.mark.long
def test_runs_that_a_killed_command_had_not_submitted_can_be_canceled(project: Project) -> None:
    launch = Launch(project=project, evals=["sums"], models=["sevens"], suite=None)
    with open_instance(project.home) as instance:
        ids = [created(instance, launch, dg.DagsterRunStatus.NOT_STARTED) for _ in range(2)]
    assert sorted(cancel_evaluation(launch)) == sorted(ids)
    with open_instance(project.home) as instance:
        assert instance.get_runs() == [], "nothing was launched"
        ids = [created(instance, launch, status) for status in (dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED)]
    assert sorted(cancel_evaluation(launch)) == sorted(ids)
    with open_instance(project.home) as instance:
        assert {run.status for run in instance.get_runs()} == {dg.DagsterRunStatus.CANCELED}


def test_runs_that_a_killed_command_had_not_submitted_are_submitted_by_the_next_one(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = Launch(project=project, evals=["sums"], models=["sevens", "eights"], suite=None)
    with open_instance(project.home) as instance:
        ids = [created(instance, launch, status) for status in (dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED)]
    monkeypatch.setattr(launched_runs, "_loaded_location", lambda *_: nullcontext((None, None)))
    monkeypatch.setattr(launched_runs, "_followed", lambda *_: RunSummary())
    submitted: list[str] = []

    def submit(instance: dg.DagsterInstance, run_id: str, _: Any) -> dg.DagsterRun | None:
        submitted.append(run_id)
        return instance.get_run_by_id(run_id)

    monkeypatch.setattr(dg.DagsterInstance, "submit_run", submit)
    launch_evaluation(launch)
    assert submitted == ids[1:]


def test_a_launch_whose_runs_were_created_in_part_is_named(project: Project) -> None:
    launch = Launch(project=project, evals=["sums"], models=["sevens", "eights"], suite=None)
    with open_instance(project.home) as instance:
        created(instance, launch, dg.DagsterRunStatus.NOT_STARTED)
    with pytest.raises(StoreError, match="has created 1 of 2 runs"):
        launch_evaluation(launch)


@pytest.mark.parametrize("submitted", [0, 1])
def test_an_error_of_a_launch_leaves_no_run_that_blocks_others(submitted: int, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second run cannot be created, or cannot be submitted."""
    launch = Launch(project=project, evals=["sums"], models=["sevens", "sevens"], suite=None)
    count = 0

    def create(instance: dg.DagsterInstance, *_: Any, **__: Any) -> dg.DagsterRun:
        nonlocal count
        count += 1
        if count == 2 and not submitted:
            raise KeyboardInterrupt
        run = instance.get_run_by_id(created(instance, launch, dg.DagsterRunStatus.NOT_STARTED))
        assert run is not None
        return run

    def submit(instance: dg.DagsterInstance, run_id: str, _: Any) -> dg.DagsterRun:
        run = instance.get_run_by_id(run_id)
        assert run is not None
        if any(each.status is dg.DagsterRunStatus.QUEUED for each in instance.get_runs()):
            raise KeyboardInterrupt
        instance.report_dagster_event(dg.DagsterEvent.job_enqueue(run), run_id)
        return run

    monkeypatch.setattr(launched_runs, "_require_queue", lambda _: None)
    monkeypatch.setattr(launched_runs, "_loaded_location", lambda *_: nullcontext((None, None)))
    monkeypatch.setattr(launched_runs, "_remote_job", lambda *_: None)
    monkeypatch.setattr(launched_runs, "_create", create)
    monkeypatch.setattr(dg.DagsterInstance, "submit_run", submit)
    with pytest.raises(KeyboardInterrupt):
        launch_evaluation(launch)
    with open_instance(project.home) as instance:
        assert [run.status for run in instance.get_runs()] == [dg.DagsterRunStatus.CANCELED] * 2 * submitted


@pytest.mark.parametrize("in_process", [True, False])
def test_a_launched_run_that_is_canceled_is_a_failure_and_no_interruption_of_the_command(in_process: bool) -> None:
    @dg.op
    def interrupted() -> None:
        raise DagsterExecutionInterruptedError

    @dg.job(executor_def=dg.in_process_executor)
    def job() -> None:
        interrupted()

    with dg.DagsterInstance.ephemeral() as instance:
        run = instance.create_run_for_job(job)
        with suppress(DagsterExecutionInterruptedError):
            execute_run(InMemoryJob(job), run, instance)
        events = [entry.dagster_event for entry in instance.all_logs(run.run_id) if entry.dagster_event]
    summary = RunSummary()
    with pytest.raises(KeyboardInterrupt) if in_process else nullcontext():
        add_run(summary, RunEvents(run_id=run.run_id, succeeded=False, events=events, in_process=in_process))
    assert in_process or "was canceled" in summary.failures[0]


def test_models_of_launched_runs_are_not_looked_for_where_the_command_runs(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.config_path.write_text(
        "models: {far: {backend: transformers, source: {folder: on-the-cluster}}}\nevals: {sums: {task: arithmetic, limit: 1}}\n"
    )
    monkeypatch.setenv("EVAL_DAGSTER_CONFIG", str(project.config_path))
    monkeypatch.setenv("EVAL_DAGSTER_HOME", str(project.home))
    for launch, reason in ((False, "on-the-cluster"), (True, "no daemon of the Dagster instance takes runs from its queue")):
        with pytest.raises((UsageError, StoreError), match=reason):
            run(suite=None, evals=[], models=[], junit=None, markdown=None, launch=launch)


def test_a_launch_is_known_by_its_work_and_by_the_place_of_its_results(project: Project, tmp_path: Path) -> None:
    def key(home: str, **changes: Any) -> str:
        opened = Project.open(config_path=project.config_path, home=tmp_path / home)
        return Launch(**{"project": opened, "evals": ["sums"], "models": ["sevens"], "suite": None, **changes}).key

    assert key("home") == key("home")
    assert len({key("home"), key("another"), key("home", suite="nightly"), key("home", models=["other"])}) == 4


class Watched:
    """An instance whose launcher and monitoring are those of a cluster."""

    run_monitoring_enabled = True

    class run_launcher:  # noqa: N801 - an attribute
        supports_check_run_worker_health = True


def test_a_run_of_this_process_is_refused_where_the_daemon_would_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", "/team")
    with pytest.raises(UsageError, match="use `eval-dagster run --launch`"):
        _require_unwatched(Watched())  # type: ignore[arg-type]
    with dg.DagsterInstance.ephemeral() as instance:
        _require_unwatched(instance)
