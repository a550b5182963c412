"""Files of an older version, which lack columns that came later, stay readable and get what all of theirs were."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from eval_dagster.lake.catalog import publish, read_rows
from eval_dagster.lake.files import FileInfo, Lake, write_parquet


def _write_old(lake: Lake, table: str, row: dict[str, Any]) -> Path:
    time = lake.next_time(table, "e", str(row["model"]))
    info = FileInfo(fingerprint="old", version="old", run_id="run", materialized_at=time)
    if table == "metrics":
        row |= {"materialized_at": datetime.fromisoformat(time)}
    path = lake.folder(table, "e", str(row["model"])) / "20250101T000000000000Z-run-00000000.parquet"
    write_parquet(path, pa.Table.from_pylist([row]), info)
    return path


def test_columns_that_no_file_has_are_null_and_every_row_was_a_mean_of_samples(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for model, value in (("a", 1.0), ("b", 0.0)):
        key = {"eval": "e", "model": model, "subject": None, "metric": "accuracy", "value": value}
        scores = _write_old(lake, "scores", {**key, "subject": "s", "sample_id": "1", "source_id": "1", "error": None})
        measured = {"n": 1, "n_errors": 0, "stderr": None, "higher_is_better": True, "is_headline": True, "metric_version": "v"}
        _write_old(lake, "metrics", {**key, **measured, "scores_file": str(scores.relative_to(lake.root))})
    assert publish(lake) == []
    assert read_rows(lake, "select distinct aggregation, n_clusters from metrics") == [{"aggregation": "micro", "n_clusters": None}]
    assert read_rows(lake, "select distinct cluster from scores") == [{"cluster": None}]
    assert read_rows(lake, "select model, rank from leaderboard") == [{"model": "a", "rank": 1}, {"model": "b", "rank": 2}]
    assert read_rows(lake, "select model from scores_history order by model") == [{"model": "a"}, {"model": "b"}]
    assert read_rows(lake, "select distinct changed, is_change_point from score_history") == [{"changed": [], "is_change_point": False}]
    for relation in ("regressions", "regressions_history", "sample_changes", "change_points", "attempts"):
        assert read_rows(lake, f"select * from {relation}") == []
    [row] = read_rows(lake, "select difference, a_better, stderr from paired_difference('a', 'b')")
    assert row == {"difference": 1.0, "a_better": 1, "stderr": None}
