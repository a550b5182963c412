"""`kill -9` at random moments of a home's life: after one more run it holds what an undisturbed home holds, MLflow and Dagster included."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
import pytest
from home_states import TABLES, left_behind, materialized, mlflow_runs, run_statuses, table_rows
from workplaces import REPOSITORY, Workplace

pytestmark = pytest.mark.e2e

CONFIG = """
    models:
      quick: {{backend: scripted, function: "answer.py:answer"}}
    evals:
      sums: {{task: arithmetic, num_fewshot: 2, limit: {limit}}}
      capitals: {{task: capitals, num_fewshot: 1, limit: {limit}}}
"""
LIFE = ((2, "run"), (4, "run"), (4, "gc"))
"""Limits of the evals, and what is done with them: a fresh home, one with results, one whose past is pruned."""

SETTLED_S = 2.1
"""A run whose lock is younger may be about to take it."""


class Life:
    """A home that goes through `LIFE`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.home = folder / "home"
        self._workplace = Workplace(folder, CONFIG.format(limit=1))

    def do(self, limit: int, command: str, moment: int = 0) -> tuple[int, int]:
        """Do one thing, and be killed at a moment; gives the exit status, and without a kill the number of moments."""
        (self._workplace.folder / "evals.yaml").write_text(CONFIG.format(limit=limit).replace("\n    ", "\n"))
        moments = self._workplace.folder / "moments"
        environment = os.environ | {
            "EVAL_DAGSTER_CONFIG": str(self._workplace.folder / "evals.yaml"),
            "EVAL_DAGSTER_HOME": str(self.home),
            "DAGSTER_HOME": str(self.home / "dagster"),
            "PYTHONPATH": str(REPOSITORY),
            "ASKED_LOG": str(self._workplace.log),
            "ANSWER_S": "0",
            "MOMENTS": str(moments),
        }
        script = str(Path(__file__).with_name("killed_command.py"))
        with (self._workplace.folder / "output.log").open("ab") as output:
            done = subprocess.run(
                [sys.executable, script, str(moment), command], env=environment, stdout=output, stderr=output, timeout=300
            )
        return done.returncode, 0 if moment else int(moments.read_text())

    def finish(self, limit: int, command: str) -> int:
        """Do one thing undisturbed; gives the number of its moments."""
        status, moments = self.do(limit, command)
        assert status == 0, self.output
        return moments

    @property
    def output(self) -> str:
        return self._workplace.output()


@contextmanager
def _instance(life: Life, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    monkeypatch.setenv("DAGSTER_HOME", str(life.home / "dagster"))
    with dg.DagsterInstance.get() as instance:
        yield instance


def _assert_same(life: Life, calm: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in TABLES:
        assert table_rows(life.home, name) == table_rows(calm.home, name), f"{name}\n{life.output}"
    assert mlflow_runs(life.home) == mlflow_runs(calm.home), life.output
    with _instance(calm, monkeypatch) as instance:
        expected = materialized(instance)
    with _instance(life, monkeypatch) as instance:
        assert materialized(instance) == expected
        assert run_statuses(instance).keys() <= {"SUCCESS", "FAILURE"}, "a run that was killed is at work for ever"
    assert left_behind(life.home) == [], life.output


def _kill(life: Life, limit: int, command: str, moment: int) -> None:
    status, _ = life.do(limit, command, moment)
    assert status in (-signal.SIGKILL, 0), f"{command} killed at moment {moment} was to end by that\n{life.output}"
    time.sleep(SETTLED_S)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_fifty_kills_of_fresh_homes_running_ones_and_of_the_deletion_of_the_past(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = int(os.environ.get("KILL_SEED", random.SystemRandom().randrange(10**6)))
    sys.stdout.write(f"KILL_SEED={seed}\n")
    chance = random.Random(seed)
    calm = Life(tmp_path / "calm")
    moments = [calm.finish(*step) for step in LIFE]
    sys.stdout.write(f"moments of {LIFE}: {moments}\n")
    kills = 0
    for number in range(5):
        life = Life(tmp_path / f"home-{number}")
        for step, most, count in zip(LIFE, moments, (4, 4, 2), strict=True):
            for _ in range(count):
                _kill(life, *step, moment=chance.randint(1, most))
                kills += 1
            life.finish(*step)
        life.finish(4, "run")
        _assert_same(life, calm, monkeypatch)
    assert kills == 50
