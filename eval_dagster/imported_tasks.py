"""The task of an eval whose results are imported: its metrics are the ones of the newest results in the lake."""

from typing import Any

from eval_dagster.lake.files import Lake
from eval_dagster.lake.format.parquet_files import read_few_rows
from eval_dagster.lake.tables.columns import MetricRow
from eval_dagster.tasks.base import BaseTask
from eval_dagster.tasks.recorded import RecordedMetric, recorded_task

_UNKNOWN = "score"
"""The name of the metric of an eval without a result."""


def imported_task(lake: Lake, eval_name: str) -> type[BaseTask[Any]]:
    """The task of an eval. Its headline is the metric that the leaderboard shows. Raises `LakeError` if a newest result is damaged."""
    rows: list[MetricRow] = [
        row for file in lake.newest_files("metrics", eval_name) for row in read_few_rows(file) if row["subject"] is None
    ]
    found: dict[str, RecordedMetric] = {}
    for row in sorted(rows, key=lambda row: not row["is_headline"]):
        name, full = row["metric"].partition("/")[0], row["metric"]
        is_share = (row["bound_low"], row["bound_high"]) == (0.0, 1.0)
        found.setdefault(name, RecordedMetric(name=name, is_share=is_share, version="", headline=None if name == full else full))
    return recorded_task(list(found.values()) or [RecordedMetric(name=_UNKNOWN, is_share=False, version="")])
