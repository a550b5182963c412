"""A result for MLflow: its figures, its inputs, and tables of its metrics, subjects and samples."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from eval_dagster.lake.files import LakeFile, read_head, read_rows
from eval_dagster.stages.outputs import require_outputs
from eval_dagster.stages.partition import Partition
from eval_dagster.stages.scores import metric_versions
from eval_dagster.tracking.tracked_result import TrackedResult

if TYPE_CHECKING:
    import pandas as pd

_SCORE_COLUMNS = {"stderr": "stderr", "n": "n", "ci_low": "score.ci_low", "ci_high": "score.ci_high", "n_errors": "score.n_errors"}
"""Columns of `metrics` -> names of the headline metric's figures in MLflow."""
_COSTS = ("cost", "cost_unknown", "worker_s", "gpu_s", "worker_s_unknown")
_METRIC_COLUMNS = ("metric", "subject", "aggregation", "is_headline", "value", "stderr", "ci_low", "ci_high", "n", "n_errors")
_MOST_SAMPLES = 1000
_MOST_CHARACTERS = 20_000
"""Most characters of a text in the table of samples. The lake has the whole text."""


def tracked_result(partition: Partition, scores: LakeFile, rows: Sequence[Mapping[str, Any]], key: str) -> TrackedResult:
    """The result of an eval and a model for MLflow.

    Args:
        partition: The eval and the model.
        scores: The scores of the samples.
        rows: The metrics, as `metric_rows` returns them.
        key: Identifies the result.

    Raises:
        LakeError: Prompts, outputs or samples are missing or damaged.
    """
    project, eval_name, model = partition.project, partition.eval_name, partition.model
    task, inputs = partition.task, scores.info.inputs
    snapshot = partition.snapshot()
    params = {
        **{f"eval.{name}": value for name, value in project.eval(eval_name).model_dump(mode="json").items()},
        "eval.num_fewshot": project.num_fewshot(eval_name),
        **{f"model.{name}": value for name, value in project.model(model).model_dump(mode="json").items()},
        **{f"version.{name}": version for name, version in inputs.items() if name not in ("dataset", "metrics")},
        **{f"version.metric.{name}": version for name, version in metric_versions(task).items()},
    }
    source = project.reader.source(task)
    return TrackedResult(
        result_key=key,
        run_name=f"{eval_name} · {model}",
        params=params,
        metrics={**_figures(rows), **_costs(partition)},
        tags={
            "eval": eval_name,
            "model": model,
            "dagster_run_id": partition.run_id,
            "scores_file": str(scores.path.relative_to(project.lake.root)),
        },
        dataset_name=eval_name,
        dataset_source=source.path,
        dataset_revision=source.revision,
        dataset_digest=inputs["dataset_snapshot"],
        dataset_rows=int(snapshot.info.counts["samples"]),
        dataset_example=json.loads(read_head(snapshot.path, 1, ["row"])[0]["row"]),
        tables={"metrics": _metric_table(rows), **_subject_tables(rows), "samples": _sample_table(partition, scores)},
    )


def _figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """The columns of a result in MLflow's table of runs.

    `score`, `stderr` and `n` are those of the headline metric in each run. The overall value of each metric has the metric's name. Where
    another column has this name, e.g. `n` or `cost`, it has `metric.` before it.
    """
    figures: dict[str, float | None] = {}
    for row in rows:
        if row["is_headline"]:
            figures |= {"score": row["value"], **{name: row[part] for part, name in _SCORE_COLUMNS.items()}}
    taken = {"score", *_SCORE_COLUMNS.values(), *_COSTS}
    for row in rows:
        if row["subject"] is None:
            name = f"{row['metric']}_macro" if row["aggregation"] == "macro" else row["metric"]
            while not taken.isdisjoint((name, f"{name}.stderr")):
                name = f"metric.{name}"
            figures |= {name: row["value"], f"{name}.stderr": row["stderr"]}
            taken |= {name, f"{name}.stderr"}
    return figures


def _costs(partition: Partition) -> dict[str, float]:
    """What the answers cost: dollars of a model with a price, seconds of workers and GPUs where they are known."""
    counts = require_outputs(partition)[1].info.counts
    return {name: counts[name] for name in _COSTS if name in counts}


def _metric_table(rows: Sequence[Mapping[str, Any]]) -> "pd.DataFrame":
    """Every metric, overall and by subject. As metrics of the MLflow run they would be dozens of columns."""
    import pandas as pd  # as in `_sample_table`

    return pd.DataFrame([{name: row[name] for name in _METRIC_COLUMNS} for row in rows])


def _subject_tables(rows: Sequence[Mapping[str, Any]]) -> "dict[str, pd.DataFrame]":
    """The table `subjects`: the headline metric by subject, rounded, in columns that fit MLflow's page; nothing for one subject."""
    import pandas as pd  # as in `_sample_table`

    headlines = {row["metric"] for row in rows if row["is_headline"]}
    subjects = [row for row in rows if row["metric"] in headlines and row["subject"] is not None]
    has_errors = any(row["n_errors"] for row in subjects)
    table = [
        {
            "subject": row["subject"],
            "score": _rounded(row["value"]),
            "stderr": _rounded(row["stderr"]),
            "95 % interval": "–" if row["ci_low"] is None else f"{row['ci_low']:.3f} to {row['ci_high']:.3f}",
            "n": row["n"],
            **({"errors": row["n_errors"]} if has_errors else {}),
        }
        for row in subjects
    ]
    return {"subjects": pd.DataFrame(table)} if table else {}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _sample_table(partition: Partition, scores: LakeFile) -> "pd.DataFrame":
    """The first samples with prompt, answer, gold and scores side by side."""
    import pandas as pd  # imported lazily: slow, and only needed for new results

    prompts, outputs = require_outputs(partition)
    table: dict[str, dict[str, Any]] = {}
    for row in read_rows(prompts.path, ["sample_id", "sample_name", "subject", "prompt", "choices", "gold"])[:_MOST_SAMPLES]:
        table[row["sample_id"]] = {name: value for name, value in row.items() if name != "sample_name" or value is not None}
    for row in read_rows(outputs.path, ["sample_id", "text", "choice_logprobs", "error"]):
        if row["sample_id"] in table:
            table[row["sample_id"]] |= row
    for row in read_rows(scores.path, ["sample_id", "metric", "value"]):
        if row["sample_id"] in table:
            table[row["sample_id"]][row["metric"]] = row["value"]
    return pd.DataFrame([{name: _shortened(value) for name, value in row.items()} for row in table.values()])


def _shortened(value: Any) -> Any:
    if isinstance(value, list):
        return [_shortened(item) for item in value]
    if not isinstance(value, str) or len(value) <= _MOST_CHARACTERS:
        return value
    return f"{value[:_MOST_CHARACTERS]}… [{len(value):,} characters]"
