"""Stage `sample_scores`: every metric of every sample."""

import json
import math
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from eval_dagster.errors import DataError, LakeError, MachineError, RequirementError, TaskDefinitionError
from eval_dagster.lake.files import LakeFile, read_rows
from eval_dagster.metrics.base import (
    BaseMetric,
    CorpusMetric,
    RepeatedMetric,
    declared,
    metrics_for,
    named_values,
    require_direction,
    response_kind,
)
from eval_dagster.project import Project
from eval_dagster.records import Completion, Loglikelihood, Message, MetricContext, ResponseType, Role, Sample, Score, TaskSample
from eval_dagster.stages.code_execution import allowed_execution, require_execution
from eval_dagster.stages.outputs import require_outputs
from eval_dagster.stages.partition import Partition
from eval_dagster.stages.results import StageResult
from eval_dagster.stages.sample_errors import error_warning
from eval_dagster.stages.sample_preview import preview_samples
from eval_dagster.stages.snapshot import read_samples
from eval_dagster.tasks.answers import truth_as_given
from eval_dagster.tasks.base import BaseTask
from eval_dagster.tasks.samples import TaskRow
from eval_dagster.versions import code_version, package_versions, stable_hash

_STAGE = "sample_scores"
_CONTENT = ("sample_id", "cluster", "metric", "value", "error")


@dataclass(frozen=True, kw_only=True)
class RepeatedScore(Score):
    """The mean over several texts of a prompt. Apart from `Score`, on which the code of every metric depends."""

    text_values: tuple[float, ...]
    """Of each text: how much they differ tells how much chance there is in the mean."""


def materialize_scores(project: Project, eval_name: str, model: str, run_id: str) -> StageResult:
    """Make the scores of an eval's samples current; calls no model.

    Raises:
        RequirementError: A metric lacks a package, permission to run code, or a sandbox.
        LakeError: Prompts or responses are missing, damaged, or do not belong together.
    """
    partition = Partition(project=project, eval_name=eval_name, model=model, run_id=run_id)
    prompts, outputs = require_outputs(project, eval_name, model)
    task = project.task(eval_name)
    versions = metric_versions(task)
    code = [code_version(task), code_version(_score_rows)]
    fingerprint = stable_hash([prompts.info.version, outputs.info.version, versions, code])
    current = partition.current(_STAGE)
    cached = current is not None and current.info.fingerprint == fingerprint and not current.info.counts.get("retryable_errors")
    if current is None or not cached:
        require_execution(project, eval_name)
        with allowed_execution(project):
            rows = list(_score_rows(project, eval_name, model, prompts, outputs))
        current = partition.write(
            _STAGE,
            rows,
            fingerprint=fingerprint,
            version=stable_hash([[row[name] for name in _CONTENT] for row in rows]),
            inputs={"model_outputs": outputs.info.version, "metrics": stable_hash(versions), **outputs.info.inputs},
            counts={
                "scores": len(rows),
                "samples": len({row["sample_id"] for row in rows}),
                "errors": len({row["sample_id"] for row in rows if row["error"] is not None}),
                "retryable_errors": len({row["sample_id"] for row in rows if row["retryable"]}),
            },
        )
    warning = error_warning(eval_name, model, current)
    return partition.result(
        _STAGE,
        current,
        cached=cached,
        preview=preview_samples(prompts, outputs, current, (task.HEADLINE_METRIC or task.METRICS[0]).NAME),
        warnings=[warning] if warning else [],
    )


def metric_versions(task: type[BaseTask[Any]]) -> dict[str, str]:
    """The version of each metric of a task: its code, the scripts that it starts and the packages that it computes with.

    Of a metric that runs code, also that of Python, whose standard library the code sees.
    """
    return {
        metric.NAME: stable_hash(
            [
                # A class that a function made may have values of the file that called it, which is that of the task.
                code_version(metric, *declared(metric, "COMPANIONS"), *([task] if "<locals>" in metric.__qualname__ else [])),
                package_versions(declared(metric, "PACKAGES")),
                *([platform.python_version()] if metric.EXECUTES_CODE else []),
            ]
        )
        for metric in task.METRICS
    }


