"""Stage `sample_scores`: every metric of every sample."""

import math
import platform
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from eval_dagster.errors import DataError, LakeError, MachineError, RequirementError, TaskDefinitionError, described
from eval_dagster.lake.files import LakeFile
from eval_dagster.lake.format.parquet_files import FileInfo, iter_rows, read_table
from eval_dagster.lake.tables.columns import PromptRow, ResponseRow, ScoreRow
from eval_dagster.lake.tables.rows import prompt_of, response_of, score_row
from eval_dagster.metrics.base import (
    AnswerMetric,
    BaseMetric,
    CorpusMetric,
    Item,
    ItemMetric,
    RepeatedMetric,
    RowMetric,
    declared,
    frozen,
    is_between,
    metrics_for,
    named_values,
    require_direction,
    response_kind,
)
from eval_dagster.metrics.explanations import Explanation, explain, explain_results, explained, with_explanations
from eval_dagster.metrics.loglikelihood import count_tie
from eval_dagster.progress.reporting import following
from eval_dagster.prompts.views import AnsweredPrompt, apart
from eval_dagster.records import Completion, ItemScore, Loglikelihood, ModelResponse, RepeatedScore, ResponseType, Sample, Score
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.stages.answer_counts import stored_mixed_counts
from eval_dagster.stages.looks import not_asked
from eval_dagster.stages.outputs import require_outputs
from eval_dagster.stages.partition import (
    AskedPrompts,
    Partition,
    Plan,
    StageResult,
    allowed_execution,
    error_warning,
    preview_samples,
    require_execution,
)
from eval_dagster.stages.snapshot import samples_to_score
from eval_dagster.tasks.base import BaseTask
from eval_dagster.tasks.benchmark import AdapterTask, Answer, ScoreError
from eval_dagster.users_code import calling, raised_at
from eval_dagster.versions.hashes import code_version, definition_version, package_versions, stable_hash

_LARGEST = 1e150
"""Largest value whose squares can be summed over any number of samples."""
_BATCH = 256
"""Rows that are scored together."""
_STAGE = "sample_scores"
_CONTENT = ("sample_id", "cluster", "metric", "value", "item", "error")


def row_scores(
    task: AdapterTask, samples: Mapping[str, Sample], answered: Iterator[tuple[RenderedPrompt, ModelResponse]]
) -> Iterator[tuple[RenderedPrompt, Score]]:
    """Every metric of every row, each with the first question about the row.

    A row that lacks an answer, or whose scoring fails, has an error under every metric.

    Raises:
        RequirementError: The benchmark lacks a package or a program.
    """
    task.prepare(list(samples.values()))
    rows = (list(group) for _, group in groupby(answered, key=lambda pair: pair[0].source_id))
    while batch := list(islice(rows, _BATCH)):
        whole = [row for row in batch if _error(row) is None]
        asked = [(samples[row[0][0].source_id], [answer_to(prompt, response) for prompt, response in row]) for row in whole]
        found = iter(task.score_rows(asked))
        for row in batch:
            error = _error(row)
            if error is None:
                scored = next(found)
                scores = list(_scores(task, scored.values))
                # The other package decides between choices that share the highest log-probability, without counting them.
                with explained() as tied:
                    for prompt, response in row:
                        values = response.choice_logprobs if prompt.request.choices else ()
                        count_tie([position for position, value in enumerate(values) if value == max(values)])
                ties = tied.get(None, {})
                of_scores: dict[str | None, Explanation] = {
                    score.metric: {**scored.words.get(score.metric, {}), **ties} for score in scores
                }
                scores = with_explanations(scores, {**scored.words, **of_scores})
            else:
                scores = list(_scores(task, error))
            yield from ((row[0][0], score) for score in scores)


def _error(row: Sequence[tuple[RenderedPrompt, ModelResponse]]) -> str | None:
    """The error of the first answer that has one."""
    return next((response.error for _, response in row if response.error is not None), None)


