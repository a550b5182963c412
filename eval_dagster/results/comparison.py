"""Compares two materializations of an eval: the difference of each metric, its possible causes, and the samples that flipped."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from eval_dagster.errors import LakeError
from eval_dagster.lake.lineage import InputCause, changed_inputs
from eval_dagster.lake.tables.columns import PromptRow, ResponseRow
from eval_dagster.metrics.base import BaseMetric, CorpusMetric, Item, ItemMetric, item_of, known_bounds
from eval_dagster.records.judgements import ChangedSample
from eval_dagster.results.materializations import Materialization, metric_versions, overall, require_even
from eval_dagster.results.paired_scores import Booleans, Floats, Integers, PairedScores, answers_blank, answers_cut_off, numbers_of_texts
from eval_dagster.results.samples import answer_text
from eval_dagster.stages.answer_counts import mixed_words
from eval_dagster.statistics.paired import ALPHA, Comparison, compare_corpora, compare_items, compare_means

Cause = InputCause | Literal["model", "engine", "endpoint", "metric", "budget", "format", "mixed answers", "mixed baseline"]
"""The difference: an input, the model (weights or tokenizer), the engine (code, packages, device, dtype, settings of requests), the model
behind a server's name, or the metric's code. Or one of the results mixes answers of several models or states of a server.

