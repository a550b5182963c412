"""Runs whose process was killed."""

import os
import time
from pathlib import Path

import dagster as dg
import pytest

from eval_dagster.assets import killed_runs as liveness
from eval_dagster.assets.killed_runs import alive, at_work, end_dead_runs
from eval_dagster.assets.tags import home_tags


@pytest.fixture
def instance() -> dg.DagsterInstance:
    return dg.DagsterInstance.ephemeral()


def _started(instance: dg.DagsterInstance, **tags: str) -> str:
    run = instance.create_run_for_job(_nothing, status=dg.DagsterRunStatus.STARTED, tags=tags)
    return run.run_id


@dg.job
def _nothing() -> None:
    pass


def _status(instance: dg.DagsterInstance, run_id: str) -> dg.DagsterRunStatus:
    run = instance.get_run_by_id(run_id)
    assert run is not None
    return run.status


def _let_pass(home: Path, seconds: float) -> None:
    for path in (home / "locks" / "runs").glob("*"):
        os.utime(path, (time.time() - seconds,) * 2)


def test_a_run_that_was_killed_before_it_held_its_lock_is_ended_after_a_while(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    ours = home_tags(tmp_path)
    lost, foreign, working = (_started(instance, **tags) for tags in (ours, {}, ours))
    with alive(tmp_path, working):
        assert end_dead_runs(instance, tmp_path) == []
        _let_pass(tmp_path, liveness._LOST_S - 60)
        assert end_dead_runs(instance, tmp_path) == [], "it may be about to take its lock"
        _let_pass(tmp_path, liveness._LOST_S + 1)
        assert end_dead_runs(instance, tmp_path) == [lost]
    statuses = [_status(instance, run_id) for run_id in (lost, foreign, working)]
    assert statuses == [dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.STARTED]


def test_a_live_run_of_another_project_on_the_same_instance_is_left_alone(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    """Both projects have a suite of the same name; the run holds the lock of its own home, which the other one does not see."""
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    run_id = _started(instance, **{"eval_dagster/suite": "nightly", "eval_dagster/home": str(theirs)})
    with alive(theirs, run_id):
        assert end_dead_runs(instance, mine) == []
        _let_pass(mine, liveness._LOST_S + 1)
        assert end_dead_runs(instance, mine) == []
    assert _status(instance, run_id) is dg.DagsterRunStatus.STARTED


def test_a_run_that_dagsters_own_pages_start_is_marked_when_it_works(tmp_path: Path) -> None:
    @dg.op
    def work(context: dg.OpExecutionContext) -> None:
        with at_work(context, tmp_path):
            assert (tmp_path / "locks" / "runs" / context.run_id).exists()

    @dg.job
    def job() -> None:
        work()

    with dg.DagsterInstance.ephemeral() as instance:
        run = job.execute_in_process(instance=instance)
        found = instance.get_run_by_id(run.run_id)
    assert run.success
    assert found is not None
    assert found.tags["eval_dagster/home"] == str(tmp_path)


def test_a_run_that_takes_its_lock_after_all_is_no_longer_suspected(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    run_id = _started(instance, **home_tags(tmp_path))
    end_dead_runs(instance, tmp_path)
    with alive(tmp_path, run_id):
        _let_pass(tmp_path, liveness._LOST_S + 1)
        assert end_dead_runs(instance, tmp_path) == []
    assert end_dead_runs(instance, tmp_path) == [], "it has just let go of it, and is about to end"
    assert _status(instance, run_id) is dg.DagsterRunStatus.STARTED
