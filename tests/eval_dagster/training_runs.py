"""Training runs for tests: checkpoints of a tiny model, and projects that evaluate them."""

import os
import shutil
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

from eval_dagster.pipeline import Outcome, evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES

CONFIG = """
    models:
      run: {{backend: transformers, device: cpu, checkpoints: {checkpoints}}}
    evals:
      sums: {{task: arithmetic, limit: {limit}}}
      capitals: {{task: capitals, limit: {limit}}}
    suites:
      nightly: {{evals: [sums], models: [run]}}
"""


def opened(folder: Path, *, checkpoints: str = "{folder: runs}", limit: int = 2) -> Project:
    """The project of a folder, as a new process opens it."""
    path = folder / "evals.yaml"
    path.write_text(textwrap.dedent(CONFIG.format(checkpoints=checkpoints, limit=limit)))
    return Project.open(config_path=path, home=folder / "home")


def saved(model: Path, folder: Path) -> Path:
    """A checkpoint that was saved a while ago."""
    shutil.copytree(model, folder)
    settle(folder)
    return folder


def settle(folder: Path) -> None:
    """Let a minute pass since the last change of a folder's files."""
    for path in folder.iterdir():
        os.utime(path, (time.time() - 60, time.time() - 60))


def evaluated(project: Project, evals: Sequence[str], models: Sequence[str], run_id: str = "run") -> list[Outcome]:
    """The outcomes of all stages."""
    partitions = [(eval_name, model) for model in models for eval_name in evals]
    return list(evaluate(project, partitions, stages=set(STAGES), run_id=run_id, reporter=SilentReporter()))
