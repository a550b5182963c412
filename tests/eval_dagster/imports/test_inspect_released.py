"""Imported scores beside those of `inspect_ai.analysis.samples_df`, on logs that the released inspect_ai makes."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eval_dagster.imports.importing import import_logs
from eval_dagster.imports.inspect_archive import log_files
from eval_dagster.lake.files import Lake
from eval_dagster.lake.format.parquet_files import read_info, read_rows

_VARIABLE = "EVAL_DAGSTER_INSPECT_PYTHON"
_RELEASE = "inspect-ai==0.3.285"
_MARKS = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}


@pytest.fixture(scope="module")
def inspect_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with inspect_ai: the one that a variable names, or one in a new environment."""
    if given := os.environ.get(_VARIABLE):
        return Path(given)
    folder = tmp_path_factory.mktemp("inspect") / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    done = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", _RELEASE, "pandas", "pyarrow"], capture_output=True, text=True, timeout=900, check=False
    )
    if done.returncode:
        pytest.skip(f"needs {_RELEASE}: name an interpreter that has it by {_VARIABLE}, since pip failed: {done.stderr[-300:]}")
    return python


def _numbers(scores: dict[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for scorer, value in scores.items():
        whole = json.loads(value) if isinstance(value, str) and value.startswith("{") else value
        parts = {f"{scorer}/{key}": part for key, part in whole.items()} if isinstance(whole, dict) else {scorer: whole}
        found |= {name: _MARKS.get(part, math.nan) if isinstance(part, str) else float(part) for name, part in parts.items()}
    return found


@pytest.mark.long  # makes an environment, and evaluates in it
def test_scores_equal_those_of_the_released_package(inspect_python: Path, tmp_path: Path) -> None:
    logs, scores = tmp_path / "logs", tmp_path / "scores.json"
    subprocess.run([inspect_python, Path(__file__).with_name("made_by_inspect.py"), logs, scores], check=True, cwd=tmp_path, timeout=600)
    theirs = json.loads(scores.read_text("utf-8"))
    lake = Lake(tmp_path / "home")
    assert [each.state for each in import_logs(lake, log_files(logs))] == ["imported"] * 7
    ours: dict[tuple[str, str, int], dict[str, float]] = {}
    for path in (lake.root / "scores").rglob("*.parquet"):
        log = read_info(path).inputs["inspect_eval_id"]
        for row in read_rows(path):
            key = log, row["sample_name"], int(row["sample_id"].partition("-epoch")[2] or 1)
            ours.setdefault(key, {})
            if row["value"] is not None:
                ours[key][row["metric"]] = row["value"]
    expected = {(row["log"], row["id"], row["epoch"]): _numbers(row["scores"]) for row in theirs["rows"]}
    assert ours == expected
    failed = [key for row in theirs["rows"] if row["error"] for key in [(row["log"], row["id"], row["epoch"])]]
    assert failed
    assert not any(value == 0 for key in failed for name, value in ours[key].items() if name not in expected[key])
    for path in (lake.root / "metrics").rglob("*.parquet"):
        means = theirs["means"].get(read_info(path).inputs["inspect_eval_id"], {})
        found = {row["metric"]: row["value"] for row in read_rows(path) if row["metric"] in means}
        assert found == pytest.approx(means)