`budget` and `format` replace `model`: at least half of the difference is due to samples whose answers only one of the results has whole, or
in a form in which the metric finds an answer.
"""

T = TypeVar("T")
_TEXTS = ("sample_id", "text", "text_post_processed", "finish_reason")
_ITEM = ("value", "item")
_EXPLAINED = 0.5
"""Part of a difference from which on the samples behind it explain it."""
_FEW = 0.01
"""Part of the samples below which they explain nothing."""
_WORDS = {
    "budget": "budget (answers were cut off at the limit of tokens)",
    "format": "format (no answer was found in texts)",
    "endpoint": "endpoint (another model behind the server's name)",
    "mixed answers": "mixed answers (of several models or states of the server)",
    "mixed baseline": "mixed baseline (answers of several models or states of the server)",
}
"""Causes whose names need an explanation."""


@dataclass(frozen=True, kw_only=True)
class MetricComparison:
    """One metric of an eval at two points."""

    a: Materialization
    b: Materialization
    metric: str
    higher_is_better: bool
    is_headline: bool
    comparison: Comparison
    causes: tuple[Cause, ...]
    """Everything that differs between the points. Empty if only chance can explain a difference."""


def compare_points(
    a: Materialization,
    b: Materialization,
    metrics: Sequence[type[BaseMetric[Any]]],
    *,
    alpha: float = ALPHA,
    alike: Callable[[Materialization, Materialization, str], tuple[Materialization, Materialization]] | None = None,
    headlines_only: bool = False,
) -> list[MetricComparison]:
    """Compare every overall metric that both points have, on the samples that both have.

    If the headline is the mean of the subjects' means, these means are compared. A corpus metric is compared over all subjects together.

    Args:
        a: The result in question.
        b: The baseline.
        metrics: The task's metrics. A corpus metric is computed from the statistics of the common samples.
        alpha: Two-sided level of significance, for the smallest detectable difference.
        alike: Takes both points and a metric's name; returns both points as scored by the same form of the metric.
        headlines_only: Whether only headline metrics are compared.

    Raises:
        LakeError: The scores of a point were deleted, or it is an estimate by history.
    """
    found: list[MetricComparison] = []
    for name, row in overall(a).items():
        of_a, of_b = (a, b) if alike is None else alike(a, b, name)
        if name not in overall(of_a) or (headlines_only and not row["is_headline"]):
            continue
        comparison = compare_metric(of_a, of_b, name, metrics, alpha=alpha)
        if comparison is not None:
            found.append(
                MetricComparison(
                    a=of_a,
                    b=of_b,
                    metric=name,
                    higher_is_better=overall(of_a)[name]["higher_is_better"],
                    is_headline=row["is_headline"],
                    comparison=comparison,
                    causes=causes(a, b, name),
                )
            )
    return found


def compare_metric(
    a: Materialization, b: Materialization, name: str, metrics: Sequence[type[BaseMetric[Any]]], *, alpha: float = ALPHA
) -> Comparison | None:
    """Compare one overall metric of two points, like `compare_points`.

    Returns None if a point lacks the metric, or if it is a corpus metric that the task lacks. Raises `LakeError` if one is an estimate by
    history.
    """
    for point in (a, b):
        require_even(point)
    if name not in overall(b):
        return None
    if any(each["metric"] == name and each["aggregation"] == "corpus" for each in a.metric_rows):
        of_all = next((metric for metric in metrics if name.partition("/")[0] == metric.NAME), None)
        if of_all is None:
            return None
        if issubclass(of_all, ItemMetric):
            paired = PairedScores.of(a.scores_of(name), b.scores_of(name))  # an aggregate gets the items in the order of the samples
            items_a, items_b = (_items(paired, of_a=of_a) for of_a in (True, False))
            clusters = paired.labels("cluster").tolist()
            return compare_items(items_a, items_b, of_all.aggregate, clusters=clusters, alpha=alpha)
        return _compare_corpora(of_all, a, b, alpha) if issubclass(of_all, CorpusMetric) else None
    metric = next((metric for metric in metrics if name.partition("/")[0] == metric.NAME), None)
    return _compare_means(metric, name, a, b, alpha, is_macro=overall(a)[name]["aggregation"] == "macro")


def causes(a: Materialization, b: Materialization, metric: str) -> tuple[Cause, ...]:
    """Everything that differs between two points for a metric. Data and prompts count if they affect a scored sample.

    Names each point that mixes answers of several models or states of a server.
    """
    found: list[Cause] = list(changed_inputs(a.inputs, b.inputs))
    if a.versions["model"] != b.versions["model"]:
        if a.model_content == b.model_content:
            found.append("engine")
        else:
            (version, content), (version_before, content_before) = a.declared, b.declared
            if content != content_before:
                found.append("model")
            else:
                found += ["endpoint"] if version == version_before else ["endpoint", "engine"]
    if metric_versions(a).get(metric) != metric_versions(b).get(metric):
        found.append("metric")
    of_answers = _answer_causes(a, b, metric)
    found = [*of_answers, *(cause for cause in found if not (of_answers and cause == "model"))]
    found += ["mixed answers"] if mixed_words(a.metrics.info.counts) else []
    found += ["mixed baseline"] if mixed_words(b.metrics.info.counts) else []
    return tuple(found)


def _answer_causes(a: Materialization, b: Materialization, metric: str) -> list[Cause]:
    """Whether samples explain a difference whose answers one result alone has cut off, or without an answer that the metric finds."""
    if a.scores_version == b.scores_version or not (a.has_scores and b.has_scores):
        return []
    paired = PairedScores.of(a.scores_of(metric), b.scores_of(metric))
    differences = paired.values(of_a=True) - paired.values(of_a=False)
    known = np.isfinite(differences)
    total = sum(differences[known].tolist())
    if not total:
        return []
    cut_a, lost_a = _unsound_answers(a, paired, of_a=True)
    cut_b, lost_b = _unsound_answers(b, paired, of_a=False)
    changed: dict[Cause, Booleans] = {"budget": (cut_a ^ cut_b) & known}
    changed["format"] = (lost_a ^ lost_b) & known & ~changed["budget"]
    return [
        cause
        for cause, samples in changed.items()
        if samples.sum() >= _FEW * known.sum() and differences[samples].sum() / total >= _EXPLAINED
    ]


def _unsound_answers(point: Materialization, paired: PairedScores, *, of_a: bool) -> tuple[Booleans, Booleans]:
    """The samples with an answer that was cut off, and those with one that is empty or in which the metric finds nothing."""
    lost = paired.marks("is_unanswered", of_a=of_a)
    cut, blank = [pa.array([], pa.string())], [pa.array([], pa.string())]
    try:
        for responses in point.response_tables(_TEXTS):
            cut.append(answers_cut_off(responses))
            blank.append(answers_blank(responses))
    except LakeError:
        return np.zeros_like(lost), lost
    return paired.among(pa.concat_arrays(cut)), lost | paired.among(pa.concat_arrays(blank))


def cause_words(causes: str) -> str:
    """Comma-separated causes in words."""
    names = (name.strip() for name in causes.split(","))
    return ", ".join(_WORDS.get(name, name) for name in names)


@dataclass(frozen=True, kw_only=True)
class ScoreChange:
    """A sample that two points score differently, or that only one of them has."""

    sample_id: str
    subject: str
    sample_name: str | None
    value: float | None
    """Null if there is none."""
    baseline_value: float | None
    """Null if there is none."""
    is_tie: bool
    """Whether the model found several choices equally good, which counts as a draw among them."""
    baseline_is_tie: bool


@dataclass(frozen=True)
class ScoreChanges:
    """The samples that two points score differently under a metric, or that only one point has, as columns."""

    paired: PairedScores

    @classmethod
    def of(cls, a: Materialization, b: Materialization, metric: str) -> "ScoreChanges":
        """The changes between two points; `b` is the baseline.

        A corpus metric gives samples no value, so only samples missing from one point are changes.

        Raises:
            LakeError: The scores of a point were deleted.
        """
        paired = PairedScores.of(scores_or_statistics(a, metric), scores_or_statistics(b, metric))
        return cls(paired.at(np.flatnonzero(paired.changed())))

    def __len__(self) -> int:
        return len(self.paired)

    @property
    def differences(self) -> Floats:
        """The value minus the baseline's; 0 if a point has no value."""
        found = self.paired.values(of_a=True) - self.paired.values(of_a=False)
        return np.where(np.isnan(found), 0.0, found)

    @property
    def ties(self) -> int:
        """Number of samples for which a point found several choices equally good."""
        return int((self.paired.marks("is_tie", of_a=True) | self.paired.marks("is_tie", of_a=False)).sum())

    def at(self, places: Sequence[int] | Integers) -> list[ScoreChange]:
        """Some of the changes."""
        chosen = self.paired.at(places)
        columns = (
            chosen.samples.to_pylist(),
            *(chosen.either(name).to_pylist() for name in ("subject", "sample_name")),
            *(chosen.column("value", of_a=of_a).to_pylist() for of_a in (True, False)),
            *(chosen.marks("is_tie", of_a=of_a).tolist() for of_a in (True, False)),
        )
        return [
            ScoreChange(
                sample_id=sample_id,
                subject=subject,
                sample_name=name,
                value=value,
                baseline_value=before,
                is_tie=is_tie,
                baseline_is_tie=was_tie,
            )
            for sample_id, subject, name, value, before, is_tie, was_tie in zip(*columns, strict=True)
        ]


