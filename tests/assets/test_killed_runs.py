"""Runs whose process was killed."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from daemon_by_hand import CONFIG, FAILURE, Nights

from eval_dagster.assets import automation
from eval_dagster.assets.instance import killed_runs as liveness
from eval_dagster.assets.instance.killed_runs import alive, at_work, end_dead_runs, end_unstarted_runs, place_of, was_killed
from eval_dagster.assets.tags import home_tags
from eval_dagster.gate.judgement import Attempts
from eval_dagster.lake.files import Lake
from eval_dagster.lake.records import read_attempts
from eval_dagster.project import Project
from eval_dagster.users_code import Place, calling, doing, record_in


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
    run_id = _started(instance, **{"eval_dagster/suite": "nightly", ".dagster/eval_home": str(theirs)})
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
    assert found.tags[".dagster/eval_home"] == str(tmp_path)


def test_a_run_that_takes_its_lock_after_all_is_no_longer_suspected(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    run_id = _started(instance, **home_tags(tmp_path))
    end_dead_runs(instance, tmp_path)
    with alive(tmp_path, run_id):
        _let_pass(tmp_path, liveness._LOST_S + 1)
        assert end_dead_runs(instance, tmp_path) == []
    assert end_dead_runs(instance, tmp_path) == [], "it has just let go of it, and is about to end"
    assert _status(instance, run_id) is dg.DagsterRunStatus.STARTED


WORK = """
    import os, sys
    from pathlib import Path
    from eval_dagster.stores.locks import locked
    from eval_dagster.users_code import calling, doing, limited, recorded

    locks, run_id = Path(sys.argv[1]) / "locks", sys.argv[2]
    (locks / "places").mkdir(parents=True)
    with locked(locks / "runs" / run_id), recorded(locks / "places" / run_id, run_id):
        with limited(0.1), doing("sample_scores", ["sums"], "m"), calling("the metric f1", "4711"):
            print("at work", flush=True)
            {fault}
"""


def _at_work(home: Path, run_id: str, fault: str) -> "subprocess.Popen[bytes]":
    """A process that calls users' code in a run, as `alive` marks it."""
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(WORK).format(fault=fault), str(home), run_id], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"at work\n"
    process.stdout.close()
    lock = home / "locks" / "runs" / run_id
    lock.write_text(place_of(lock.parent))
    return process


@pytest.mark.parametrize("is_known", [False, True], ids=["still started", "already failed, as Dagster saw"])
def test_what_a_dead_process_worked_on_has_failed(instance: dg.DagsterInstance, tmp_path: Path, *, is_known: bool) -> None:
    run_id = _started(instance, **home_tags(tmp_path))
    assert _at_work(tmp_path, run_id, "os._exit(0)").wait(timeout=60) == 0
    run = instance.get_run_by_id(run_id)
    if is_known and run is not None:  # then it is read at once, since its gate is next
        instance.report_run_failed(run)
    else:
        _let_pass(tmp_path, 10)
    assert end_dead_runs(instance, tmp_path) == ([] if is_known else [run_id])
    assert _status(instance, run_id) == dg.DagsterRunStatus.FAILURE
    [attempt] = read_attempts(Lake(tmp_path))
    said = (
        "the process ended or was killed while it called the metric f1 for the sample 4711 in sample_scores of the eval sums on the model m"
    )
    assert (attempt.eval, attempt.model, attempt.run_id, attempt.status, attempt.stage) == ("sums", "m", run_id, "failed", "sample_scores")
    assert str(attempt.message).startswith(said)
    assert said in str(Attempts([attempt]).problem("sums", "m")), "which is how the gate learns of it"
    assert end_dead_runs(instance, tmp_path) == []
    assert len(read_attempts(Lake(tmp_path))) == 1
    assert not list((tmp_path / "locks" / "places").iterdir())


def test_users_code_that_takes_too_long_is_ended(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    run_id = _started(instance, **home_tags(tmp_path))
    process = _at_work(tmp_path, run_id, "while True: pass")
    time.sleep(0.2)
    _let_pass(tmp_path, 10)
    assert end_dead_runs(instance, tmp_path) == []
    assert process.wait(timeout=60) == -signal.SIGKILL
    assert end_dead_runs(instance, tmp_path) == [run_id]
    [attempt] = read_attempts(Lake(tmp_path))
    assert str(attempt.message).startswith("the process ended when its time was over (code_timeout) while it called the metric f1")


def test_the_place_of_a_run_is_written_while_it_is_alive(tmp_path: Path) -> None:
    file = tmp_path / "locks" / "places" / "4711"
    with alive(tmp_path, "4711"), doing("sample_scores", ["sums"], "m"), calling("the metric f1", "a"):
        record = record_in(file)
        assert record is not None
        expected = Place(stage="sample_scores", evals=("sums",), model="m", call="the metric f1", item="a", run_id="4711")
        assert record.place() == expected
        assert record.process == os.getpid()
    assert not file.exists()


def test_a_run_that_was_about_to_start_when_the_interface_was_killed_does_not_hold_up_the_queue(tmp_path: Path) -> None:
    (tmp_path / "dagster").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster")) as instance:
        ours = instance.add_run(dg.DagsterRun(job_name="job", status=dg.DagsterRunStatus.STARTING, tags=home_tags(tmp_path)))
        others = instance.add_run(dg.DagsterRun(job_name="job", status=dg.DagsterRunStatus.STARTING, tags=home_tags(tmp_path / "another")))
        busy = instance.add_run(dg.DagsterRun(job_name="job", status=dg.DagsterRunStatus.STARTING, tags=home_tags(tmp_path)))
        with alive(tmp_path, busy.run_id):
            end_unstarted_runs(instance, tmp_path)
        found = {run.run_id: run for run in instance.get_runs()}
        assert [found[run.run_id].status for run in (ours, others, busy)] == [
            dg.DagsterRunStatus.FAILURE,
            dg.DagsterRunStatus.STARTING,
            dg.DagsterRunStatus.STARTING,
        ]
        assert was_killed(instance, found[ours.run_id])


def test_the_gate_knows_of_a_process_that_died_while_it_looked(
    instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dagster's own watch can mark its run as failed between the look at processes and the look at runs."""
    config = tmp_path / "evals.yaml"
    config.write_text(textwrap.dedent(CONFIG))
    nights = Nights(Project.open(config_path=config, home=tmp_path / "home"), instance)
    run = nights.launch()
    process = _at_work(nights.project.home, run.run_id, "while True: pass")
    look = automation.unjudged

    def dies_first(*args: Any) -> Any:
        if process.poll() is None:
            process.kill()
            process.wait()
            nights.end(run, FAILURE)
        return look(*args)

    monkeypatch.setattr(automation, "unjudged", dies_first)
    assert isinstance(nights.sense(), list), "the suite is judged"
    assert [each.stage for each in read_attempts(Lake(nights.project.home))] == ["sample_scores"]
