"""A fall that a test found, and its test by fresh answers: for means of samples, and for metrics of all samples together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from eval_dagster.gate.materializations import Point, overall
from eval_dagster.gate.records import Against, FreshSample, Regression
from eval_dagster.metrics.base import BaseMetric, CorpusMetric
from eval_dagster.metrics.items import ItemMetric, item_of
from eval_dagster.stages.fresh_answers import FreshAnswers
from eval_dagster.stages.scores import statistic_names
from eval_dagster.statistics.fresh_answers import FreshTest, fresh_test, fresh_test_of_corpora, fresh_test_of_items, level_of_fresh

Scores: TypeAlias = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Rows of `scores` by metric and sample."""
Content: TypeAlias = tuple[Any, ...]
"""The value, the item or the statistics of one sample. A metric is computed from those of all samples."""


@dataclass(frozen=True, kw_only=True)
class Fall:
    """A row, and the state that its result is worse than."""

    row: Regression
    against: Against
    now: Point
    before: Point
    level: float
    """Two-sided level of the judgement."""
    metrics: Sequence[type[BaseMetric[Any]]]
    """The task's metrics."""

    @property
    def metric(self) -> str:
        """The name of the metric."""
        return self.row.metric or ""

    @cached_property
    def of_all(self) -> type[BaseMetric[Any]] | None:
        """The class of a metric of all samples together; None for a mean."""
        if not any(row["metric"] == self.metric and row["aggregation"] == "corpus" for row in self.now.metric_rows):
            return None
        return next(metric for metric in self.metrics if self.metric.partition("/")[0] == metric.NAME)

    @property
    def p_value(self) -> float:
        """Of the test that found the fall, two-sided."""
        return (self.row.p_value if self.against == "baseline" else self.row.drift_p_value) or 0.0

    @cached_property
    def contents(self) -> dict[str, tuple[Content, Content]]:
        """The contents now and before, of each sample that has both."""
        now, before = self.contents_in(self.now.scores_by_metric), self.contents_in(self.before.scores_by_metric)
        return {name: (now[name], before[name]) for name in sorted(now) if name in before}

    @property
    def rows(self) -> Mapping[str, Mapping[str, Any]]:
        """A row of `scores` of each sample, which has its cluster and its subject."""
        return self.now.scores_by_metric[self._names[0]]

    @property
    def flipped(self) -> set[str]:
        """The samples that are scored differently."""
        return {name for name, (now, before) in self.contents.items() if now != before}

    @property
    def _names(self) -> list[str]:
        return statistic_names(self.of_all) if self.of_all is not None and issubclass(self.of_all, CorpusMetric) else [self.metric]

    def contents_in(self, scores: Scores) -> dict[str, Content]:
        """The content of each sample that has one."""
        columns = [scores.get(name, {}) for name in self._names]
        if self.of_all is not None and issubclass(self.of_all, ItemMetric):
            found = {name: (row["value"], row["item"]) for name, row in columns[0].items()}
            return {name: content for name, content in found.items() if content != (None, None)}
        values = {name: tuple(column.get(name, {}).get("value") for column in columns) for name in columns[0]}
        return {name: content for name, content in values.items() if None not in content}

    def tested(self, fresh: FreshAnswers, asked_whole: set[str]) -> FreshTest | None:
        """The test by fresh answers; None where they do not suffice. `asked_whole` are the rows of the dataset that were all asked."""
        found, is_better = self.contents_in(fresh.scores), bool(self.row.higher_is_better)
        names = [name for name in self.contents if self.of_all is None or name in found]
        now, before = [self.contents[name][0] for name in names], [self.contents[name][1] for name in names]
        clusters = [self.rows[name]["cluster"] for name in names]
        if self.of_all is None:
            is_macro = overall(self.now)[self.metric]["aggregation"] == "macro"
            return fresh_test(
                [value for (value,) in now],
                [value for (value,) in before],
                [found[name][0] if name in found else None for name in names],
                is_flipped=[self.rows[name]["source_id"] in asked_whole for name in names],
                higher_is_better=is_better,
                clusters=clusters,
                subjects=[self.rows[name]["subject"] for name in names] if is_macro else None,
            )
        again = [found[name] for name in names]
        if issubclass(self.of_all, CorpusMetric):
            a, b, c = (np.array(side, dtype=float).reshape(len(names), -1) for side in (now, before, again))
            return fresh_test_of_corpora(a, b, c, self.of_all.aggregate, clusters=clusters, higher_is_better=is_better)
        assert issubclass(self.of_all, ItemMetric)
        triples = [tuple(item_of({"value": value, "item": item}) for value, item in each) for each in zip(now, before, again, strict=True)]
        return fresh_test_of_items(triples, self.of_all.aggregate, clusters=clusters, higher_is_better=is_better)

    def level_for(self, found: FreshTest) -> float:
        """The one-sided level of the test by fresh answers."""
        is_step = self.against == "baseline"
        adjusted = self.row.p_adjusted if is_step else self.row.drift_p_adjusted
        own = self.level * self.p_value / adjusted if adjusted and self.p_value else self.level  # what Holm's correction left
        fall = abs((self.row.difference if is_step else self.row.drift) or 0.0)
        return level_of_fresh(fall, self.p_value, own, found.stderr)

    def fresh_samples(self, fresh: FreshAnswers) -> list[FreshSample]:
        """The samples of the comparison that were asked again."""
        again, flipped = self.contents_in(fresh.scores), self.flipped
        is_valued = self.of_all is None
        return [
            FreshSample(
                eval=self.row.eval,
                model=self.row.model,
                metric=self.metric,
                against=self.against,
                sample_id=name,
                is_flipped=name in flipped,
                value=now[0] if is_valued else None,
                baseline_value=before[0] if is_valued else None,
                fresh_value=again[name][0] if is_valued and name in again else None,
                has_fresh_score=name in again,
                fresh_answer=fresh.texts.get(name),
                sample_name=self.rows[name].get("sample_name"),
            )
            for name, (now, before) in self.contents.items()
            if name in fresh.texts
        ]
