"""Training runs for tests: checkpoints of a tiny model, and projects that evaluate them."""

import os
import shutil
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

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


def sharded(model: Path, folder: Path) -> Path:
    """The model in several weight files with an index."""
    loaded = AutoModelForCausalLM.from_pretrained(model)
    loaded.save_pretrained(folder, max_shard_size="60KB")
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
    return folder


def pieces(source: Path, folder: Path, names: Sequence[str], *, parts: int = 3) -> Iterator[bool]:
    """Write the files of a checkpoint piece by piece, and let a minute pass after each. Yields whether the checkpoint is whole."""
    folder.mkdir(parents=True)
    for name in names:
        content = (source / name).read_bytes()
        length = -(-len(content) // parts)
        for part in range(parts):
            with (folder / name).open("ab") as file:
                file.write(content[part * length : (part + 1) * length])
            settle(folder)
            yield name == names[-1] and part == parts - 1
