"""Aggregates the scores of samples to metrics of an eval: overall, by subject, and over subjects with equal weight."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

import numpy as np

from eval_dagster.errors import DataError, described
from eval_dagster.lake.tables.columns import MetricRow, ScoreRow
from eval_dagster.metrics.base import (
    BaseMetric,
    CorpusMetric,
    Item,
    ItemMetric,
    bounds_of,
    declared_headline,
    frozen,
    headline_name,
    is_higher_better,
    item_of,
    known_bounds,
    response_kind,
)
from eval_dagster.records import Loglikelihood, ResponseType
from eval_dagster.stages.scores import headline, metric_versions, statistic_names
from eval_dagster.statistics.estimates import Estimate, covariance_of_groups, estimate_corpus, estimate_items, estimate_macro, estimate_mean
from eval_dagster.statistics.prompt_effects import PromptEffect, prompt_effect
from eval_dagster.tasks.base import BaseTask
from eval_dagster.tasks.benchmark import AdapterTask, BenchmarkMetric, metric_class
from eval_dagster.tasks.variants import question_of
from eval_dagster.users_code import calling

Aggregation = Literal["micro", "macro", "corpus"]
"""Mean of the samples; mean of the subjects' values; metric of the samples together."""
Figure = Literal["value", "stderr", "ci_low", "ci_high", "n", "n_errors"]
"""A column of `metrics` that a variant has, too."""


@dataclass(frozen=True, kw_only=True)
class _Scored:
    """One sample under one metric."""

    subject: str
    cluster: str
    values: Mapping[str, float | None]
    """Values by score name: the metric's name, alone or with a slash and a part."""
    items: Mapping[str, Item]
    """The items for metrics of all samples together, by the same names."""
    failed: bool
    """Whether the metric returned only an error."""


@dataclass(frozen=True, kw_only=True)
class _Aggregate:
    """An estimate with the samples that it covers."""

    name: str
    subject: str | None
    aggregation: Aggregation
    estimate: Estimate


def metric_rows(task: type[BaseTask[Any]], scores: Sequence[ScoreRow]) -> list[MetricRow]:
    """The rows of an eval's metrics: overall first, then by subject if there are several.

    With several subjects, there is a second overall row: the mean of the subjects' values.

    Raises:
        DataError: The aggregate of a corpus metric failed.
    """
    scored = _by_metric(scores)
    tied = {(row["metric"].split("/")[0], row["subject"], row["sample_id"]) for row in scores if '"tie"' in (row.get("explanation") or "")}
    ties: dict[str, Counter[str]] = defaultdict(Counter)  # by metric, the samples of each subject with several equally good choices
    for name, subject, _ in tied:
        ties[name][subject] += 1
    subjects = sorted({row["subject"] for row in scores})
    metrics = list(task.METRICS)
    if issubclass(task, AdapterTask):  # a benchmark may return values under further names, which are averaged
        names = {metric.NAME for metric in metrics}
        metrics += [metric_class(BenchmarkMetric(name=name), task.VERSION) for name in scored if name not in names]
    versions = metric_versions(task, metrics)
    rows: list[MetricRow] = []
    for metric in metrics:
        found = list(_aggregates(metric, scored[metric.NAME], subjects if len(subjects) > 1 else []))
        low, high = bounds_of(metric) or (None, None)
        # The leaderboard shows the overall row, or the mean of the subjects' values if the task chooses it.
        shown = None
        if found and metric is headline(task):
            shown_name = headline_name(metric, dict.fromkeys(each.name for each in found if each.subject is None))
            overall = [each for each in found if each.name == shown_name and each.subject is None]
            macro = [each for each in overall if each.aggregation == "macro"]
            shown = next(iter(macro if macro and task.HEADLINE_AGGREGATION == "macro" else overall), None)
        compares = response_kind(metric) is Loglikelihood or getattr(task, "RESPONSE_TYPE", None) is ResponseType.LOGLIKELIHOODS
        of_metric = ties[metric.NAME]
        rows += [
            cast(
                MetricRow,
                {
                    **asdict(each.estimate),
                    "metric": each.name,
                    "aggregation": each.aggregation,
                    "subject": each.subject,
                    "higher_is_better": is_higher_better(metric, each.name),
                    "bound_low": low,
                    "bound_high": high,
                    "is_headline": each is shown,
                    "metric_version": versions[metric.NAME],
                    "n_ties": (of_metric.total() if each.subject is None else of_metric[each.subject]) if of_metric or compares else None,
                },
            )
            for each in found
        ]
    return sorted(rows, key=lambda row: row["subject"] is not None)