def score_response(metrics: Sequence[type[BaseMetric]], views: Sequence[Completion | Loglikelihood], error: str | None) -> list[Score]:
    """Every metric of one sample, over all its views where several texts were generated from one prompt.

    A `RepeatedMetric` sees them all at once. The statistics of a `CorpusMetric` are summed over them, as they are over the samples;
    anything else is averaged. A response with an error has no value under any metric; a metric that raises has none for this sample.
    Neither hides the others. Where the machine failed rather than the text, the score is marked as one to be tried again.

    Raises:
        RequirementError: A metric lacks a package, permission to run code, or a sandbox.
    """
    scores: list[Score] = []
    for metric in metrics:
        if error is not None:
            scores.append(Score(metric=metric.NAME, value=None, error=error))
            continue
        try:
            scores += _values(metric, views)
        except RequirementError:
            raise  # nothing of the sample's: kept as its error, it would stay when what is missing is there
        except Exception as problem:  # the one boundary behind which metrics may fail
            retryable = isinstance(problem, MachineError | OSError)
            scores.append(Score(metric=metric.NAME, value=None, error=f"{type(problem).__name__}: {problem}", retryable=retryable))
    return scores


def _finite(name: str, value: float, texts: Sequence[float] = ()) -> Score:
    if math.isfinite(value):
        return RepeatedScore(metric=name, value=value, text_values=tuple(texts)) if len(texts) > 1 else Score(metric=name, value=value)
    return Score(metric=name, value=None, error=f"the metric gave {value}, which is no number that can be averaged")


def _values(metric: type[BaseMetric], views: Sequence[Completion | Loglikelihood]) -> list[Score]:
    kind = response_kind(metric)
    for view in views:
        if kind is None or not isinstance(view, kind):
            raise TaskDefinitionError(
                f"the metric {metric.__name__} cannot score a {type(view).__name__}; choose one for this response type"
            )
    if issubclass(metric, RepeatedMetric):
        of_all = _named(metric, metric().calculate_all([view for view in views if isinstance(view, Completion)]))
        return [_finite(name, value) for name, value in of_all.items()]
    named = [_named(metric, metric().calculate(view)) for view in views]
    if any(values.keys() != named[0].keys() for values in named):
        raise DataError(f"the metric {metric.NAME} gave other names for one text of a prompt than for another; expected the same for all")
    by_name = {name: [values[name] for values in named] for name in named[0]}
    if issubclass(metric, CorpusMetric):
        return [_finite(name, math.fsum(values)) for name, values in by_name.items()]
    return [_finite(name, fmean(values), values) for name, values in by_name.items()]


def _named(metric: type[BaseMetric], result: object) -> dict[str, float]:
    values = named_values(metric.NAME, result)
    require_direction(metric, result)
    if issubclass(metric, CorpusMetric) and set(values) != set(statistic_names(metric)):
        raise DataError(f"the metric {metric.NAME} gave {sorted(values)}; expected its STATISTICS: {statistic_names(metric)}")
    return values


def statistic_names(metric: type[CorpusMetric]) -> list[str]:
    """What the statistics of a metric are called among the scores, in the order in which it aggregates them."""
    return [f"{metric.NAME}/{statistic}" for statistic in metric.STATISTICS]