def _scores(task: AdapterTask, found: Mapping[str, Item] | Exception | str) -> Iterator[Score]:
    """The scores of a row, from its values or from its error."""
    if isinstance(found, Mapping):
        of_items = {metric.NAME for metric in task.METRICS if issubclass(metric, ItemMetric)}
        for name, value in found.items():
            if isinstance(value, ScoreError):
                yield Score(metric=name, value=None, error=value.reason, retryable=value.retryable)
            elif name.partition("/")[0] in of_items:
                yield item_score(name, value)
            elif not _is_number(value):
                wrong = f"the benchmark gave {value!r:.200} for {name!r}, which is averaged; expected a number"
                yield Score(metric=name, value=None, error=wrong)
            elif not is_summable(value):
                yield Score(metric=name, value=None, error=f"the benchmark gave {value}, which is no number that can be averaged")
            else:
                yield Score(metric=name, value=float(value))
        return
    error = found if isinstance(found, str) else f"{type(found).__name__}: {found}"
    for metric in task.METRICS:
        yield Score(metric=metric.NAME, value=None, error=error, retryable=isinstance(found, MachineError | OSError))


def answer_to(prompt: RenderedPrompt, response: ModelResponse) -> Answer:
    """An answer in the form that a benchmark gets."""
    context: dict[str, Any] = prompt.context[0].model_dump() if prompt.context else {}
    return Answer(
        prompt=prompt.request.prompt,
        choices=prompt.request.choices or (),
        loglikelihoods=list(response.choice_logprobs),
        is_greedy=list(response.argmax_logits_eq_gold),
        texts=list(response.final_text),
        tokens=list(response.output_tokens),
        context=context,
    )


def item_score(name: str, item: Item) -> Score:
    """The score for a metric that is computed from all items together."""
    try:
        if _is_number(item) and is_summable(item):
            return ItemScore(metric=name, value=float(item), item=None)
        return ItemScore(metric=name, value=None, item=frozen(item))
    except TypeError as error:
        return Score(metric=name, value=None, error=str(error))


def is_summable(value: float) -> bool:
    """Whether a mean and a variance can be computed from a value: the square of 1e200 is infinite."""
    return abs(value) <= _LARGEST  # false for NaN


def _is_number(value: object) -> bool:
    return isinstance(value, bool | int | float | np.number | np.bool_)


def materialize_scores(partition: Partition) -> StageResult:
    """Make the scores of an eval's samples current; calls no model.

    Raises:
        RequirementError: A metric lacks a package, permission to run code, or a sandbox.
        LakeError: Prompts or responses are missing, damaged, or do not belong together.
    """
    project, task = partition.project, partition.task
    prompts, outputs = require_outputs(partition)
    plan = plan_scores(partition, AskedPrompts.of(prompts), outputs.info.version)
    current = plan.fresh
    if current is None:
        partition.making(_STAGE)
        require_execution(project, partition.eval_name)
        with allowed_execution(project):
            made, seen = partition.table(_STAGE, _CONTENT), _Seen()
            for row in _score_rows(partition, prompts, outputs):
                made.add(row)
                seen.add(row)
        info = FileInfo(
            fingerprint=plan.fingerprint,
            version=made.version(),
            run_id=partition.run_id,
            materialized_at=partition.next_time(_STAGE),
            inputs={"model_outputs": outputs.info.version, "metrics": plan.made_of["metric"], **outputs.info.inputs},
            counts={**seen.counts(), **stored_mixed_counts(outputs.info.counts), **not_asked(outputs)},
            made_of=plan.made_of,
        )
        current = partition.write_table(_STAGE, made.rows(), info)
    warning = error_warning(partition.eval_name, partition.model, current)
    read_preview = partial(preview_samples, prompts, outputs, current, headline(task).NAME)
    cached = plan.fresh is not None
    return partition.result(_STAGE, current, cached=cached, read_preview=read_preview, warnings=[warning] if warning else [])


