"""Aggregates the scores of samples to metrics of an eval: overall, by subject, and over subjects with equal weight."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from eval_dagster.errors import DataError, described
from eval_dagster.lake.tables.columns import MetricRow
from eval_dagster.metrics.base import (
    BaseMetric,
    CorpusMetric,
    ItemMetric,
    bounds_of,
    declared_headline,
    frozen,
    headline_name,
    item_of,
    known_bounds,
    response_kind,
)
from eval_dagster.records import Loglikelihood, ResponseType
from eval_dagster.stages.score_columns import Codes, Flags, Floats, Labels, Places, Scores, first_order, flags
from eval_dagster.stages.scores import headline, metric_versions, statistic_names
from eval_dagster.statistics.estimates import Estimate, covariance_of_groups, estimate_corpus, estimate_items, estimate_macro, estimate_mean
from eval_dagster.statistics.prompt_effects import PromptEffect, prompt_effect
from eval_dagster.tasks.base import BaseTask
from eval_dagster.tasks.benchmark import AdapterTask, BenchmarkMetric, metric_class
from eval_dagster.tasks.variants import question_of
from eval_dagster.users_code import calling

Aggregation = Literal["micro", "macro", "corpus"]
"""Mean of the samples; mean of the subjects' values; metric of the samples together."""
_BATCH = 10_000
"""Samples whose ids are texts of Python at once."""
_NULL = "null"
"""The item of a score that is an error, as JSON."""
Figure = Literal["value", "stderr", "ci_low", "ci_high", "n", "n_errors"]
"""A column of `metrics` that a variant has, too."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Values:
    """The values of some samples under one name."""

    subjects: Codes
    clusters: Codes
    values: Floats
    """NaN for a sample without a value."""
    rows: Places
    """The row of each sample in the scores, for its item; -1 if it has none."""

    def where(self, kept: Places) -> "_Values":
        return _Values(subjects=self.subjects[kept], clusters=self.clusters[kept], values=self.values[kept], rows=self.rows[kept])

    @cached_property
    def of_clusters(self) -> Codes | None:
        """The cluster of each sample. None if each is a cluster of its own."""
        return self.clusters if len(np.unique(self.clusters)) < len(self.clusters) else None


@dataclass(frozen=True, kw_only=True, eq=False)
class _Scored:
    """The samples of one metric, in the order of their first scores."""

    subjects: Codes
    clusters: Codes
    failed: Flags
    """Whether the metric returned only an error."""
    places: Places
    """The sample of each score, by its place here."""
    rows: Places
    """The row of each score among all scores."""
    names: Mapping[str, Places]
    """The scores under each name, by their places in `rows`: the metric's name, alone or with a slash and a part."""
    sound_names: Sequence[str]
    """The names under which samples that did not fail have scores, in the order in which they come first."""

    def under(self, name: str, values: Floats, *, all_samples: bool = False) -> _Values:
        """The samples with a score under a name, or that failed; or all. A failed sample counts as an error under every name."""
        found, rows, given = np.full(len(self.failed), np.nan), np.full(len(self.failed), -1, dtype=np.intp), self.failed.copy()
        if (own := self.names.get(name)) is not None:
            place = self.places[own]
            found[place], rows[place], given[place] = values[self.rows[own]], self.rows[own], True
        every = _Values(subjects=self.subjects, clusters=self.clusters, values=found, rows=rows)
        return every if all_samples or given.all() else every.where(np.flatnonzero(given))


@dataclass(frozen=True, kw_only=True)
class _Aggregate:
    """An estimate with the samples that it covers."""

    name: str
    subject: str | None
    aggregation: Aggregation
    estimate: Estimate


