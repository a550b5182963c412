"""Stage `task_metrics`: each metric of an eval with its error bar, overall and by subject, in the lake and in MLflow."""

import json
import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from statistics import fmean, stdev, variance
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from eval_dagster.errors import LakeError, TrackingError
from eval_dagster.lake.files import LakeFile
from eval_dagster.lake.format.parquet_files import FileInfo, iter_batches, read_head, read_rows, rows_in
from eval_dagster.lake.lineage import Inputs, asked_versions, changed_inputs
from eval_dagster.lake.tables.columns import MetricRow
from eval_dagster.metrics.base import declared_headline
from eval_dagster.records import PROMPT_CHECKS, Check, Status
from eval_dagster.stages.aggregation import metric_rows, variants_columns
from eval_dagster.stages.answer_checks import ANSWER_CHECKS_VERSION, Earlier, answer_findings
from eval_dagster.stages.answer_columns import read_answers
from eval_dagster.stages.answer_counts import mixed_words, stored_mixed_counts
from eval_dagster.stages.answer_figures import ServerState, server_states, with_answer_figures
from eval_dagster.stages.findings import FINDINGS_NOTE, findings_column, read_findings
from eval_dagster.stages.history import Estimated, estimated
from eval_dagster.stages.looks import ESTIMATED, STOP_REASON, STOPPED_BY, not_asked
from eval_dagster.stages.outputs import require_outputs
from eval_dagster.stages.partition import Partition, Plan, StageResult
from eval_dagster.stages.score_columns import NONE, Scores, column_in, first_order, flags, numbers, read_scores
from eval_dagster.stages.scores import headline, metric_versions
from eval_dagster.statistics.borrowed import BorrowedEstimate, at_large, estimate
from eval_dagster.tasks.variants import DEFAULT
from eval_dagster.texts.figures import interval
from eval_dagster.tracking.tracked_result import TrackedResult
from eval_dagster.versions.hashes import code_version, stable_hash

if TYPE_CHECKING:
    import pandas as pd
_SCORE_COLUMNS: Mapping[Literal["stderr", "n", "ci_low", "ci_high", "n_errors"], str] = {
    "stderr": "stderr",
    "n": "n",
    "ci_low": "score.ci_low",
    "ci_high": "score.ci_high",
    "n_errors": "score.n_errors",
}
"""Columns of `metrics` -> names of the headline metric's figures in MLflow."""
_COSTS = ("cost", "cost_unknown", "worker_s", "gpu_s", "worker_s_unknown")
_METRIC_COLUMNS = ("metric", "subject", "aggregation", "is_headline", "value", "stderr", "ci_low", "ci_high", "n", "n_errors")
_MOST_SAMPLES = 1000
_MOST_CHARACTERS = 20_000
"""Maximum characters of a text in the table of samples. The lake has the whole text."""
_PREVIEW = (
    *("subject", "metric", "aggregation", "is_headline", "value", "stderr", "ci_low", "ci_high", "n", "n_errors", "n_ties"),
    *("estimate_note", "estimate_factor"),
)
_STAGE = "task_metrics"
_NO_VERSIONS = ("dataset", "metrics", STOPPED_BY, STOP_REASON, ESTIMATED)
"""Inputs of a file that are no versions."""