def changed_samples(
    a: Materialization, b: Materialization, metric: str, changes: Sequence[ScoreChange] | None = None
) -> Iterator[ChangedSample]:
    """The changes of `ScoreChanges`, or some of them, with what was asked and answered.

    Raises:
        LakeError: The scores of a point were deleted. Deleted prompts and answers are left out.
    """
    if changes is None:
        found = ScoreChanges.of(a, b, metric)
        changes = found.at(range(len(found)))
    if not changes:
        return
    samples = [change.sample_id for change in changes]
    prompts_a, prompts_b = (_or_nothing(partial(point.prompts_of, samples)) for point in (a, b))
    responses_a, responses_b = (_or_nothing(partial(point.responses_of, samples)) for point in (a, b))
    for change in changes:
        sample_id = change.sample_id
        prompt = prompts_a.get(sample_id) or prompts_b.get(sample_id)
        yield ChangedSample(
            eval=a.eval_name,
            model=a.model,
            metric=metric,
            sample_id=sample_id,
            subject=change.subject,
            sample_name=change.sample_name,
            value=change.value,
            baseline_value=change.baseline_value,
            prompt=prompt and prompt.get("prompt"),
            gold=tuple((prompt and prompt.get("gold")) or ()),
            answer=_answer(responses_a.get(sample_id), prompts_a.get(sample_id)),
            baseline_answer=_answer(responses_b.get(sample_id), prompts_b.get(sample_id)),
        )


