"""Values of logs that a release of inspect_ai makes: as the release reads them, and as they are after an import."""

import json
import math
import subprocess
from pathlib import Path
from typing import Any

from eval_dagster.lake.files import Lake
from eval_dagster.lake.format.parquet_files import read_info, read_rows

_MARKS = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
Key = tuple[str, str, int]
"""The log, the sample and the epoch."""


def make_logs(python: Path, folder: Path) -> Any:
    """The values that a release reads from the logs that it has made in `folder/logs`: `rows` and `means`."""
    logs, scores = folder / "logs", folder / "scores.json"
    subprocess.run([python, Path(__file__).with_name("made_by_inspect.py"), logs, scores], check=True, cwd=folder, timeout=600)
    return json.loads(scores.read_text("utf-8"))


def own_values(theirs: Any) -> dict[Key, dict[str, float]]:
    """The values of each answer by scorer, as the release reads them."""
    return {(row["log"], row["id"], row["epoch"]): _numbers(row["scores"]) for row in theirs["rows"]}


def _numbers(scores: dict[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for scorer, value in scores.items():
        whole = json.loads(value) if isinstance(value, str) and value.startswith("{") else value
        parts = {f"{scorer}/{key}": part for key, part in whole.items()} if isinstance(whole, dict) else {scorer: whole}
        found |= {name: _MARKS.get(part, math.nan) if isinstance(part, str) else float(part) for name, part in parts.items()}
    return found


def imported_values(lake: Lake) -> dict[Key, dict[str, float]]:
    """The values of each answer by metric, after an import."""
    found: dict[Key, dict[str, float]] = {}
    for path in (lake.root / "scores").rglob("*.parquet"):
        log = read_info(path).inputs["inspect_eval_id"]
        for row in read_rows(path):
            values = found.setdefault((log, row["sample_name"], int(row["sample_id"].partition("-epoch")[2] or 1)), {})
            if row["value"] is not None:
                values[row["metric"]] = row["value"]
    return found


def imported_means(lake: Lake) -> dict[str, dict[str, float]]:
    """The values of each log by metric, after an import."""
    files = (lake.root / "metrics").rglob("*.parquet")
    return {read_info(path).inputs["inspect_eval_id"]: {row["metric"]: row["value"] for row in read_rows(path)} for path in files}
