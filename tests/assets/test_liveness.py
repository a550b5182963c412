"""Runs whose process was killed."""

import os
import time
from pathlib import Path

import dagster as dg
import pytest

from assets import liveness
from assets.liveness import alive, end_dead_runs


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
    lost, foreign, at_work = (_started(instance, **tags) for tags in ({"eval_dagster/suite": "s"}, {}, {"eval_dagster/suite": "s"}))
    with alive(tmp_path, at_work):
        assert end_dead_runs(instance, tmp_path) == []
        _let_pass(tmp_path, liveness._LOST_S - 60)
        assert end_dead_runs(instance, tmp_path) == [], "it may be about to take its lock"
        _let_pass(tmp_path, liveness._LOST_S + 1)
        assert end_dead_runs(instance, tmp_path) == [lost]
    statuses = [_status(instance, run_id) for run_id in (lost, foreign, at_work)]
    assert statuses == [dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.STARTED]


def test_a_run_that_takes_its_lock_after_all_is_no_longer_suspected(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    run_id = _started(instance, **{"eval_dagster/suite": "s"})
    end_dead_runs(instance, tmp_path)
    with alive(tmp_path, run_id):
        _let_pass(tmp_path, liveness._LOST_S + 1)
        assert end_dead_runs(instance, tmp_path) == []
    assert end_dead_runs(instance, tmp_path) == [], "it has just let go of it, and is about to end"
    assert _status(instance, run_id) is dg.DagsterRunStatus.STARTED