def metric_rows(task: type[BaseTask[Any]], scores: Scores) -> list[MetricRow]:
    """The rows of an eval's metrics: overall first, then by subject if there are several.

    With several subjects, there is a second overall row: the mean of the subjects' values.

    Raises:
        DataError: The aggregate of a corpus metric failed.
    """
    codes = {scores.subjects.text(code): code for code in scores.subjects.used()}
    subjects = {subject: codes[subject] for subject in sorted(codes)}
    metrics = list(task.METRICS)
    if issubclass(task, AdapterTask):  # a benchmark may return values under further names, which are averaged
        names = {metric.NAME for metric in metrics}
        metrics += [metric_class(BenchmarkMetric(name=name), task.VERSION) for name in scores.bases if name not in names]
    versions = metric_versions(task, metrics)
    rows: list[MetricRow] = []
    for metric in metrics:
        found = list(_aggregates(metric, scores, subjects if len(subjects) > 1 else {}))
        low, high = bounds_of(metric) or (None, None)
        # The leaderboard shows the overall row, or the mean of the subjects' values if the task chooses it.
        shown = None
        if found and metric is headline(task):
            shown_name = headline_name(metric, dict.fromkeys(each.name for each in found if each.subject is None))
            overall = [each for each in found if each.name == shown_name and each.subject is None]
            macro = [each for each in overall if each.aggregation == "macro"]
            shown = next(iter(macro if macro and task.HEADLINE_AGGREGATION == "macro" else overall), None)
        compares = response_kind(metric) is Loglikelihood or getattr(task, "RESPONSE_TYPE", None) is ResponseType.LOGLIKELIHOODS
        ties = _ties(scores, metric.NAME)
        rows += [
            cast(
                MetricRow,
                {
                    **asdict(each.estimate),
                    "metric": each.name,
                    "aggregation": each.aggregation,
                    "subject": each.subject,
                    "higher_is_better": metric.HIGHER_IS_BETTER,
                    "bound_low": low,
                    "bound_high": high,
                    "is_headline": each is shown,
                    "metric_version": versions[metric.NAME],
                    "n_ties": int(ties.sum() if each.subject is None else ties[codes[each.subject]]) if ties.any() or compares else None,
                },
            )
            for each in found
        ]
    return sorted(rows, key=lambda row: row["subject"] is not None)


def _ties(scores: Scores, metric: str) -> NDArray[np.intp]:
    """By subject, the samples with several equally good choices."""
    rows = scores.bases.get(metric, np.empty(0, dtype=np.intp))
    tied = rows[scores.is_tied[rows]]
    first, _ = first_order(scores.samples.codes[tied])  # a sample has one subject
    return np.bincount(scores.subjects.codes[tied[first]], minlength=len(scores.subjects.texts))


def variants_columns(task: type[BaseTask[Any]], scores: Scores, rows: Sequence[MetricRow]) -> list[str | None]:
    """The column `variants` of each row of an eval's metrics: the metric by variant, and the effect of the prompt on it.

    Args:
        task: The task.
        scores: The scores of all variants.
        rows: The metrics, as returned by `metric_rows`.
    """
    used = scores.variants.used()
    if len(used) < 2:
        return [None] * len(rows)
    by_variant = {scores.variants.text(code): scores.where(scores.variants.codes == code) for code in used}
    of_variant = {
        variant: {(row["metric"], row["aggregation"]): row for row in metric_rows(task, own) if row["subject"] is None}
        for variant, own in by_variant.items()
    }
    figures: tuple[Figure, ...] = ("value", "stderr", "ci_low", "ci_high", "n", "n_errors")
    columns: list[str | None] = []
    for row in rows:
        key = (row["metric"], row["aggregation"])
        found = {variant: of_metrics[key] for variant, of_metrics in of_variant.items() if key in of_metrics}
        if row["subject"] is not None or len(found) < 2:
            columns.append(None)
            continue
        own: list[dict[str, Any]] = [{"variant": variant, **{name: each[name] for name in figures}} for variant, each in found.items()]
        metric = next((each for each in task.METRICS if row["metric"].partition("/")[0] == each.NAME), None)
        if metric is not None and issubclass(metric, CorpusMetric | ItemMetric):
            known = [each["value"] for each in own if each["value"] is not None]
            effect = PromptEffect(n_common=0, n_clusters=0, spread=max(known) - min(known) if len(known) == len(by_variant) else None)
        else:
            effect = _prompt_effect(row, by_variant)
        columns.append(json.dumps({"scores": own, "effect": asdict(effect)}))
    return columns


