"""A home with the results of two models, written in a moment: what hostile queries and damaged files are tried on."""

from datetime import datetime
from pathlib import Path

import pyarrow.parquet as pq

from eval_dagster.lake.answers.responses import ResponseCache
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.files import Configured, Lake, table_of
from eval_dagster.lake.format.parquet_files import INFO_KEY, FileInfo
from eval_dagster.lake.records import add_attempts
from eval_dagster.lake.tables.events import Attempt
from eval_dagster.lake.tables.rows import response_row
from eval_dagster.records import ModelResponse

CONFIG = """
models:
  a: {backend: scripted, default: " 7"}
  b: {backend: scripted, default: " 8"}
evals:
  sums: {task: arithmetic}
"""
SAMPLES = 40


def make_home(folder: Path) -> Lake:
    """Write evals.yaml and the results of both models; they are published."""
    (folder / "evals.yaml").write_text(CONFIG)
    lake = Lake(folder / "home", configured=Configured(evals=("sums",), models=("a", "b")))
    for number, model in enumerate("ab"):
        _write_model(lake, model, number)
    publish(lake)
    return lake


def strip_checksum(path: Path) -> None:
    """Write a file again as another program does, with the same rows and the same `FileInfo`."""
    rows = pq.ParquetFile(path).read()
    kept = {key: value for key, value in (rows.schema.metadata or {}).items() if key == INFO_KEY}
    pq.write_table(rows.replace_schema_metadata(kept), path, compression="zstd")


def tree(folder: Path) -> dict[str, bytes]:
    """All files below a folder, but for the locks."""
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.parent.name != "locks"}


def _write_model(lake: Lake, model: str, seed: int) -> None:
    key = {"eval": "sums", "model": model}
    names = [f"s{number:02}" for number in range(SAMPLES)]
    values = [float((number * 7 + seed) % 3 == 0) for number in range(SAMPLES)]
    answers = [
        response_row(f"{model}-{name}", ModelResponse(text=[f" {value}"], finish_reason=["stop"]), model)
        for name, value in zip(names, values, strict=True)
    ]
    ResponseCache(lake, model).add(answers, "first run")
    prompts = [
        {**key, "sample_id": name, "source_id": name, "request_id": f"{model}-{name}", "prompt": f"{name}?", "gold": [" 1.0"]}
        for name in names
    ]
    _write(lake, "prompts", model, prompts)
    _write(lake, "responses", model, [{**key, "sample_id": name, **answer} for name, answer in zip(names, answers, strict=True)])
    pairs = zip(names, values, strict=True)
    scores = _write(
        lake,
        "scores",
        model,
        [{**key, "sample_id": name, "source_id": name, "metric": "accuracy", "value": value} for name, value in pairs],
    )
    measured = {"value": sum(values) / SAMPLES, "n": SAMPLES, "n_errors": 0, "higher_is_better": True, "is_headline": True}
    metrics = {**key, "metric": "accuracy", "aggregation": "micro", **measured, "scores_file": str(scores.relative_to(lake.root))}
    _write(lake, "metrics", model, [metrics])
    attempt = Attempt(
        **key, run_id="first run", finished_at=datetime.now().astimezone(), status="ok", stage="x", message=None, cached=False
    )
    add_attempts(lake, [attempt])


def _write(lake: Lake, table: str, model: str, rows: list[dict[str, object]]) -> Path:
    time = lake.next_time(table, "sums", model)
    if table == "metrics":
        rows = [{**row, "materialized_at": datetime.fromisoformat(time)} for row in rows]
    info = FileInfo(fingerprint="f", version="v", run_id="first run", materialized_at=time)
    return lake.write(table, table_of(table, rows), eval_name="sums", model=model, info=info).path