def scores_or_statistics(point: Materialization, metric: str) -> pa.Table:
    """Scores by sample. For a corpus metric, one row per sample, without a value."""
    found = point.scores_of(metric)
    if len(found):
        return found
    names = pc.unique(point.asked_table["metric"]).to_pylist()
    statistic = next((name for name in names if name.startswith(f"{metric}/")), None)
    if statistic is None:
        return found
    rows = point.scores_of(statistic)
    return rows.set_column(rows.column_names.index("value"), "value", pa.nulls(len(rows), pa.float64()))


def _compare_means(
    metric: type[BaseMetric[Any]] | None, name: str, of_a: Materialization, of_b: Materialization, alpha: float, *, is_macro: bool
) -> Comparison:
    paired = PairedScores.of(of_a.scores_of(name), of_b.scores_of(name), is_sorted=True)
    a, b = paired.values(of_a=True), paired.values(of_a=False)
    known = [values[~np.isnan(values)] for values in (a, b)]
    ends = [float(end) for values in known if len(values) for end in (values.min(), values.max())]
    return compare_means(
        a,
        b,
        clusters=paired.labels("cluster"),
        subjects=paired.labels("subject") if is_macro else None,
        bounds=None if metric is None else known_bounds(metric, ends),
        alpha=alpha,
    )


def _compare_corpora(metric: type[CorpusMetric[Any]], of_a: Materialization, of_b: Materialization, alpha: float) -> Comparison:
    names = [f"{metric.NAME}/{statistic}" for statistic in metric.STATISTICS]
    tables = [table for point in (of_a, of_b) for table in point.scores_of_all(names).values()]
    samples = pc.unique(pa.chunked_array([chunk for table in tables for chunk in table["sample_id"].chunks], pa.string()))
    samples = samples.take(pc.sort_indices(samples))  # draws depend on the order
    places = [pc.index_in(samples, value_set=table["sample_id"].combine_chunks()) for table in tables]
    columns = [np.asarray(table["value"].take(place).to_numpy(), dtype=float) for table, place in zip(tables, places, strict=True)]
    a, b = (np.stack(side, axis=1) for side in (columns[: len(names)], columns[len(names) :]))  # not a number for a missing value
    clusters = pc.coalesce(*(table["cluster"].take(place) for table, place in zip(tables, places, strict=True)))
    return compare_corpora(a, b, metric.aggregate, clusters=numbers_of_texts(clusters), alpha=alpha)


def _items(paired: PairedScores, *, of_a: bool) -> list[Item]:
    """The items of one side; None for an error or a sample that is missing."""
    columns = (paired.column(name, of_a=of_a).to_pylist() for name in _ITEM)
    return [item_of(dict(zip(_ITEM, row, strict=True))) for row in zip(*columns, strict=True)]


def _or_nothing(read: Callable[[], Mapping[str, T]]) -> Mapping[str, T]:
    try:
        return read()
    except LakeError:
        return {}


def _answer(response: ResponseRow | None, prompt: PromptRow | None) -> str | None:
    if response is not None and response["error"] is not None:
        return f"error: {response['error']}"
    return answer_text(response, prompt)
