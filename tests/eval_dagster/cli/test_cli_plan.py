"""`plan` where answers are missing, or their times."""

import subprocess
import sys
from pathlib import Path

import pytest

from eval_dagster.cli import plan as planning
from eval_dagster.cli.plan import _Eval, plan
from eval_dagster.errors import UsageError
from eval_dagster.lake.files import Lake
from eval_dagster.statistics.capacity import Work

CONFIG = """
models: {measured: {backend: scripted}, served: {backend: scripted}, fresh: {backend: scripted}}
evals: {sums: {task: arithmetic}, capitals: {task: capitals}}
"""


@pytest.fixture(autouse=True)
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One model has answers with times, another one without; nobody has answered the capitals."""
    (tmp_path / "evals.yaml").write_text(CONFIG)
    monkeypatch.setenv("EVAL_DAGSTER_CONFIG", str(tmp_path / "evals.yaml"))
    monkeypatch.setenv("EVAL_DAGSTER_HOME", str(tmp_path / "home"))
    work = Work(requests=10, tokens_read=100.0, tokens_written=0.0)
    seconds = {"measured": 2.0, "served": None}

    def answered(_: Lake, name: str, model: str) -> _Eval | None:
        return _Eval(name=name, work=work, worker_s=seconds[model]) if name == "sums" and model in seconds else None

    monkeypatch.setattr(planning, "_answered", answered)


def _plan(*models: str, evals: tuple[str, ...] = (), like: str | None = None) -> None:
    plan(suite=None, evals=evals, models=models, like=like, workers=[1, 8], start_s=0.0)


def test_evals_without_answers_are_named_and_have_no_time(capsys: pytest.CaptureFixture[str]) -> None:
    _plan("fresh", evals=("capitals",), like="measured")
    printed = capsys.readouterr()
    assert "fresh: time" not in printed.out
    assert "not planned: capitals, which no model has answered" in printed.err


def test_a_model_whose_times_are_unknown_does_not_keep_others_from_being_planned(capsys: pytest.CaptureFixture[str]) -> None:
    _plan("served", "measured")
    printed = capsys.readouterr()
    assert "measured: time" in printed.out
    assert "not planned: no answer of served has a known time" in printed.err


def test_times_that_are_all_unknown_are_an_error() -> None:
    with pytest.raises(UsageError, match="no answer of served, fresh has a known time"):
        _plan("served", "fresh")


@pytest.mark.long
def test_other_commands_do_not_load_the_package_that_fits_the_rates() -> None:
    code = "import sys; from eval_dagster.cli import leaderboard, run, sql, status, task_page; sys.exit('scipy.optimize' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0