class _Seen:
    """Counts scores that come one after the other, and their samples. Scores of one row of the dataset come together."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(("scores", "samples", "errors", "retryable_errors"), 0)
        self._source: tuple[str, str | None] | None = None
        self._samples: dict[str, set[str]] = {}
        """The samples of the source by the names of their counts."""

    def add(self, row: "_ScoreOfRun") -> None:
        """Count the next score."""
        source = row["source_id"], row["variant"]
        if source != self._source:
            self._source, self._samples = source, {"samples": set(), "errors": set(), "retryable_errors": set()}
        self._counts["scores"] += 1
        for name, is_one in (("samples", True), ("errors", row["error"] is not None), ("retryable_errors", row["retryable"])):
            if is_one and row["sample_id"] not in self._samples[name]:
                self._samples[name].add(row["sample_id"])
                self._counts[name] += 1

    def counts(self) -> dict[str, int]:
        """The number of scores, and of samples with any, with an error, and with an error that may pass."""
        return dict(self._counts)


def plan_scores(partition: Partition, prompts: AskedPrompts, outputs_version: str) -> Plan:
    """Whether the current scores belong to these prompts and responses. Computes no metric."""
    versions, code = metric_versions(partition.task), scoring_versions(partition.task)
    current = partition.current(_STAGE)
    return Plan(
        fingerprint=stable_hash(
            [prompts.version, outputs_version, versions, list(code.values()), *([prompts.names] if prompts.names else [])]
        ),
        made_of={
            "prompt": prompts.version,
            "names": prompts.names,
            "answers": outputs_version,
            "metric": stable_hash(versions),
            **code,
        },
        current=current,
        again=["errors"] if current is not None and current.info.counts["retryable_errors"] else [],
    )


def scoring_versions(task: type[BaseTask[Any]]) -> dict[str, str]:
    """Versions of the code that decides scores, besides the metrics: the task, and this stage."""
    return {"task": definition_version(task), "code": code_version(_score_rows)}


def content_version(rows: Sequence[Mapping[str, object]]) -> str:
    """The version of rows of `scores`."""
    return stable_hash([[row[name] for name in _CONTENT] for row in rows])


def headline(task: type[BaseTask[Any]]) -> type[BaseMetric]:
    """The metric that the leaderboard shows."""
    return task.HEADLINE_METRIC or task.METRICS[0]


def metric_versions(task: type[BaseTask[Any]], metrics: Sequence[type[BaseMetric]] | None = None) -> dict[str, str]:
    """The version of each metric, by default of the task's metrics: its code, its scripts and the packages that it computes with.

    A metric that runs code also has the version of Python, because the code uses Python's standard library.
    """
    return {
        metric.NAME: stable_hash(
            [
                # A class made by a function may hold values of the task's file, which called the function.
                definition_version(metric, *declared(metric, "COMPANIONS"), *([task] if "<locals>" in metric.__qualname__ else [])),
                package_versions(declared(metric, "PACKAGES")),
                *([platform.python_version()] if metric.EXECUTES_CODE else []),
            ]
        )
        for metric in (task.METRICS if metrics is None else metrics)
    }


def score_response(
    metrics: Sequence[type[BaseMetric]], views: Sequence[Completion | Loglikelihood], error: str | None, sample_id: str = ""
) -> list[Score]:
    """Every metric of one sample, over all its views: several texts of one prompt, or for a `RowMetric` the answers to several prompts.

    A `RepeatedMetric` and a `RowMetric` see all views at once. The statistics of a `CorpusMetric` are summed over them, as over the
    samples; the values of other metrics are averaged. A response with an error has no value under any metric. If a metric raises, it has no
    value for this sample; the other metrics are computed. If the machine failed rather than the text, the score is marked to be computed
    again.

    Raises:
        RequirementError: A metric lacks a package, permission to run code, or a sandbox.
    """
    scores: list[Score] = []
    for metric in metrics:
        if error is not None:
            scores.append(Score(metric=metric.NAME, value=None, error=error))
            continue
        with explained() as words:
            try:
                with calling(f"the metric {metric.NAME}", sample_id):
                    found = _values(metric, [apart(view) for view in views])
            except RequirementError:
                raise  # not an error of the sample, which would be stored and stay after the requirement is met
            except Exception as problem:  # the one place where a metric may fail
                retryable = isinstance(problem, MachineError | OSError)
                found = [Score(metric=metric.NAME, value=None, error=described(problem) + raised_at(problem), retryable=retryable)]
            else:
                _explain_answers(metric, views)
        scores += with_explanations(found, words)
    return scores


def _explain_answers(metric: type[BaseMetric], views: Sequence[Completion | Loglikelihood]) -> None:
    """Keep the answers that a metric compares, if they differ from the texts."""
    of_text: type[BaseMetric] = getattr(metric, "METRIC", metric)  # for one text, if the metric takes several
    if not (isinstance(of_text, type) and issubclass(of_text, AnswerMetric)):
        return
    texts = [view.completion_text for view in views if isinstance(view, Completion)]
    with suppress(Exception):  # from user code; the values are already computed
        answers = [of_text().answer_of(text) for text in texts]
        shown = [None if answer is None else _shown(answer) for answer in answers]
        if any(found not in (text, text.strip()) for found, text in zip(shown, texts, strict=True)):
            for found in shown:
                explain("answer", found)


def _shown(answer: object) -> str:
    """An answer for people. If it has several parts, only the texts; a set is sorted."""
    if not isinstance(answer, tuple | list | frozenset | set):
        return str(answer)
    parts = [_shown(part) for part in answer if not isinstance(part, int)]
    return "; ".join(sorted(parts) if isinstance(answer, frozenset | set) else parts)


def _finite(name: str, value: float, texts: Sequence[float] = ()) -> Score:
    if is_summable(value):
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
    if issubclass(metric, RowMetric):
        return [_finite(name, value) for name, value in _named(metric, metric().calculate_row(views)).items()]
    if issubclass(metric, ItemMetric):
        return [item_score(metric.NAME, [metric().calculate(view) for view in views] if len(views) > 1 else metric().calculate(views[0]))]
    named = [_named(metric, metric().calculate(view)) for view in views]
    if any(values.keys() != named[0].keys() for values in named):
        raise DataError(f"the metric {metric.NAME} gave other names for one text of a prompt than for another; expected the same for all")
    by_name = {name: [values[name] for values in named] for name in named[0]}
    if issubclass(metric, CorpusMetric):
        return [_finite(name, math.fsum(values)) for name, values in by_name.items()]
    return [_finite(name, fmean(values), values) for name, values in by_name.items()]


def _named(metric: type[BaseMetric], result: object) -> dict[str, float]:
    explain_results(metric.NAME, result)
    values = named_values(metric.NAME, result)
    require_direction(metric, result)
    if issubclass(metric, CorpusMetric) and set(values) != set(statistic_names(metric)):
        raise DataError(f"the metric {metric.NAME} gave {sorted(values)}; expected its STATISTICS: {statistic_names(metric)}")
    # Inherited bounds need not apply to the class, so its intervals are then computed without bounds.
    bounds = None if issubclass(metric, CorpusMetric) else vars(metric).get("BOUNDS")
    for name, value in values.items():
        if bounds is not None and math.isfinite(value) and not is_between(value, bounds):
            raise DataError(
                f"the metric {metric.NAME} gave {value:g} for {name!r}, and its bounds are {bounds[0]:g} and {bounds[1]:g}; correct the "
                f"BOUNDS of the class {metric.__name__}, or the value"
            )
    return values


def statistic_names(metric: type[CorpusMetric]) -> list[str]:
    """The names of a metric's statistics among the scores, in the order in which it aggregates them."""
    return [f"{metric.NAME}/{statistic}" for statistic in metric.STATISTICS]


