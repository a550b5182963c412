"""Earlier states of one version that are together the baseline of a proof.

States of one model that was asked the same differ by chance alone, so the mean of their scores is a baseline with less of it. The proof
that a result is not worse then takes fewer samples. A red verdict is about one state.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import dropwhile, takewhile
from typing import Any, TypeAlias

import pyarrow as pa

from eval_dagster.errors import LakeError
from eval_dagster.gate.looks import is_part
from eval_dagster.gate.scored_again import is_same_ruler
from eval_dagster.gate.standings import Standings
from eval_dagster.lake.files import LOG_CONTENT
from eval_dagster.lake.tables.columns import MetricRow
from eval_dagster.metrics.base import BaseMetric
from eval_dagster.project import Project
from eval_dagster.results.comparison import compare_metric
from eval_dagster.results.materializations import Materialization, overall
from eval_dagster.stages.answer_counts import stored_mixed_counts
from eval_dagster.statistics.paired import Comparison

Compared: TypeAlias = tuple[Materialization, Comparison]
"""A state, and the result in question compared with it."""
Metrics: TypeAlias = Sequence[type[BaseMetric[Any]]]


@dataclass(frozen=True, kw_only=True)
class Pool(Materialization):
    """Several states as one: the score of a sample is its mean over the states that have a value for it."""

    states: tuple[Materialization, ...]
    """The oldest first."""

    @cached_property
    def metric_rows(self) -> Sequence[MetricRow]:
        """The rows of `metrics` of the newest state."""
        return self.states[-1].metric_rows

    @cached_property
    def asked_table(self) -> pa.Table:
        """Its `sample_id`, `metric` and `error` columns, without errors. Samples that are errors in all states are left out."""
        return pa.concat_tables(each.asked_table.filter(each.asked_table["error"].is_null()) for each in self.states)

    def scores_of(self, metric: str) -> pa.Table:
        """The columns `sample_id`, `subject`, `cluster` and `value` of a metric. Raises `LakeError` if scores were deleted."""
        columns = ("sample_id", "subject", "cluster", "value")
        rows = pa.concat_tables(each.scores_of(metric).select(columns) for each in self.states)
        # Not by threads, whose order would be another one each time.
        found = rows.group_by("sample_id", use_threads=False).aggregate([("subject", "first"), ("cluster", "first"), ("value", "mean")])
        return found.rename_columns({"subject_first": "subject", "cluster_first": "cluster", "value_mean": "value"}).select(columns)


@dataclass(frozen=True)
class Pooling:
    """Finds the states that are pooled in a suite's proofs."""

    project: Project
    suite: str
    standings: Standings

    def comparisons(
        self,
        compared: Sequence[Compared],
        current: Materialization,
        metric: str,
        metrics: Metrics,
        *,
        points: Sequence[Materialization],
        since: datetime | None,
    ) -> Sequence[Compared]:
        """The comparisons of a proof, with pools in the place of the baseline and the anchor.

        The pool of the baseline has the newest states up to it, and the pool of the anchor the oldest states from it on, so that a slow
        drift is not averaged away. If both have the same states, there is one comparison.

        Args:
            compared: The comparisons with the baseline, and with the anchor if it is another state.
            current: The result in question.
            metric: Name of the metric.
            metrics: The task's metrics.
            points: All materializations of its eval for its model, the oldest first.
            since: Time of the anchor. Earlier states are not pooled.
        """
        (baseline, found), *anchors = compared
        is_whole = type(baseline) is Materialization and baseline.scores_version != current.scores_version
        if found.heaviest is None or not is_whole or self.project.suite(self.suite).gate.pool == 1:
            return compared
        try:
            between = [
                each
                for each in points
                if each.materialized_at <= baseline.materialized_at and (since is None or each.materialized_at >= since)
            ]
            pools = [self._pool(baseline, reversed(between), metric), *(self._pool(anchor, between, metric) for anchor, _ in anchors)]
            if len({pooled_times(each) for each in pools}) == 1 and isinstance(pools[0], Pool):
                pools = pools[:1]
            return [
                (pool, compare_metric(current, pool, metric, metrics) or comparison if isinstance(pool, Pool) else comparison)
                for pool, (_, comparison) in zip(pools, compared, strict=False)
            ]
        except LakeError:  # a file of an earlier state is damaged
            return compared

    def size(self, points: Sequence[Materialization], metric: str) -> float:
        """States that are together the baseline of the proof of the next result, if the newest that passed is its baseline.

        States with the same scores are one set of draws, so they count by the inverse of the sum of the squared shares of all sets.
        1 without a pool.

        Args:
            points: All materializations of an eval for a model, the oldest first.
            metric: Name of the metric.
        """
        if self.project.suite(self.suite).gate.pool == 1 or not points:
            return 1.0
        standing = self.standings.of((points[-1].eval_name, points[-1].model), metric)
        since, until = standing.anchor_at, standing.baseline_at
        known = [
            each for each in points if (until is None or each.materialized_at <= until) and (since is None or each.materialized_at >= since)
        ]
        if not known or metric not in overall(known[-1]):
            return 1.0
        pool = self._pool(known[-1], reversed(known), metric)
        if not isinstance(pool, Pool):
            return 1.0
        counts = Counter(each.scores_version for each in pool.states)
        return len(pool.states) ** 2 / sum(count**2 for count in counts.values())

    def _pool(self, state: Materialization, others: Iterable[Materialization], metric: str) -> Materialization:
        """The pool of a state and those that follow it in `others`, up to the first of another version. The state if none is like it."""
        following = dropwhile(lambda point: point.materialized_at != state.materialized_at, others)
        alike = [
            point
            for point in takewhile(lambda point: point.versions == state.versions, following)
            if not (is_part(point) or LOG_CONTENT in point.metrics.info.inputs or stored_mixed_counts(point.metrics.info.counts))
            and metric in overall(point)
            and is_same_ruler(state, point, metric)
        ]
        if len(alike) < 2 or alike[0].materialized_at != state.materialized_at:
            return state
        passed = self._passed((state.eval_name, state.model), metric, min(point.materialized_at for point in alike))
        good = [state, *(point for point in alike[1:] if passed.get(point.materialized_at) and point.has_scores)]
        chosen = sorted(good[: self.project.suite(self.suite).gate.pool], key=lambda point: point.materialized_at)
        if len(chosen) == 1:
            return state
        return Pool(lake=state.lake, eval_name=state.eval_name, model=state.model, metrics=state.metrics, states=tuple(chosen))

    def _passed(self, key: tuple[str, str], metric: str, since: datetime) -> Mapping[datetime, bool]:
        """The states that this suite judged since a time, and whether each passed by all its judgements and was red in no other suite."""
        found = {time: all(passes) for time, (passes, _) in self.standings.judged_since(key, metric, since).items()}
        for other in self._others:
            for time, (_, reds) in other.judged_since(key, metric, since).items():
                found[time] = found.get(time, False) and not any(reds)
        return found

    @cached_property
    def _others(self) -> Sequence[Standings]:
        """The standings of the other suites."""
        return [Standings(self.project.lake, name) for name in self.project.config.suites if name != self.suite]


def pooled_times(state: Materialization) -> tuple[datetime, ...]:
    """The times of the states of a pool, the oldest first. Empty if it is a single state."""
    return tuple(each.materialized_at for each in state.states) if isinstance(state, Pool) else ()