def _prompt_effect(row: MetricRow, by_variant: Mapping[str, Scores]) -> PromptEffect:
    """The effect of the prompt on a metric that is a mean of its samples, or of its subjects' means."""
    of_metric = [(name, scores.where(scores.metrics.is_text(row["metric"]))) for name, scores in by_variant.items()]
    questions = Labels.of([part for name, scores in of_metric for part in _questions(scores, name)])
    first, question = first_order(questions.codes)
    matrix, start = np.full((len(first), len(of_metric)), np.nan), 0
    for column, (_, scores) in enumerate(of_metric):
        known = ~np.isnan(scores.values)
        matrix[question[start : start + len(scores)][known], column] = scores.values[known]
        start += len(scores)
    clusters, subjects = (
        np.concatenate([labels.codes for labels in of_all])[first]
        for of_all in ([scores.clusters for _, scores in of_metric], [scores.subjects for _, scores in of_metric])
    )
    return prompt_effect(matrix, clusters, subjects if row["aggregation"] == "macro" else None)


def _questions(scores: Scores, variant: str) -> Iterator[pa.Array]:
    """The question of each score of a variant, by the sample id of the question's own prompt."""
    for start in range(0, len(scores), _BATCH):
        samples = scores.samples.texts.take(pa.array(scores.samples.codes[start : start + _BATCH]))
        yield pa.array([question_of(sample, variant) for sample in samples.to_pylist()], pa.string())


def _scored(scores: Scores, metric: str) -> _Scored:
    """The samples of a metric. One without a value and an item under the metric's own name, and with no other score, failed."""
    rows = scores.bases[metric]
    first, places = first_order(scores.samples.codes[rows])
    first_rows, names = rows[first], scores.metrics.codes[rows]
    failed = (np.bincount(places) == 1) & np.isnan(scores.values[first_rows]) & ~_has_items(scores)[first_rows]
    failed &= scores.metrics.is_text(metric)[first_rows]
    of_names: dict[str, Places] = {}
    came: dict[str, tuple[int, int]] = {}
    for code in np.unique(names):
        name, own = scores.metrics.text(code), np.flatnonzero(names == code)
        of_names[name] = own
        sound = own[~failed[places[own]]]
        if len(sound):
            sample = int(places[sound].min())
            came[name] = sample, int(sound[places[sound] == sample][0])
    return _Scored(
        subjects=scores.subjects.codes[first_rows],
        clusters=scores.clusters.codes[first_rows],
        failed=failed,
        places=places,
        rows=rows,
        names=of_names,
        sound_names=sorted(came, key=came.__getitem__),
    )


def _has_items(scores: Scores) -> Flags:
    """Whether each score is a part of a metric of all samples together that is not null."""
    return flags(pc.not_equal(scores.items, _NULL))


def _aggregates(metric: type[BaseMetric], scores: Scores, subjects: Mapping[str, int]) -> Iterator[_Aggregate]:
    if metric.NAME not in scores.bases:
        return
    scored = _scored(scores, metric.NAME)
    if issubclass(metric, CorpusMetric):
        statistics = [scored.under(name, scores.values, all_samples=True) for name in statistic_names(metric)]
        values, samples = np.stack([each.values for each in statistics], axis=1), statistics[0]
        yield _Aggregate(name=metric.NAME, subject=None, aggregation="corpus", estimate=_corpus(metric, values, samples))
        groups = _by_subject(samples.subjects, subjects)
        if len(groups) > 1:
            macro = _corpus(metric, values, samples, is_macro=True)
            yield _Aggregate(name=metric.NAME, subject=None, aggregation="macro", estimate=macro)
        for subject, kept in groups.items():
            of_subject = _corpus(metric, values[kept], samples.where(kept))
            yield _Aggregate(name=metric.NAME, subject=subject, aggregation="corpus", estimate=of_subject)
        return
    for name in scored.sound_names or [declared_headline(metric) or metric.NAME]:
        of_name = scored.under(name, scores.values)
        if issubclass(metric, ItemMetric):
            yield from _of_items(metric, name, of_name, scores, subjects)
        else:
            yield from _means(metric, name, of_name, subjects)


def _by_subject(samples: Codes, subjects: Mapping[str, int]) -> dict[str, Places]:
    """The places of the samples of each subject that has some."""
    if not subjects:
        return {}
    order = np.argsort(samples, kind="stable")
    codes = np.array(list(subjects.values()), dtype=np.int32)
    starts, ends = (np.searchsorted(samples[order], codes, side=side) for side in ("left", "right"))
    return {subject: order[start:end] for subject, start, end in zip(subjects, starts, ends, strict=True) if start < end}


