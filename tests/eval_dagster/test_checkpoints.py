"""Checkpoints of a training run are found when they are complete, evaluated as models, and known after they are deleted."""

import re
import shutil
from pathlib import Path

from training_runs import evaluated, opened, saved

from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.stages.partition import StageFailure, StageResult


def test_a_training_run_is_evaluated_checkpoint_by_checkpoint(tiny_model: Path, tmp_path: Path) -> None:
    for step in (100, 200):
        saved(tiny_model, tmp_path / "runs" / f"checkpoint-{step}")
    project = opened(tmp_path)
    assert project.select(suite="nightly") == (["sums"], ["run-step-0000200", "run-step-0000100"]), "the newest first"
    outcomes = evaluated(project, *project.select(suite="nightly"))
    assert all(isinstance(each, StageResult) for each in outcomes), outcomes
    rows = read_rows(project.lake, "select family, eval, step, model from learning_curves")
    assert [tuple(row.values()) for row in rows] == [
        ("run", "sums", 100, "run-step-0000100"),
        ("run", "sums", 200, "run-step-0000200"),
    ]


def test_a_deleted_checkpoint_keeps_its_results_and_is_not_evaluated_anew(tiny_model: Path, tmp_path: Path) -> None:
    for step in (100, 200):
        saved(tiny_model, tmp_path / "runs" / f"checkpoint-{step}")
    project = opened(tmp_path)
    evaluated(project, ["sums"], ["run-step-0000100"])
    project.checkpoints()
    shutil.rmtree(tmp_path / "runs")
    again = opened(tmp_path)
    assert list(again.config.models) == ["run-step-0000100"], "one without results is not in the lists"
    outcomes = evaluated(again, ["sums", "capitals"], ["run-step-0000100", "run-step-0000200"])
    kept = [each for each in outcomes if (each.eval_name, each.model) == ("sums", "run-step-0000100")]
    assert [isinstance(each, StageResult) and each.cached for each in kept] == [True] * 4, kept
    failures = [each for each in outcomes if isinstance(each, StageFailure)]
    assert [(each.eval_name, each.model, each.status) for each in failures] == [
        ("capitals", "run-step-0000100", "not evaluated"),
        ("sums", "run-step-0000200", "not evaluated"),
        ("capitals", "run-step-0000200", "not evaluated"),
    ]
    for each in failures:
        assert re.search(r"the checkpoint was deleted \(was at runs/checkpoint-\d00, seen complete on 2.* UTC\)", each.message), (
            each.message
        )