def _score_rows(project: Project, eval_name: str, model: str, prompts: LakeFile, outputs: LakeFile) -> Iterator[dict[str, Any]]:
    task_class = project.task(eval_name)
    task = task_class(num_fewshot=project.num_fewshot(eval_name))
    samples = {sample.sample_id: sample for sample in read_samples(project, eval_name)[1]}
    clusters = _clusters(task_class, samples, eval_name)
    responses = {row["sample_id"]: row for row in read_rows(outputs.path)}
    for prompt in read_rows(prompts.path):
        sample_id = prompt["sample_id"]
        if prompt["source_id"] not in samples or "gold_is_list" not in prompt:
            older = "an older dataset snapshot" if "gold_is_list" in prompt else "an older version of eval_dagster"
            raise LakeError(f"the prompts of {eval_name}|{model} are from {older}; materialize rendered_prompts for this partition")
        response = responses[sample_id]
        metrics = metrics_for(task_class.METRICS, ResponseType(prompt["response_type"]))
        views, error = _views_or_error(task, prompt, response, samples[prompt["source_id"]])
        for score in score_response(metrics, views, error):
            yield {
                "eval": eval_name,
                "model": model,
                "sample_id": sample_id,
                "source_id": prompt["source_id"],
                "cluster": clusters[prompt["source_id"]],
                "subject": prompt["subject"],
                "metric": score.metric,
                "value": score.value,
                "text_values": list(score.text_values) if isinstance(score, RepeatedScore) else None,
                "error": score.error,
                "retryable": score.retryable,  # counted with the file, and no column of it
            }


def _clusters(task: type[BaseTask[Any]], samples: Mapping[str, Sample], eval_name: str) -> dict[str, str]:
    """What each row belongs to, by its sample id: itself, unless the task and the row say otherwise."""
    field = task.CLUSTER_FIELD
    if field is None:
        return {name: name for name in samples}
    if samples and not any(field in sample.row for sample in samples.values()):
        fields = ", ".join(next(iter(samples.values())).row)
        raise DataError(f"eval {eval_name}: no row has the field {field!r} of the task's CLUSTER_FIELD; the rows have: {fields}")
    return {name: name if sample.row.get(field) in (None, "") else str(sample.row[field]) for name, sample in samples.items()}


def _views_or_error(
    task: BaseTask[Any], prompt: Mapping[str, Any], response: Mapping[str, Any], source: Sample
) -> tuple[Sequence[Completion | Loglikelihood], str | None]:
    if response["error"] is not None:
        return (), response["error"]
    try:
        return _views(task, prompt, response, source), None
    except Exception as problem:  # a task's post-processing is user code: it may fail for one sample
        return (), f"{type(problem).__name__}: {problem}"


def _views(
    task: BaseTask[Any], prompt: Mapping[str, Any], response: Mapping[str, Any], source: Sample
) -> Sequence[Completion | Loglikelihood]:
    row = TaskRow(source)
    shared: dict[str, Any] = {"prompt": prompt["prompt"], "context": _context(prompt), "row": row}
    if prompt["response_type"] != ResponseType.COMPLETION.value:
        is_perplexity = prompt["response_type"] == ResponseType.PERPLEXITY.value
        return [
            Loglikelihood(
                loglikelihoods=response["choice_logprobs"],
                choices=[prompt["prompt"]] if is_perplexity else prompt["choices"],
                gold_indices=[0] if is_perplexity else prompt["gold_index"],
                token_loglikelihoods=response["choice_token_logprobs"],
                unconditioned_loglikelihoods=response["unconditioned_logprobs"],
                is_greedy=response["choice_is_greedy"],
                **shared,
            )
        ]
    truth = truth_as_given(prompt["gold"], prompt["gold_is_list"])
    messages = [Message(Role(turn["role"]), turn["content"]) for turn in json.loads(prompt["messages"])]
    sample = TaskSample(
        messages=messages,
        ground_truth=truth,
        context=shared["context"],
        id=source.row_index,
        subject=prompt["subject"],
        row=row,
    )
    texts = zip(response["text"], response["text_post_processed"], response["reasoning"], response["finish_reason"], strict=True)
    return [
        Completion(
            completion_text=task.post_process_generated_completion(answer, sample),
            raw_text=text,
            reasoning=reasoning,
            ground_truths=prompt["gold"],
            ground_truth=truth,
            finish_reason=reason,
            messages=messages,
            **shared,
        )
        for text, answer, reasoning, reason in texts
    ]


def _context(prompt: Mapping[str, Any]) -> MetricContext | list[MetricContext] | None:
    """What the task handed on: alone where it is one."""
    parts = [MetricContext(**part) for part in json.loads(prompt["context"] or "[]")]
    return parts[0] if len(parts) == 1 else parts or None
