"""What several machines write to one lake at once, and what a reader must see of it."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from eval_dagster.lake.answers.responses import ResponseCache
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.files import Lake, table_of
from eval_dagster.lake.format.parquet_files import FileInfo
from eval_dagster.lake.tables.rows import response_row
from eval_dagster.lake.tables.schemas import TABLES
from eval_dagster.records import ModelResponse

SAMPLES = 3
MODEL = "shared"
"""A model whose partition all writers write to."""


def write_results(lake: Lake, writer: str, count: int) -> Iterator[str]:
    """Write scores, then metrics of them, to the partition of all writers and to one of this writer, in turns; yields their names."""
    for number in range(count):
        model, run = (MODEL if number % 2 else writer), f"{writer}-{number}"
        value = float(number)
        time = lake.next_time("scores", "sums", model)
        rows = [
            {"eval": "sums", "model": model, "sample_id": str(sample), "metric": "exact", "value": value, "cluster": run}
            for sample in range(SAMPLES)
        ]
        scores = lake.write("scores", table_of("scores", rows), eval_name="sums", model=model, info=_info(run, time))
        time = lake.next_time("metrics", "sums", model)
        row = {
            "eval": "sums",
            "model": model,
            "metric": "exact",
            "is_headline": True,
            "value": value,
            "n": SAMPLES,
            "n_errors": 0,
            "higher_is_better": True,
            "dagster_run_id": run,
            "metric_version": "v1",
            "materialized_at": datetime.fromisoformat(time),
            "scores_file": str(scores.path.relative_to(lake.root)),
        }
        known = TABLES["metrics"].names
        assert row.keys() <= set(known), row.keys() - set(known)
        lake.write("metrics", table_of("metrics", [row]), eval_name="sums", model=model, info=_info(run, time))
        yield run


def _info(run: str, time: str) -> FileInfo:
    return FileInfo(fingerprint=run, version=run, run_id=run, materialized_at=time)


def inconsistent(lake: Lake) -> list[dict[str, Any]]:
    """Publish; the current metrics whose scores are not there, or of another materialization."""
    damages = publish(lake)
    assert damages == [], damages
    query = (
        "select m.eval, m.model, m.dagster_run_id, count(s.sample_id) as n, min(s.cluster) as scored_by from metrics m "
        "left join scores s using (eval, model) group by all having n != $n or scored_by != m.dagster_run_id"
    )
    return read_rows(lake, query, {"n": SAMPLES})


def written(lake: Lake) -> list[str]:
    """The names of all results in the history of metrics, once for each row, with those whose scores are not there exactly once."""
    assert inconsistent(lake) == []
    runs = [row["dagster_run_id"] for row in read_rows(lake, "select dagster_run_id from metrics_history")]
    scored = read_rows(lake, "select cluster, count(*) as n from scores_history group by cluster having n != $n", {"n": SAMPLES})
    return sorted([*runs, *(f"{row['cluster']}: {row['n']} scores" for row in scored)])


def names_of(lake: Lake) -> list[str]:
    """The files that are in the lake, by what this machine has of it."""
    names = (path.relative_to(lake.root).as_posix() for path in lake.root.rglob("[!.]*.parquet"))
    return sorted(name for name in names if not name.startswith("."))


def add_answers(cache: ResponseCache, names: str) -> None:
    """Store an answer for each letter, as one file."""
    cache.add([response_row(name, ModelResponse(text=(name,), finish_reason=("stop",)), "v1") for name in names], "run")