def variants_columns(task: type[BaseTask[Any]], scores: Sequence[ScoreRow], rows: Sequence[MetricRow]) -> list[str | None]:
    """The column `variants` of each row of an eval's metrics: the metric by variant, and the effect of the prompt on it.

    Args:
        task: The task.
        scores: The scores of all variants.
        rows: The metrics, as returned by `metric_rows`.
    """
    by_variant: dict[str, list[ScoreRow]] = defaultdict(list)
    for score in scores:
        if (variant := score.get("variant")) is not None:
            by_variant[variant].append(score)
    if len(by_variant) < 2:
        return [None] * len(rows)
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


def _prompt_effect(row: MetricRow, by_variant: Mapping[str, Sequence[ScoreRow]]) -> PromptEffect:
    """The effect of the prompt on a metric that is a mean of its samples, or of its subjects' means."""
    names = list(by_variant)
    questions: dict[str, ScoreRow] = {}
    values: dict[str, dict[str, float]] = {name: {} for name in names}
    for name in names:
        for score in by_variant[name]:
            if score["metric"] == row["metric"]:
                question = question_of(score["sample_id"], name)
                questions.setdefault(question, score)
                if score["value"] is not None:
                    values[name][question] = score["value"]
    matrix = np.array([[values[name].get(question, np.nan) for name in names] for question in questions], dtype=float)
    return prompt_effect(
        matrix.reshape(len(questions), len(names)),
        [score["cluster"] for score in questions.values()],
        [score["subject"] for score in questions.values()] if row["aggregation"] == "macro" else None,
    )


def _by_metric(scores: Sequence[ScoreRow]) -> dict[str, list[_Scored]]:
    samples: dict[tuple[str, str], list[ScoreRow]] = defaultdict(list)
    for row in scores:
        samples[row["metric"].split("/")[0], row["sample_id"]].append(row)
    scored: dict[str, list[_Scored]] = defaultdict(list)
    for (metric, _), rows in samples.items():
        first = rows[0]
        scored[metric].append(
            _Scored(
                subject=first["subject"],
                cluster=first["cluster"],
                values={row["metric"]: row["value"] for row in rows},
                items={row["metric"]: item for row in rows if (item := item_of(row)) is not None},
                failed=len(rows) == 1 and first["metric"] == metric and item_of(first) is None,
            )
        )
    return scored


def _aggregates(metric: type[BaseMetric], scored: Sequence[_Scored], subjects: Sequence[str]) -> Iterator[_Aggregate]:
    if not scored:
        return
    if issubclass(metric, CorpusMetric):
        yield _Aggregate(name=metric.NAME, subject=None, aggregation="corpus", estimate=_corpus(metric, scored))
        groups = _by_subject(scored, subjects)
        if len(groups) > 1:
            yield _Aggregate(name=metric.NAME, subject=None, aggregation="macro", estimate=_corpus(metric, scored, is_macro=True))
        for subject, samples in groups.items():
            yield _Aggregate(name=metric.NAME, subject=subject, aggregation="corpus", estimate=_corpus(metric, samples))
        return
    names = dict.fromkeys(name for sample in scored if not sample.failed for name in sample.values)
    for name in names or [declared_headline(metric) or metric.NAME]:
        # A failed sample counts as an error under every name. Another sample may lack a name that does not apply to it.
        of_name = [sample for sample in scored if sample.failed or name in sample.values]
        if issubclass(metric, ItemMetric):
            yield from _of_items(metric, name, of_name, subjects)
        else:
            yield from _means(metric, name, of_name, subjects)


def _by_subject(scored: Sequence[_Scored], subjects: Sequence[str]) -> dict[str, list[_Scored]]:
    groups: dict[str, list[_Scored]] = {subject: [] for subject in subjects}
    for sample in scored if subjects else ():
        groups[sample.subject].append(sample)
    return {subject: samples for subject, samples in groups.items() if samples}


