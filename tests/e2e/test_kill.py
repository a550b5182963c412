"""`kill -9` in the middle of the model's work, again and again: nothing that was flushed is asked again, and nothing is lost."""

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import dagster as dg
import duckdb
import pytest
from workplaces import Workplace, wait_until

from assets.liveness import end_dead_runs

pytestmark = pytest.mark.e2e

KILLS = 10
TABLES = {
    "prompts": "eval, model, sample_id, request_id, prompt, choices, gold",
    "responses": "eval, model, sample_id, request_id, text, choice_logprobs, error",
    "scores": "eval, model, sample_id, subject, metric, value, error",
    "metrics": "eval, model, subject, metric, value, stderr, ci_low, ci_high, n, n_errors, dataset_version, prompt_version, model_version",
}


@pytest.mark.timeout(400)
def test_killed_ten_times_the_results_are_those_of_an_undisturbed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "calm").mkdir()
    (tmp_path / "killed").mkdir()
    calm, killed = Workplace(tmp_path / "calm"), Workplace(tmp_path / "killed")
    undisturbed = calm.start(answer_s=0)
    chance = random.Random(20261121)
    flushed: set[str] = set()
    for _ in range(KILLS):
        process = killed.start(answer_s=0.02)
        wait_until(lambda: bool(killed.asked()), process)
        time.sleep(chance.uniform(0.05, 4.0))
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
    for name in TABLES:
        assert _table(killed, name) == _table(calm, name), name
    monkeypatch.setenv("DAGSTER_HOME", str(killed.folder / "home" / "dagster"))
    with dg.DagsterInstance.get() as instance:
        end_dead_runs(instance, killed.folder / "home")
        statuses = Counter(run.status for run in instance.get_runs())
    assert statuses == {dg.DagsterRunStatus.FAILURE: KILLS, dg.DagsterRunStatus.SUCCESS: 2}, "a killed run must not count as running"


def _table(workplace: Workplace, name: str) -> list[tuple[object, ...]]:
    with duckdb.connect(str(workplace.folder / "home" / "evals.duckdb"), read_only=True) as connection:
        return sorted(connection.execute(f"select {TABLES[name]} from {name}").fetchall(), key=repr)
