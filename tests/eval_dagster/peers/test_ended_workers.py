"""A worker that hangs or grows is ended: it costs its own eval, and one message."""

import os
import random
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from eval_dagster.errors import MachineError
from eval_dagster.pipeline import evaluate
from eval_dagster.progress import memory
from eval_dagster.progress.memory import memory_limited
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, StageResult
from eval_dagster.users_code import limited
from tests.eval_dagster.peers.conftest import QuizEnvironment
from tests.eval_dagster.peers.test_processes import answered, benchmark, read

MIB = 2**20
ROOT = Path(__file__).resolve().parents[3]
CONFIG = """
code_timeout: 3
environments:
  quiz: quiz-environment/bin/python
models:
  slow: {backend: scripted, default: " slow"}
  two: {backend: scripted, default: " 2"}
evals:
  sums: {task: "quiz:sums"}
  many: {task: "quiz:many", limit: 3}
sandbox: {allow_code_execution: true}
"""


def test_a_call_that_hangs_is_ended_and_not_tried_again(quiz: QuizEnvironment) -> None:
    sums = benchmark(quiz)
    rows = read(sums)
    with limited(1.0):
        for _ in range(2):  # the second one at once
            with pytest.raises(MachineError, match=r"was ended: `score` of sums took longer than 1 s; `code_timeout` of evals.yaml sets"):
                sums.score_all("all", rows, answered(rows, "slow"))
        assert read(sums) == rows, "other calls are answered"


def test_a_call_in_time_is_not_ended(quiz: QuizEnvironment) -> None:
    sums = benchmark(quiz)
    with limited(None):
        assert sums.score_all("all", read(sums), answered(read(sums), "1"))[0]["right"] == 1.0  # type: ignore[index]


@pytest.mark.parametrize(
    ("set_limit", "allowed"),
    [
        pytest.param(None, "4.0 GiB", marks=pytest.mark.long),
        (600 * MIB, "600 MiB"),
    ],
)
def test_a_call_that_grows_is_ended(quiz: QuizEnvironment, set_limit: int | None, allowed: str) -> None:
    assert memory.CHILD_LIMIT == 4 * 2**30
    sums = benchmark(quiz)
    rows = read(sums)
    with memory_limited(set_limit), pytest.raises(MachineError, match=rf"of memory; it may take {allowed}, and `memory` of evals.yaml"):
        sums.score_all("all", rows, answered(rows, "grow"))
    with pytest.raises(MachineError, match="`score` of sums took"):  # not tried again
        sums.score_all("all", rows, answered(rows, "1"))


@pytest.mark.long
def test_a_worker_that_hangs_costs_its_own_eval(quiz: QuizEnvironment, tmp_path: Path) -> None:
    (tmp_path / "evals.yaml").write_text(CONFIG)
    opened = Project.open(config_path=tmp_path / "evals.yaml", home=tmp_path / "home")
    partitions = [("sums", "slow"), ("many", "two")]
    outcomes = list(evaluate(opened, partitions, stages=set(STAGES), run_id="test", reporter=SilentReporter()))
    made = {(each.stage, each.eval_name): each for each in outcomes if isinstance(each, StageResult)}
    assert made["sample_scores", "many"].file.info.counts["errors"] == 0
    assert made["sample_scores", "sums"].file.info.counts["errors"] > 0
    [warning] = made["sample_scores", "sums"].warnings
    assert "`score` of sums took longer than 3 s" in warning


@pytest.mark.long
def test_no_worker_outlives_a_killed_run(quiz: QuizEnvironment, tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(
        textwrap.dedent(f"""
        from pathlib import Path
        from tests.eval_dagster.peers.test_processes import answered, read
        from tests.eval_dagster.peers.quiz_registry import QuizRegistry
        sums = QuizRegistry().within(Path({str(quiz.python)!r})).benchmark("sums", Path())
        print("begun", flush=True)
        for _ in range(100):
            sums.score_all("all", read(sums), answered(read(sums), "1"))
        sums.score_all("all", read(sums), answered(read(sums), "slow"))
        """)
    )
    draws = random.Random(1)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for _ in range(50):
        ours = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment)
        assert ours.stdout is not None
        assert ours.stdout.readline() == "begun\n"
        time.sleep(draws.random() / 4)
        assert running(quiz)
        ours.kill()
        ours.wait()
        ours.stdout.close()
    until = time.monotonic() + 20
    while running(quiz) and time.monotonic() < until:
        time.sleep(0.1)
    assert running(quiz) == []


def running(quiz: QuizEnvironment) -> list[int]:
    """The processes of the environment."""
    return [each.pid for each in psutil.process_iter(["cmdline"]) if (each.info["cmdline"] or [""])[0] == str(quiz.python)]
