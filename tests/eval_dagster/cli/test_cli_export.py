"""`export` writes the current results, and nothing else, into files that other tools read."""

import csv
import json
import os
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from commands import run_command

CONFIG = """
    models:
      guesser: {backend: scripted, default: " 7"}
    evals:
      sums: {task: arithmetic, num_fewshot: 1, limit: LIMIT}
      capitals: {task: capitals, limit: 3}
"""

Export = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Export:
    """The command in a folder whose evals were evaluated twice, `sums` with another limit."""
    folder = tmp_path_factory.mktemp("export")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("EVAL_DAGSTER_", "DAGSTER_"))}

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return run_command(*arguments, folder=folder, environment=environment)

    for limit in (4, 6):
        (folder / "evals.yaml").write_text(textwrap.dedent(CONFIG).replace("LIMIT", str(limit)))
        done = run("run")
        assert done.returncode == 0, done.stderr

    def exported(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return run("export", *arguments)

    return exported


@pytest.fixture(scope="module")
def folder(export: Export, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("files") / "results"
    done = export(str(target))
    assert done.returncode == 0, done.stderr
    assert "scores.parquet" in done.stdout
    assert "Next" in done.stdout
    return target


@pytest.mark.long
def test_the_files_hold_the_current_results_alone(folder: Path) -> None:
    scores = pd.read_parquet(folder / "scores.parquet")
    assert scores[scores["eval"] == "sums"]["sample_id"].nunique() == 18
    metrics = pd.read_parquet(folder / "metrics.parquet")
    overall = metrics[metrics["subject"].isna() & (metrics["aggregation"] == "micro")].set_index(["eval", "model", "metric"])["value"]
    means = scores.groupby(["eval", "model", "metric"])["value"].mean()
    assert len(overall) >= 2
    assert means[overall.index].to_dict() == pytest.approx(overall.to_dict())
    names = {file.name for file in folder.iterdir()}
    assert {"leaderboard.parquet", "prompts.parquet", "responses.parquet", "samples.parquet", "attempts.parquet"} <= names
    assert not [name for name in names if "_history" in name or name.startswith((".", "_"))]


@pytest.mark.long
def test_histories_are_written_if_they_are_named(export: Export, tmp_path: Path) -> None:
    done = export(str(tmp_path), "--relation", "scores_history", "--relation", "metrics", "--format", "csv")
    assert done.returncode == 0, done.stderr
    assert {file.name for file in tmp_path.iterdir()} == {"scores_history.csv", "metrics.csv"}
    with (tmp_path / "scores_history.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["eval"] == "sums"]
    assert len({row["materialized_at"] for row in rows}) == 2


@pytest.mark.long
def test_a_second_export_replaces_the_files(export: Export, tmp_path: Path) -> None:
    (tmp_path / "leaderboard.json").write_text("old")
    (tmp_path / "own.txt").write_text("kept")
    done = export(str(tmp_path), "--relation", "leaderboard", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert {row["eval"] for row in json.loads((tmp_path / "leaderboard.json").read_text())} == {"sums", "capitals"}
    assert (tmp_path / "own.txt").read_text() == "kept"


@pytest.mark.long
def test_a_wrong_relation_leaves_all_files_as_they_were(export: Export, tmp_path: Path) -> None:
    (tmp_path / "metrics.parquet").write_text("old")
    done = export(str(tmp_path), "--relation", "metrics", "--relation", "score")
    assert done.returncode == 2
    assert "did you mean" in done.stderr
    assert (tmp_path / "metrics.parquet").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.long
def test_a_folder_that_cannot_be_written_is_an_error(export: Export, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    done = export(str(tmp_path / "file"))
    assert done.returncode == 2
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr
    inside = export(".eval_dagster/results")
    assert inside.returncode == 2
    assert "contains the results" in inside.stderr