class _ScoreOfRun(ScoreRow):
    retryable: bool


def _score_rows(partition: Partition, prompts: LakeFile, outputs: LakeFile) -> Iterator[_ScoreOfRun]:
    """The rows of `scores`, each with `retryable`, which is counted but not a column."""
    project, eval_name = partition.project, partition.eval_name
    task = partition.scorer()
    samples = samples_to_score(task, project, eval_name)
    require_clusters(task, samples, eval_name)
    answered = following(
        _answered(partition, prompts, outputs, samples), f"{_STAGE} {partition}", total=int(outputs.info.counts["requests"]), unit="prompts"
    )
    for prompt, score in scores_of(task, samples, answered, asked_types(prompts)):
        row = score_row(eval_name, partition.model, prompt, _cluster(task, samples[prompt.source_id]), score)
        yield {**row, "retryable": score.retryable}


def asked_types(prompts: LakeFile) -> set[ResponseType]:
    """All types of responses that the prompts of an eval ask for."""
    return {ResponseType(each) for each in read_table(prompts.path, ["response_type"])["response_type"].unique().to_pylist()}


def scores_of(
    task: BaseTask[Any],
    samples: Mapping[str, Sample],
    answered: Iterator[tuple[RenderedPrompt, ModelResponse]],
    asked: Collection[ResponseType],
) -> Iterator[tuple[RenderedPrompt, Score]]:
    """Every metric of every sample among prompts with their responses, as the stage computes them.

    `samples` are all samples of the eval, by id; `asked` are all types of responses that the eval asks for. Raises `RequirementError` like
    `score_response`.
    """
    if isinstance(task, AdapterTask):
        yield from row_scores(task, samples, answered)
        return
    # A `RowMetric` is computed once per row, from all questions about it that it can score.
    of_row = [metric for metric in task.METRICS if issubclass(metric, RowMetric)]
    of_question = [metric for metric in task.METRICS if metric not in of_row]
    for (name, variant), pairs in groupby(answered, key=lambda pair: (pair[0].source_id, pair[0].variant)):
        asking = task.variants.get(variant or "", task)
        row = []
        for prompt, response in pairs:
            views: Sequence[Completion | Loglikelihood] = ()
            error = response.error
            if error is None:
                try:
                    with calling("the post-processing of the task", prompt.sample_id):
                        views = AnsweredPrompt(task=asking, sample=samples[name], prompt=prompt).views(response)
                except Exception as problem:  # a task's post-processing is user code: it may fail for one sample
                    error = described(problem) + raised_at(problem)
            row.append((prompt, views, error))
            for score in score_response(metrics_for(of_question, prompt.response_type, asked), views, error, prompt.sample_id):
                yield prompt, score
        for metric in of_row:
            own = [each for each in row if metrics_for([metric], each[0].response_type, asked)]
            error = next((error for _, _, error in own if error is not None), None)
            for score in score_response([metric] if own else [], [view for _, views, _ in own for view in views], error, name):
                yield own[0][0], score


