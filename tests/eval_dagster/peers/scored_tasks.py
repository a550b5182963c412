"""Evaluates task files as a user does, with a model that knows the answers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.records import Row
from eval_dagster.stages.partition import STAGES, StageFailure, StageResult

IMPORTS = """
from typing import Any
from eval_framework.tasks.base import BaseTask
from eval_framework.models.sample import ResponseType
from eval_framework.metrics.loglikelihood.accuracy_loglikelihood import AccuracyLoglikelihood
from eval_framework.metrics.loglikelihood.accuracy_norm_loglikelihood import AccuracyNormLoglikelihood
from eval_framework.metrics.loglikelihood.confidence_weighted_accuracy import ConfidenceWeightedAccuracy
from eval_framework.metrics.loglikelihood.dcs import DistributionalCorrectnessScore
from eval_framework.metrics.loglikelihood.probability_mass import ProbabilityMass
from eval_framework.metrics.loglikelihood.probability_mass_norm import ProbabilityMassNorm
from eval_framework.metrics.loglikelihood.ternary import TernaryScore
"""
"""The imports that the fragments of a document presuppose."""


@dataclass(frozen=True, kw_only=True)
class Scored:
    """What an evaluation ended with."""

    values: Mapping[str, float]
    """By metric."""
    errors: int
    warnings: Sequence[str]


def project_of(folder: Path, code: str, name: str, *, data: Mapping[str, Sequence[Row]], answers: Mapping[str, str]) -> Project:
    """A project with one eval: a class of a file, its rows by subject in a mirror of `DATASET_PATH`, and a model that knows `answers`."""
    (folder / "mirror").mkdir(parents=True, exist_ok=True)
    (folder / "task.py").write_text(code)
    config: dict[str, Any] = {
        "datasets": {"mirror": str(folder / "mirror")},
        "models": {"knows": {"backend": "scripted", "answers": dict(answers), "default": " ?"}},
        "evals": {"asked": {"task": f"task.py:{name}", "num_fewshot": 0}},
    }
    (folder / "evals.yaml").write_text(yaml.safe_dump(config))
    project = Project.open(config_path=folder / "evals.yaml", home=folder / "home")
    for subject, rows in data.items():
        place = folder / "mirror" / project.task("asked").DATASET_PATH / subject
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{project.task('asked').SAMPLE_SPLIT}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return project


def scored(project: Project) -> Scored:
    """The eval through all stages."""
    outcomes = list(evaluate(project, [("asked", "knows")], stages=set(STAGES), run_id="test", reporter=SilentReporter()))
    assert [each.message for each in outcomes if isinstance(each, StageFailure)] == []
    rows = read_rows(project.lake, "select metric, value, n_errors from metrics where subject is null and aggregation = 'micro'")
    return Scored(
        values={row["metric"]: row["value"] for row in rows},
        errors=max(row["n_errors"] for row in rows),
        warnings=[warning for each in outcomes if isinstance(each, StageResult) for warning in each.warnings],
    )
