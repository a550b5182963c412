"""`run --limit`, as somebody types it in the afternoon: nothing that is published changes, and no answer is computed twice."""

import json
import os
import sqlite3
import subprocess
import textwrap
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from commands import run_command

CONFIG = """
    models:
      sevens: {backend: scripted, default: " 7"}
      eights: {backend: scripted, default: " 8", answers: {"capital of Algeria": " Algiers"}}
    evals:
      sums: {task: arithmetic, num_fewshot: 1, limit: 4}
      capitals: {task: capitals, limit: 2}
    suites:
      good: {evals: [sums, capitals], models: [sevens, eights]}
"""
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trials")
    (folder / "evals.yaml").write_text(textwrap.dedent(CONFIG))
    return folder


@pytest.fixture(scope="module")
def cli(folder: Path) -> Run:
    environment = {name: value for name, value in os.environ.items() if name not in ("DAGSTER_HOME", "EVAL_DAGSTER_HOME")}
    environment["EVAL_DAGSTER_CONFIG"] = str(folder / "evals.yaml")

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return run_command(*arguments, environment=environment)

    return run


def _rows(cli: Run, *arguments: str) -> Any:
    done = cli("sql", *arguments, "--format", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _published(home: Path) -> dict[str, Any]:
    """Everything that a person, a gate or the Dagster UI sees, but for the answers."""
    files = [
        path for part in ("lake", "reports", "evals.duckdb", "mlartifacts", "dagster") for path in [home / part, *(home / part).rglob("*")]
    ]
    stamps = {str(path): path.stat().st_mtime_ns for path in files if path.is_file() and "response_cache" not in path.parts}
    with closing(sqlite3.connect(home / "mlflow.db")) as mlflow:
        stamps["mlflow runs"] = mlflow.execute("select count(*) from runs").fetchone()[0]
    return stamps


@pytest.mark.long
def test_a_trial_changes_nothing_that_is_published(cli: Run, folder: Path) -> None:
    assert cli("run", "--suite", "good").returncode == 0
    home = folder / ".eval_dagster"
    before, board = _published(home), _rows(cli, "leaderboard")
    assert any("dagster" in path for path in before)
    smaller = cli("run", "--suite", "good", "--limit", "1")
    assert _published(home) == before, smaller.stderr
    assert smaller.returncode == 0, smaller.stderr
    assert "Trial of at most 1 samples a subject: no published result changes" in smaller.stdout
    assert "0 requests sent to models, 18 answered from the cache" in smaller.stdout, "what the full run asked is not asked again"
    larger = cli("run", "--eval", "capitals", "--model", "eights", "--limit", "3")
    assert larger.returncode == 0, larger.stderr
    assert "6 requests sent to models, 12 answered from the cache" in larger.stdout
    assert _published(home) == before
    assert _rows(cli, "leaderboard") == board
    assert {(row["eval"], row["n"]) for row in board} == {("sums", 12), ("capitals", 12)}


@pytest.mark.long
def test_a_trial_is_read_by_its_own_name(cli: Run) -> None:
    board = {(row["eval"], row["model"]): row["n"] for row in _rows(cli, "leaderboard", "--trial")}
    assert board == {("sums", "sevens"): 3, ("sums", "eights"): 3, ("capitals", "sevens"): 6, ("capitals", "eights"): 18}
    assert len(_rows(cli, "select * from sample_results where eval = 'sums' and model = 'sevens'", "--trial")) == 3
    assert "Trials" in cli("leaderboard", "--trial").stdout


@pytest.mark.long
def test_the_full_run_after_a_trial_takes_its_answers(cli: Run, folder: Path) -> None:
    text = (folder / "evals.yaml").read_text()
    (folder / "evals.yaml").write_text(text.replace("task: capitals, limit: 2", "task: capitals, limit: 3"))
    full = cli("run", "--eval", "capitals", "--model", "eights")
    (folder / "evals.yaml").write_text(text)
    assert full.returncode == 0, full.stderr
    assert "0 requests sent to models, 18 answered from the cache" in full.stdout
    assert "Trial" not in full.stdout


def test_a_trial_is_no_way_to_a_verdict(cli: Run, folder: Path) -> None:
    done = cli("run", "--suite", "good", "--limit", "1", "--junit", str(folder / "gate.xml"))
    assert done.returncode == 2
    assert "judged by no gate" in done.stderr
    assert not (folder / "gate.xml").exists()
