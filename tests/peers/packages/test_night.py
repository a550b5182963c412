"""A suite of native evals and of evals of other packages, on two nights: the second computes nothing, and the gate passes both."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import eval_dagster
from tests.peers.packages.lighteval_rows import word, words

ROOT = Path(__file__).resolve().parents[3]
PYTHONS = {"lighteval": os.environ.get("LIGHTEVAL_PYTHON"), "eval_framework": os.environ.get("EVAL_FRAMEWORK_PYTHON")}
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(None in PYTHONS.values(), reason="LIGHTEVAL_PYTHON or EVAL_FRAMEWORK_PYTHON names no interpreter"),
]
EVALS = {
    "native": {"task": "arithmetic", "limit": 5},
    "harness": {"task": "lm_eval:mmlu_anatomy", "num_fewshot": 2},
    "framework": {"task": "eval_framework:MMLU", "subjects": ["anatomy"], "num_fewshot": 2},
    "framework-texts": {"task": "eval_framework:GSM8K_OLMES"},
    "light": {"task": "lighteval:mmlu:anatomy", "num_fewshot": 2},
    "light-texts": {"task": "lighteval:gsm8k"},
}


def mmlu(i: int) -> dict[str, Any]:
    return {"question": f"Which {word(i)} {i}?", "subject": "anatomy", "choices": words(i, 4), "answer": i % 4}


def gsm8k(i: int) -> dict[str, Any]:
    return {"question": f"What is {i} plus {i + 2}?", "answer": f"{i} + {i + 2} = <<{i}+{i + 2}={2 * i + 2}>>{2 * i + 2}\n#### {2 * i + 2}"}


def write_split(mirror: Path, path: str, split: str, row: Callable[[int], dict[str, Any]], start: int) -> None:
    folder = mirror / path
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([row(start + number) for number in range(12)]), folder / f"{split}-00000-of-00001.parquet")


def test_a_second_night_computes_nothing(tmp_path: Path) -> None:
    for dataset in ("cais/mmlu/anatomy", "lighteval/mmlu/anatomy"):
        for start, split in enumerate(("test", "dev", "validation")):
            write_split(tmp_path / "mirror", dataset, split, mmlu, 100 * start)
    for start, split in enumerate(("test", "train")):
        write_split(tmp_path / "mirror", "openai/gsm8k/main", split, gsm8k, 100 * start)
    config = {
        "datasets": {"mirror": "mirror"},
        "environments": PYTHONS,
        "models": {"table": {"backend": "scripted", "default": " 7"}},
        "evals": EVALS,
        "suites": {"night": {"evals": list(EVALS), "models": ["table"]}},
    }
    (tmp_path / "evals.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    first, second = night(tmp_path), night(tmp_path)
    assert (first.returncode, second.returncode) == (0, 0), first.stdout + first.stderr + second.stdout + second.stderr
    with eval_dagster.connect(tmp_path / ".eval_dagster") as results:
        runs = results.execute("select eval, cached from attempts order by finished_at").fetchall()
        errors = results.execute("select eval, error from scores where error is not null").fetchall()
    assert not errors
    assert sorted(runs) == sorted([(name, False) for name in EVALS] + [(name, True) for name in EVALS]), json.dumps(runs, default=str)


def night(folder: Path) -> "subprocess.CompletedProcess[str]":
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("EVAL_DAGSTER_", "DAGSTER_"))}
    environment = {**kept, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / "cache")}
    command = [sys.executable, "-m", "eval_dagster.cli", "run", "--suite", "night"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
