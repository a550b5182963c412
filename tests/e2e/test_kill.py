"""`kill -9` in the middle of the model's work, again and again: nothing that was flushed is asked again, and nothing is lost."""

import os
import random
import signal
import time
from pathlib import Path

import dagster as dg
import pytest
from few import few
from home_states import TABLES, left_behind, materialized, mlflow_runs, run_statuses, table_rows
from workplaces import Workplace, wait_until

from eval_dagster.assets.instance.killed_runs import end_dead_runs

pytestmark = pytest.mark.e2e


@pytest.mark.long
@pytest.mark.timeout(400)
@few("kills", [1, 3], kept=1)
def test_killed_again_and_again_the_results_are_those_of_an_undisturbed_run(
    kills: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "calm").mkdir()
    (tmp_path / "killed").mkdir()
    calm, killed = Workplace(tmp_path / "calm"), Workplace(tmp_path / "killed")
    undisturbed = calm.start(answer_s=0)
    chance = random.Random(20261121)
    flushed: set[str] = set()
    for _ in range(kills):
        process = killed.start(answer_s=0.02)
        wait_until(lambda: bool(killed.flushed() if kills == 1 else killed.asked()), process)
        time.sleep(chance.uniform(0.05, 0.5 if kills == 1 else 4.0))
        assert process.poll() is None, "the run ended before it could be killed"
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert not flushed & set(killed.asked()), "a request was sent again although its answer had been flushed"
        assert flushed <= killed.flushed(), "an answer was lost"
        flushed = killed.flushed()
    assert flushed, "no kill was late enough for a flush"

    last = killed.start(answer_s=0)
    assert last.wait(timeout=120) == 0, killed.output()
    assert undisturbed.wait(timeout=120) == 0
    assert not flushed & set(killed.asked())
    assert sorted(flushed | set(killed.asked())) == sorted(calm.asked())
    home, calm_home = killed.folder / "home", calm.folder / "home"
    for name in TABLES:
        assert table_rows(home, name) == table_rows(calm_home, name), name
    assert mlflow_runs(home) == mlflow_runs(calm_home)
    assert left_behind(home) == []
    with _instance(calm_home, monkeypatch) as instance:
        expected = materialized(instance)
    with _instance(home, monkeypatch) as instance:
        assert materialized(instance) == expected
        end_dead_runs(instance, home)
        assert run_statuses(instance) == {"FAILURE": kills, "SUCCESS": 2}, "a killed run must not count as running"


def _instance(home: Path, monkeypatch: pytest.MonkeyPatch) -> dg.DagsterInstance:
    monkeypatch.setenv("DAGSTER_HOME", str(home / "dagster"))
    return dg.DagsterInstance.get()