def _answered(
    partition: Partition, prompts: LakeFile, outputs: LakeFile, known: Container[str]
) -> Iterator[tuple[RenderedPrompt, ModelResponse]]:
    asked = None
    if not_asked(outputs):
        asked = set(read_table(outputs.path, ["sample_id"])["sample_id"].to_pylist())
    for row, answer in answered_rows(prompts.path, outputs.path, asked=asked):
        prompt = prompt_of(row)
        if prompt.source_id not in known:
            raise LakeError(f"the prompts of {partition} are of an older dataset snapshot; materialize rendered_prompts for this partition")
        yield prompt, response_of(answer)


def answered_rows(prompts: Path, outputs: Path, asked: Container[str] | None = None) -> Iterator[tuple[PromptRow, ResponseRow]]:
    """The rows of `prompts`, each with the row of its answer. Few are held at once if both files have the same order, as they usually do.

    Args:
        prompts: The file of the prompts.
        outputs: The file of the answers.
        asked: The samples that were asked; all if None.

    Raises:
        LakeError: A file is damaged, or a prompt has no answer.
    """
    answers, ahead = iter_rows(outputs), dict[str, ResponseRow]()
    for prompt in iter_rows(prompts):
        name = prompt["sample_id"]
        if asked is not None and name not in asked:
            continue
        while name not in ahead:
            if (answer := next(answers, None)) is None:
                raise LakeError(f"{outputs} has no answer to the sample {name}; materialize model_outputs for this partition")
            ahead[answer["sample_id"]] = answer
        yield prompt, ahead.pop(name)


def clusters_of(task: BaseTask[Any], samples: Mapping[str, Sample], eval_name: str) -> dict[str, str]:
    """The cluster of each row by its sample id: the value of the task's `CLUSTER_FIELD`, or else the row itself. Raises `DataError`."""
    require_clusters(task, samples, eval_name)
    return {name: _cluster(task, sample) for name, sample in samples.items()}


def require_clusters(task: BaseTask[Any], samples: Mapping[str, Sample], eval_name: str) -> None:
    """Raise `DataError` if the task names a `CLUSTER_FIELD` that no row has."""
    field = task.CLUSTER_FIELD
    if field is not None and samples and not any(field in sample.row for sample in samples.values()):
        fields = ", ".join(next(iter(samples.values())).row)
        raise DataError(f"eval {eval_name}: no row has the field {field!r} of the task's CLUSTER_FIELD; the rows have: {fields}")


def _cluster(task: BaseTask[Any], sample: Sample) -> str:
    value = None if task.CLUSTER_FIELD is None else sample.row.get(task.CLUSTER_FIELD)
    return sample.sample_id if value in (None, "") else str(value)