def _means(metric: type[BaseMetric], name: str, scored: _Values, subjects: Mapping[str, int]) -> Iterator[_Aggregate]:
    micro = _mean(metric, scored)
    yield _Aggregate(name=name, subject=None, aggregation="micro", estimate=micro)
    members = {subject: scored.where(kept) for subject, kept in _by_subject(scored.subjects, subjects).items()}
    groups = {subject: _mean(metric, own) for subject, own in members.items()}
    if len(groups) > 1:
        macro = estimate_macro(
            list(groups.values()),
            proportion=_is_proportion(metric, scored.values),
            covariance=covariance_of_groups(scored.values, scored.subjects, scored.of_clusters),
            n_clusters=micro.n_clusters,
            bounds=_bounds(metric, scored.values),
            members=[own.values for own in members.values()],
        )
        yield _Aggregate(name=name, subject=None, aggregation="macro", estimate=macro)
    for subject, estimate in groups.items():
        yield _Aggregate(name=name, subject=subject, aggregation="micro", estimate=estimate)


def _of_items(metric: type[ItemMetric], name: str, scored: _Values, scores: Scores, subjects: Mapping[str, int]) -> Iterator[_Aggregate]:
    rows = scored.rows[scored.rows >= 0]
    values, texts = scores.values[rows].tolist(), scores.items.take(pa.array(rows)).to_pylist()
    stored = [{"value": None if math.isnan(value) else value, "item": text} for value, text in zip(values, texts, strict=True)]
    found = {row: item for row, each in zip(rows.tolist(), stored, strict=True) if (item := item_of(each)) is not None}

    def estimate(samples: _Values) -> Estimate:
        kept = np.array([place for place, row in enumerate(samples.rows.tolist()) if row in found], dtype=np.intp)
        items = [found[row] for row in samples.rows[kept].tolist()]
        before = [frozen(item) for item in items]
        try:
            with calling(f"the aggregate of the metric {name}"):
                clusters, n_errors = samples.where(kept).of_clusters, len(samples.rows) - len(kept)
                made = estimate_items(items, metric.aggregate, clusters=clusters, n_errors=n_errors)
        except Exception as problem:  # the aggregate is user code, and without it there is no metric
            raise DataError(f"the metric {name} could not aggregate its items: {described(problem)}") from problem
        if [frozen(item) for item in items] != before:
            raise DataError(f"the aggregate of the metric {name} changed items that it was given; expected it to leave them as they are")
        return made

    yield _Aggregate(name=name, subject=None, aggregation="corpus", estimate=estimate(scored))
    groups = {subject: estimate(scored.where(kept)) for subject, kept in _by_subject(scored.subjects, subjects).items()}
    if len(groups) > 1:
        macro = estimate_macro(list(groups.values()), proportion=False, bounds=metric.BOUNDS)
        yield _Aggregate(name=name, subject=None, aggregation="macro", estimate=macro)
    for subject, of_subject in groups.items():
        yield _Aggregate(name=name, subject=subject, aggregation="corpus", estimate=of_subject)


def _mean(metric: type[BaseMetric], scored: _Values) -> Estimate:
    values = scored.values
    return estimate_mean(values, proportion=_is_proportion(metric, values), clusters=scored.of_clusters, bounds=_bounds(metric, values))


def _is_proportion(metric: type[BaseMetric], values: Floats) -> bool:
    """Whether the interval is a proportion's. A score over several texts of a prompt may lie between 0 and 1.

    If a metric does not declare its values, both 0 and 1 must occur, and nothing else.
    """
    is_zero, is_one = values == 0, values == 1
    only_these = bool((is_zero | is_one | np.isnan(values)).all())
    return only_these if metric.IS_PROPORTION else metric.BOUNDS is None and only_these and bool(is_zero.any() and is_one.any())


def _bounds(metric: type[BaseMetric], values: Floats) -> tuple[float, float] | None:
    known = values[~np.isnan(values)]
    return known_bounds(metric, [float(known.min()), float(known.max())] if len(known) else [])


def _corpus(metric: type[CorpusMetric], statistics: Floats, samples: _Values, *, is_macro: bool = False) -> Estimate:
    try:
        with calling(f"the aggregate of the metric {metric.NAME}"):
            groups = samples.subjects if is_macro else None
            return estimate_corpus(statistics, metric.aggregate, clusters=samples.of_clusters, groups=groups)
    except Exception as problem:  # the aggregate is user code, and without it there is no metric
        raise DataError(f"the metric {metric.NAME} could not aggregate its statistics: {described(problem)}") from problem