def set_spread(sets: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The spread of the means of several sets, and the spread expected if the choice of examples has no effect.

    Each sample has one set, so the means also differ by their samples. For independent samples with the pooled variance s2 (within the
    sets), the expected variance of the means is s2 times the mean of 1 / n, for n the size of a set.

    Args:
        sets: The values of each set's samples, in the metric's unit; at least two sets, none of them empty.

    Returns:
        The standard deviation of the means, and the square root of the expected variance.
    """
    within = sum(variance(values) * (len(values) - 1) for values in sets if len(values) > 1)
    freedom = sum(len(values) - 1 for values in sets)
    pooled = within / freedom if freedom else 0.0
    return stdev(map(fmean, sets)), math.sqrt(pooled * fmean(1 / len(values) for values in sets))


def _part_tags(scores: LakeFile, rows: Sequence[MetricRow]) -> dict[str, str]:
    """Tags of a result whose samples were not all asked."""
    if not (count := sum(not_asked(scores).values())):
        return {}
    note = next((note for row in rows if (note := row.get("estimate_note"))), None)
    if note is None:
        return {"stopped_early": f"{int(count)} samples not asked: {scores.info.inputs[STOP_REASON]}"}
    factor = next((row["estimate_factor"] for row in rows if row.get("estimate_factor") is not None), None)
    return {"estimate": note, **({} if factor is None else {"estimate_factor": f"{factor:.2f}"})}


def tracked_result(partition: Partition, scores: LakeFile, rows: Sequence[MetricRow], key: str) -> TrackedResult:
    """The result of an eval and a model for MLflow.

    Args:
        partition: The eval and the model.
        scores: The scores of the samples.
        rows: The metrics, as returned by `metric_rows`.
        key: Identifies the result.

    Raises:
        LakeError: Prompts, outputs or samples are missing or damaged.
    """
    import pandas as pd  # imported lazily: slow, and only needed for new results

    project, eval_name, model = partition.project, partition.eval_name, partition.model
    task, inputs = partition.task, scores.info.inputs
    prompts, outputs = require_outputs(partition)
    costs = outputs.info.counts
    snapshot = partition.snapshot()
    params = {
        **{f"eval.{name}": value for name, value in project.eval(eval_name).set_fields().items()},
        "eval.num_fewshot": project.num_fewshot(eval_name),
        **{f"model.{name}": value for name, value in project.model(model).model_dump(mode="json").items()},
        **{f"version.{name}": version for name, version in inputs.items() if name not in _NO_VERSIONS},
        **{f"version.metric.{name}": version for name, version in metric_versions(task).items()},
    }
    source = project.reader.source(task)
    return TrackedResult(
        result_key=key,
        run_name=f"{eval_name} · {model}",
        params=params,
        metrics={**run_figures(rows), **{name: costs[name] for name in _COSTS if name in costs}},
        tags={
            "eval": eval_name,
            "model": model,
            "dagster_run_id": partition.run_id,
            "scores_file": str(scores.path.relative_to(project.lake.root)),
            **_part_tags(scores, rows),
        },
        dataset_name=eval_name,
        dataset_source=source.path,
        dataset_revision=source.revision,
        dataset_digest=inputs["dataset_snapshot"],
        dataset_rows=int(snapshot.info.counts["samples"]),
        dataset_example=json.loads(read_head(snapshot.path, 1, ["row"])[0]["row"]),
        tables={
            # As metrics of the MLflow run they would be dozens of columns.
            "metrics": pd.DataFrame(rows, columns=list(_METRIC_COLUMNS)),
            **subject_tables(rows),
            "samples": _sample_table(prompts, outputs, scores),
        },
    )


def run_figures(rows: Sequence[MetricRow]) -> dict[str, float | None]:
    """The columns of a result in MLflow's table of runs.

    `score`, `stderr` and `n` belong to the headline metric in each run. The overall value of each metric has the metric's name. If another
    column has this name, e.g. `n` or `cost`, the metric's name gets the prefix `metric.`.
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


def subject_tables(rows: Sequence[MetricRow]) -> "dict[str, pd.DataFrame]":
    """The table `subjects`: the headline metric by subject, rounded, in columns that fit MLflow's page. Empty for one subject."""
    import pandas as pd  # as in `tracked_result`

    headlines = {row["metric"] for row in rows if row["is_headline"]}
    subjects = [row for row in rows if row["metric"] in headlines and row["subject"] is not None]
    has_errors = any(row["n_errors"] for row in subjects)
    table = [
        {
            "subject": row["subject"],
            "score": _rounded(row["value"]),
            "stderr": _rounded(row["stderr"]),
            "95 % interval": interval(row["ci_low"], row["ci_high"]),
            "n": row["n"],
            **({"errors": row["n_errors"]} if has_errors else {}),
        }
        for row in subjects
    ]
    return {"subjects": pd.DataFrame(table)} if table else {}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _sample_table(prompts: LakeFile, outputs: LakeFile, scores: LakeFile) -> "pd.DataFrame":
    """The first samples with prompt, answer, gold and scores side by side."""
    import pandas as pd  # as in `tracked_result`

    table: dict[str, dict[str, Any]] = {}
    for row in read_head(prompts.path, _MOST_SAMPLES, ["sample_id", "sample_name", "subject", "prompt", "choices", "gold"]):
        table[row["sample_id"]] = {name: value for name, value in row.items() if name != "sample_name" or value is not None}
    for row in _rows_about(outputs.path, ["sample_id", "text", "choice_logprobs", "error"], list(table)):
        table[row["sample_id"]] |= row
    for row in _rows_about(scores.path, ["sample_id", "metric", "value"], list(table)):
        table[row["sample_id"]][row["metric"]] = row["value"]
    return pd.DataFrame([{name: _shortened(value) for name, value in row.items()} for row in table.values()])


def _rows_about(path: Path, columns: Sequence[str], samples: Sequence[str]) -> Iterator[Any]:
    """The rows about some samples. Few of the others are held at once."""
    shown = pa.array(samples, pa.string())
    for batch in iter_batches(path, columns):
        yield from rows_in(batch.filter(pc.is_in(batch["sample_id"], value_set=shown)))


def _shortened(value: Any) -> Any:
    if isinstance(value, list):
        return [_shortened(item) for item in value]
    if not isinstance(value, str) or len(value) <= _MOST_CHARACTERS:
        return value
    return f"{value[:_MOST_CHARACTERS]}… [{len(value):,} characters]"


def materialize_metrics(partition: Partition) -> Generator[None, None, StageResult]:
    """Make the metrics of an eval current, in the lake and, except for a trial, in MLflow. Yields while MLflow writes.

    If MLflow is out of reach, the result has a warning. The lake keeps the metrics, and the next materialization tries again.

    Raises:
        LakeError: Scores are missing, damaged, or belong to other responses.
    """
    project = partition.project
    prompts, outputs = require_outputs(partition)
    scores = partition.require("sample_scores")
    if scores.info.inputs["model_outputs"] != outputs.info.version:
        raise LakeError(f"the scores of {partition} belong to older outputs; materialize sample_scores for this partition")
    warnings: list[str] = []
    plan = plan_metrics(partition, scores, warnings)
    if plan.fresh is not None:
        return _result(partition, plan.fresh, cached=True, warnings=warnings)
    partition.making(_STAGE)
    asked = asked_versions(prompts.path)
    rows, spread = _computed(partition, prompts, outputs, scores, _earlier(partition, outputs.info.version, asked[0]))
    key = stable_hash([partition.eval_name, partition.model, scores.info.inputs, scores.info.version, _content_version(rows)])
    mlflow_run = None
    try:
        if not project.lake.is_trial:
            logged = project.tracker.begin_log(tracked_result(partition, scores, rows, key))
            yield
            mlflow_run = logged()
    except TrackingError as error:
        warnings.append(f"not in MLflow: {error}")
    current = _write(partition, rows, scores, plan, mlflow_run, spread, asked)
    return _result(partition, current, cached=False, warnings=warnings)


def _computed(
    partition: Partition, prompts: LakeFile, outputs: LakeFile, scores: LakeFile, earlier: Earlier | None
) -> tuple[list[MetricRow], dict[str, float]]:
    """The rows of `metrics`, and the spread over sets of examples. The columns of scores and answers are gone when it returns."""
    task = partition.task
    scored = read_scores(scores.path)
    rows = metric_rows(task, scored)
    how = _estimated(partition, prompts, scores)
    if how is not None and how.is_chosen:
        rows = [row for row in rows if row["is_headline"] and row["subject"] is None]
    if how is not None and how.estimate is not None:
        rows = [_with_figures(row, how.estimate, int(prompts.info.counts["prompts"])) for row in rows]
    answers = read_answers(task, prompts.path, outputs.path, scores.path, scored, is_partial=bool(not_asked(outputs)))
    variants = variants_columns(task, scored, rows)
    rows = with_answer_figures(task, rows, scored, answers)
    of_answers = answer_findings(task, rows, scored, answers, earlier, _states(partition, scores))
    if how is not None:
        rows = [_marked(row, how) for row in rows]
    findings = findings_column(prompts, rows, scored, task.METRICS, of_answers)
    rows = [
        {**row, "findings": findings if row["is_headline"] else None, "variants": each} for row, each in zip(rows, variants, strict=True)
    ]
    return rows, _spread(prompts, scored, rows)


def _estimated(partition: Partition, prompts: LakeFile, scores: LakeFile) -> Estimated | None:
    """The estimate by a part of the samples. None if the answers are no such part."""
    if ESTIMATED not in scores.info.inputs or not not_asked(scores):
        return None
    metric = headline(partition.task).NAME
    rows = read_rows(scores.path, ["sample_id", "cluster", "value"], pc.field("metric") == metric)
    values = {row["sample_id"]: row["value"] for row in rows}
    return estimated(partition, prompts, scores.info.inputs["model"], values, [row["cluster"] for row in rows])


def _with_figures(row: MetricRow, found: BorrowedEstimate, n: int) -> MetricRow:
    stderr, low, high = at_large(found, n)
    return {**row, "value": found.value, "stderr": stderr, "ci_low": low, "ci_high": high}


def _marked(row: MetricRow, how: Estimated) -> MetricRow:
    """A row with how it was estimated. Means of the asked samples alone are left out, since these were chosen."""
    found = how.estimate
    if found is None:
        return {**row, "estimate": "plain", "estimate_note": how.note}
    of_part: MetricRow = {**row, "n_completed": None, "value_completed": None, "value_lowest": None, "value_highest": None}
    return {**of_part, "estimate": "history", "estimate_factor": found.factor, "estimate_note": how.note}


def plan_metrics(partition: Partition, scores: LakeFile, warnings: list[str]) -> Plan:
    """Whether the current metrics belong to a file of scores, and are in MLflow. Adds problems with MLflow to `warnings`."""
    project, current = partition.project, partition.current(_STAGE)
    code = code_version(read_scores, metric_rows, variants_columns, _spread, with_answer_figures, read_answers)
    prompts = partition.current("rendered_prompts")
    changes = [[each.name, each.since.isoformat()] for each in _states(partition, scores) if each.since is not None]
    note = prompts and prompts.info.notes.get(FINDINGS_NOTE)
    findings = stable_hash([note, ANSWER_CHECKS_VERSION, *([changes] if changes else [])])
    if ESTIMATED in scores.info.inputs and not_asked(scores):
        code = stable_hash([code, code_version(estimated, estimate, at_large), scores.info.counts["samples"]])
    fingerprint = stable_hash([scores.info.version, scores.info.fingerprint, code, findings])
    again = []
    if current is not None and current.info.fingerprint == fingerprint:
        run = current.info.inputs.get("mlflow_run")
        # If a file was deleted, equal scores may be in a new one.
        named = [row["scores_file"] for row in read_head(current.path, 1, ["scores_file"])]
        if named != [str(scores.path.relative_to(project.lake.root))]:
            again.append("scores")
        elif not project.lake.is_trial:  # a trial is never in MLflow
            try:
                if run is None or not project.tracker.exists(run):
                    again.append("MLflow")
            except TrackingError as error:
                warnings.append(str(error))
    made_of = {"scores": stable_hash([scores.info.version, scores.info.fingerprint]), "code": code, "findings": findings}
    return Plan(fingerprint=fingerprint, made_of=made_of, current=current, again=again)


def _result(partition: Partition, current: LakeFile, *, cached: bool, warnings: Sequence[str]) -> StageResult:
    links: dict[str, str] = {}
    if run := current.info.inputs.get("mlflow_run"):
        with suppress(TrackingError):
            link = partition.project.tracker.run_link(run)
            links |= {"mlflow_run": link} if link else {}
    shown = next((row for row in read_rows(current.path, ["is_headline", "findings"]) if row["is_headline"]), None)
    if shown is not None and shown["findings"] is not None:
        told = {*PROMPT_CHECKS, Check.ERRORS}  # by the stages before
        of_answers = [each for each in read_findings(shown["findings"]) if each.check not in told]
        warnings = [*warnings, *(f"{partition}: {each}" for each in of_answers if each.status is Status.FOUND)]
    if shown is None:
        metric = headline(partition.task)
        values = ", ".join(
            dict.fromkeys(row["metric"] for row in read_rows(current.path, ["metric"]) if row["metric"].split("/")[0] == metric.NAME)
        )
        wrong = f"declares {name!r}" if (name := declared_headline(metric)) else "does not say which is the headline"
        lacks = f"the metric {metric.__name__} gives the values {values}, and {wrong}; set HEADLINE in the class to the name of one"
        warnings = [*warnings, f"{partition}: the leaderboard does not show it, since {lacks}"]
    return partition.result(
        _STAGE, current, cached=cached, read_preview=partial(read_head, current.path, 20, _PREVIEW), links=links, warnings=tuple(warnings)
    )


def _write(
    partition: Partition,
    rows: Sequence[MetricRow],
    scores: LakeFile,
    plan: Plan,
    mlflow_run: str | None,
    spread: Mapping[str, float],
    asked: tuple[str, str],
) -> LakeFile:
    time = partition.next_time(_STAGE)
    inputs = scores.info.inputs
    samples_version, questions_version = asked
    previous, changed = _changed_inputs(partition, scores)
    shared = {
        "eval": partition.eval_name,
        "model": partition.model,
        "dagster_run_id": partition.run_id,
        "mlflow_run_id": mlflow_run,
        "materialized_at": datetime.fromisoformat(time),
        "dataset_version": inputs["dataset_snapshot"],
        "prompt_version": inputs["rendered_prompts"],
        "model_version": inputs["model"],
        "model_content_version": inputs["model_content"],
        "model_declared_version": inputs.get("model_content_declared"),
        "scores_file": str(scores.path.relative_to(partition.project.lake.root)),
        "changed_since": previous,
        "changed_inputs": changed,
        "samples_version": samples_version,
        "questions_version": questions_version,
        "mixed_answers": mixed_words(scores.info.counts),
        "n_not_asked": next(map(int, not_asked(scores).values()), None),
    }
    info = FileInfo(
        fingerprint=plan.fingerprint,
        version=_content_version(rows),
        run_id=partition.run_id,
        materialized_at=time,
        inputs={**inputs, "sample_scores": scores.info.version, **({"mlflow_run": mlflow_run} if mlflow_run else {})},
        counts={
            "metrics": len(rows),
            **{name: scores.info.counts[name] for name in ("samples", "errors")},
            **stored_mixed_counts(scores.info.counts),
            **not_asked(scores),
            **spread,
        },
        made_of=plan.made_of,
    )
    return partition.write(_STAGE, [{**row, **shared} for row in rows], info)


def _changed_inputs(partition: Partition, scores: LakeFile) -> tuple[datetime | None, list[str] | None]:
    """The time of the last result, and its differences from this one: rows, samples or prompts.

    It is stored with the result, because the inputs of both are in the lake now. Null without an earlier result, or if its inputs cannot be
    read.
    """
    lake = partition.project.lake
    try:
        last = partition.current(_STAGE)
        if last is None:
            return None, None
        of_last = lake.file(read_head(last.path, 1, ["scores_file"])[0]["scores_file"])
        now, before = (
            Inputs(lake=lake, eval_name=partition.eval_name, model=partition.model, versions=file.info.inputs, scores=path)
            for file, path in ((scores, scores.path), (last, of_last))
        )
        return datetime.fromisoformat(last.info.materialized_at), list(changed_inputs(now, before))
    except (LakeError, KeyError):
        return None, None


def _earlier(partition: Partition, outputs_version: str, samples_version: str) -> Earlier | None:
    """The newest result with other answers, if it has the same samples. None without one."""
    lake = partition.project.lake
    for path in reversed(lake.files(lake.folder("metrics", partition.eval_name, partition.model))):
        with suppress(LakeError):  # a damaged file is no result to compare with
            info = lake.info(path)
            if info.inputs["model_outputs"] == outputs_version:
                continue
            row = next((row for row in read_rows(path) if row["is_headline"]), None)
            if row is None or row["samples_version"] != samples_version:
                return None
            return Earlier(row=row, when=f"the result of {info.materialized_at[:16].replace('T', ' ')} UTC")
    return None


def _states(partition: Partition, scores: LakeFile) -> list[ServerState]:
    """The states of the server that gave the answers. Empty for a model on this machine."""
    return server_states(partition.project.lake, partition.model) if "model_declared" in scores.info.inputs else []


def _spread(prompts: LakeFile, scores: Scores, rows: Sequence[MetricRow]) -> dict[str, float]:
    """The spread of the headline over the sets of few-shot examples. Empty for one set, or if the headline is not a mean of samples."""
    headline = next((row["metric"] for row in rows if row["is_headline"] and row["aggregation"] != "corpus"), None)
    samples, sets = list[pa.Array](), [np.empty(0, dtype=np.int64)]
    for batch in iter_batches(prompts.path, ["sample_id", "fewshot_set", "variant"]):
        numbered = numbers(column_in(batch, "fewshot_set", pa.int64()), NONE)
        # Variants of one question would count as independent samples.
        is_own = pc.or_kleene((variant := column_in(batch, "variant", pa.string())).is_null(), pc.equal(variant, DEFAULT))
        samples.append(batch["sample_id"])
        sets.append(np.where(flags(is_own), numbered, NONE))
    set_of = np.concatenate(sets)
    if headline is None or len(np.unique(set_of[set_of != NONE])) < 2:
        return {}
    place = numbers(pc.index_in(scores.samples.texts, value_set=pa.chunked_array(samples, pa.string())), NONE)
    of_headline = scores.metrics.is_text(headline) & ~np.isnan(scores.values)
    found = np.append(set_of, NONE)[place][scores.samples.codes[of_headline]]
    values = scores.values[of_headline][found != NONE]
    first, number = first_order(found[found != NONE])
    if len(first) < 2:
        return {}
    ends = np.cumsum(np.bincount(number))
    of_sets = np.split(values[np.argsort(number, kind="stable")], ends[:-1])
    spread, by_chance = set_spread([each.tolist() for each in of_sets])
    return {"fewshot_sets": len(first), "fewshot_spread": spread, "fewshot_spread_by_chance": by_chance}


def _content_version(rows: Sequence[Mapping[str, object]]) -> str:
    content = ("metric", "aggregation", "subject", "is_headline", "value", "stderr", "ci_low", "ci_high", "n", "n_errors")
    return stable_hash([[row[name] for name in content] for row in rows])
