"""Rows as tables that fit Dagster's pages: few columns, short ones first, and shortened texts."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import dagster as dg
from dagster import MetadataValue, TableRecord

from eval_dagster.lake.tables.columns import MetricFigures, MetricRow
from eval_dagster.stages.partition import StageResult
from eval_dagster.texts.figures import interval, number
from eval_dagster.texts.visible_text import json_text, markdown_text, visible

_CELL = 100
"""Most characters of a text in a cell, so that six columns fit beside Dagster's navigation. SQL shows whole texts."""
_EXPLANATIONS = frozenset({"message", "reason"})
"""Columns with reasons, which end with what to do."""
_EXPLANATION = 4000
"""Most characters of a reason."""
_ENDS = frozenset({"prompt", "question"})
"""Columns cut at their start, because the question is at the end of a prompt."""
_MOST_ROWS = 200
"""Most rows of a Markdown table: each event keeps one in Dagster's database."""
_LEFT_OUT = frozenset({"sample_id", "prompt_tokens"})
"""Columns of samples that previews lack: beside the list of partitions, a window 1,400 pixels wide has about 45 characters for a row."""


class LeaderboardRow(MetricFigures):
    """The columns of the relation `leaderboard` that are shown."""

    eval: str
    rank: int | None
    model: str
    metric: str
    differs: str | None


def preview_metadata(result: StageResult) -> dict[str, dg.TableMetadataValue]:
    """The preview of a stage's rows; empty if there is none."""
    if result.stage == "task_metrics":
        rows = _metric_rows(metrics_of(result))
    else:
        same = _same_columns(result.preview, ("metric", "subject"))
        rows = [{name: value for name, value in row.items() if name not in _LEFT_OUT | same} for row in result.preview]
    return {"preview": table_metadata(rows)} if rows else {}


def table_metadata(rows: Sequence[Mapping[str, object]]) -> dg.TableMetadataValue:
    """Rows, at least one, as a table without its empty columns. Lists are shown as JSON, since Dagster accepts only scalars."""
    names = [name for name in rows[0] if any(row[name] not in (None, "", []) for row in rows)]
    records = [TableRecord({name: _cell(name, row[name]) for name in names}) for row in rows]
    columns = [dg.TableColumn(name, type=_column_type([record.data[name] for record in records])) for name in names]
    return MetadataValue.table(records, schema=dg.TableSchema(columns=columns))


def markdown_table(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows as a Markdown table, numbers to the right. All have the same columns."""
    names = list(rows[0])
    is_number = {name: any(isinstance(row[name], int | float) for row in rows) for name in names}
    lines = [_line([_escaped(name) for name in names]), _line(["---:" if is_number[name] else "---" for name in names])]
    lines += [_line([_escaped(row[name]) for name in names]) for row in rows[:_MOST_ROWS]]
    left = len(rows) - _MOST_ROWS
    return "\n".join([*lines, *([f"\nand {left} more rows"] if left > 0 else [])])


def leaderboard_rows(rows: Sequence[LeaderboardRow]) -> list[dict[str, object]]:
    """Rows of the relation `leaderboard` for display. The column `differs` is shown if a row has no rank."""
    has_unranked = any(row["differs"] for row in rows)
    return [
        {"eval": row["eval"], "rank": row["rank"], "model": row["model"], **_figures(row), "metric": row["metric"]}
        | ({"differs": row["differs"]} if has_unranked else {})
        for row in rows
    ]


def metrics_of(result: StageResult) -> Sequence[MetricRow]:
    """The rows of the relation `metrics` in the preview of a result of `task_metrics`."""
    return cast(Sequence[MetricRow], result.preview)


def _metric_rows(rows: Sequence[MetricRow]) -> list[dict[str, object]]:
    """Rows of the relation `metrics`, with the metric only if there are several, and the errors only if there are any."""
    left_out = _same_columns(rows, ("metric",)) | ({"errors"} if not any(row["n_errors"] for row in rows) else set())
    shown = []
    for row in rows:
        overall = "(mean of subjects)" if row["aggregation"] == "macro" else "(all)"
        figures = _figures(row)
        columns = {
            "score": figures["score"],
            "subject": overall if row["subject"] is None else row["subject"],
            "metric": row["metric"],
            **{name: figures[name] for name in ("samples", "errors", "95 % interval")},
        }
        shown.append({name: value for name, value in columns.items() if name not in left_out})
    return shown


def _same_columns(rows: Sequence[Mapping[str, object]], names: Sequence[str]) -> set[str]:
    """Those of the columns that have one value in all rows, or that no row has."""
    return {name for name in names if len({row.get(name) for row in rows}) <= 1}


def _figures(row: MetricFigures) -> dict[str, object]:
    score = number(row["value"]) + ("" if row["stderr"] is None else f" ± {row['stderr']:.3f}")
    return {"score": score, "95 % interval": interval(row["ci_low"], row["ci_high"]), "samples": row["n"], "errors": row["n_errors"]}


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else markdown_text(str(value))


def _cell(name: str, value: Any) -> str | int | float | bool | None:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if value is None or isinstance(value, bool | int):
        return value
    text = visible(value) if isinstance(value, str) else json_text(value)
    longest = _EXPLANATION if name in _EXPLANATIONS else _CELL
    if len(text) <= longest:
        return text
    return f"…{text[-longest:]}" if name in _ENDS else f"{text[:longest]}… ({len(text)} characters)"


def _column_type(values: Sequence[Any]) -> str:
    present = {type(value) for value in values if value is not None}
    return {frozenset({bool}): "bool", frozenset({int}): "int", frozenset({float}): "float"}.get(frozenset(present), "string")