def _means(metric: type[BaseMetric], name: str, scored: Sequence[_Scored], subjects: Sequence[str]) -> Iterator[_Aggregate]:
    micro = _mean(metric, name, scored)
    yield _Aggregate(name=name, subject=None, aggregation="micro", estimate=micro)
    groups = {subject: _mean(metric, name, samples) for subject, samples in _by_subject(scored, subjects).items()}
    if len(groups) > 1:
        values = [sample.values.get(name) for sample in scored]
        shared = covariance_of_groups(values, [sample.subject for sample in scored], [sample.cluster for sample in scored])
        macro = estimate_macro(
            list(groups.values()),
            proportion=_is_proportion(metric, values),
            covariance=shared,
            n_clusters=micro.n_clusters,
            bounds=known_bounds(metric, values),
            members=[[sample.values.get(name) for sample in samples] for samples in _by_subject(scored, subjects).values()],
        )
        yield _Aggregate(name=name, subject=None, aggregation="macro", estimate=macro)
    for subject, estimate in groups.items():
        yield _Aggregate(name=name, subject=subject, aggregation="micro", estimate=estimate)


def _of_items(metric: type[ItemMetric], name: str, scored: Sequence[_Scored], subjects: Sequence[str]) -> Iterator[_Aggregate]:
    def estimate(samples: Sequence[_Scored]) -> Estimate:
        kept = [sample for sample in samples if name in sample.items]
        items, clusters = [sample.items[name] for sample in kept], [sample.cluster for sample in kept]
        before = [frozen(item) for item in items]
        try:
            with calling(f"the aggregate of the metric {name}"):
                found = estimate_items(items, metric.aggregate, clusters=clusters, n_errors=len(samples) - len(kept))
        except Exception as problem:  # the aggregate is user code, and without it there is no metric
            raise DataError(f"the metric {name} could not aggregate its items: {described(problem)}") from problem
        if [frozen(item) for item in items] != before:
            raise DataError(f"the aggregate of the metric {name} changed items that it was given; expected it to leave them as they are")
        return found

    yield _Aggregate(name=name, subject=None, aggregation="corpus", estimate=estimate(scored))
    groups = {subject: estimate(samples) for subject, samples in _by_subject(scored, subjects).items()}
    if len(groups) > 1:
        macro = estimate_macro(list(groups.values()), proportion=False, bounds=metric.BOUNDS)
        yield _Aggregate(name=name, subject=None, aggregation="macro", estimate=macro)
    for subject, of_subject in groups.items():
        yield _Aggregate(name=name, subject=subject, aggregation="corpus", estimate=of_subject)


def _mean(metric: type[BaseMetric], name: str, scored: Sequence[_Scored]) -> Estimate:
    values = [sample.values.get(name) for sample in scored]
    clusters = [sample.cluster for sample in scored]
    return estimate_mean(values, proportion=_is_proportion(metric, values), clusters=clusters, bounds=known_bounds(metric, values))


def _is_proportion(metric: type[BaseMetric], values: Sequence[float | None]) -> bool:
    """Whether the interval is a proportion's. A score over several texts of a prompt may lie between 0 and 1.

    If a metric does not declare its values, both 0 and 1 must occur, and nothing else.
    """
    seen = {value for value in values if value is not None}
    return seen <= {0.0, 1.0} if metric.IS_PROPORTION else metric.BOUNDS is None and seen == {0.0, 1.0}


def _corpus(metric: type[CorpusMetric], scored: Sequence[_Scored], *, is_macro: bool = False) -> Estimate:
    names = statistic_names(metric)
    statistics = np.array([[sample.values.get(name) for name in names] for sample in scored], dtype=float)
    clusters, subjects = [sample.cluster for sample in scored], [sample.subject for sample in scored]
    try:
        with calling(f"the aggregate of the metric {metric.NAME}"):
            return estimate_corpus(statistics, metric.aggregate, clusters=clusters, groups=subjects if is_macro else None)
    except Exception as problem:  # the aggregate is user code, and without it there is no metric
        raise DataError(f"the metric {metric.NAME} could not aggregate its statistics: {described(problem)}") from problem
