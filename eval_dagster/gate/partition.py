"""An eval and a model of a suite: its result compared with its baseline and its anchor, metric by metric."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from eval_dagster.config import GateConfig
from eval_dagster.errors import LakeError
from eval_dagster.gate.comparing import MetricComparison, changed_samples, compare_metric, compare_points, overall
from eval_dagster.gate.deciding import Finding
from eval_dagster.gate.error_rates import ErrorRate, error_rate
from eval_dagster.gate.noise import measured_noise
from eval_dagster.gate.points import Point, PointName, history, point_at
from eval_dagster.gate.records import NO_EARLIER_RESULT, ChangedSample, Regression
from eval_dagster.gate.standings import Standing
from eval_dagster.metrics.base import BaseMetric
from eval_dagster.paired import Comparison
from eval_dagster.paired_suites import Case, Verdict
from eval_dagster.project import Project


@dataclass(frozen=True)
class Partition:
    """An eval and a model of a suite."""

    project: Project
    suite: str
    gate: GateConfig
    level: float
    eval_name: str
    model: str
    standing: Standing

    @cached_property
    def points(self) -> list[Point]:
        """All its materializations, the oldest first. Raises `LakeError` where the newest is damaged."""
        return history(self.project.lake, self.eval_name, self.model)

    def current(self) -> Point | None:
        """The result in question. Raises `LakeError` where it is damaged."""
        return PointName(model=self.model).find(self.project.lake, self.eval_name)

    def compare(self, current: Point, baseline: Point) -> Iterator[Finding]:
        """A finding for each metric that the suite is judged by."""
        found = {each.metric: each for each in compare_points(current, baseline, self._metrics, alpha=self.level)}
        is_tested = self._is_tested(current, baseline)
        judged = self._judged_metrics(current)
        for metric in judged:
            finding = self._compared(found[metric]) if metric in found else self._start(metric, current, baseline)
            rate = error_rate(current, baseline, metric)
            held = self.standing.red.get(metric) or (next(iter(self.standing.red.values()), None) if self._has_lost_red(judged) else None)
            finding = replace(finding, row=self._with_errors(finding.row, rate), held=held, is_tested=is_tested)
            yield replace(finding, since_red=self._since_red(metric, current)) if held is not None and is_tested else finding

    def first(self, current: Point) -> Iterator[Finding]:
        """The findings where there is nothing to compare with: that the result is one to compare with, unless too much of it is errors."""
        for metric in self._judged_metrics(current):
            rate = error_rate(current, None, metric)
            row = self._with_errors(replace(self.incomparable(NO_EARLIER_RESULT, current), metric=metric), rate)
            yield Finding(row=row if row.verdict is Verdict.ERRORS else replace(row, metric=None), is_start=True)
            if row.verdict is not Verdict.ERRORS:
                return

    def unjudged(self, problem: str, current: Point | None) -> list[Finding]:
        """The findings where the last evaluation failed: what was red stays red."""
        if not self.standing.red:
            return [Finding(row=self.incomparable(problem, current))]
        return [
            Finding(row=replace(self.incomparable(problem, current), metric=metric), held=held)
            for metric, held in self.standing.red.items()
        ]

    def incomparable(self, reason: str | None, current: Point | None = None, baseline: Point | None = None) -> Regression:
        """A row that says why there is no comparison."""
        return Regression(
            suite=self.suite,
            eval=self.eval_name,
            model=self.model,
            baseline=baseline.name() if baseline else None,
            verdict=Verdict.NOT_COMPARABLE,
            reason=reason,
            materialized_at=current.materialized_at if current else None,
            baseline_materialized_at=baseline.materialized_at if baseline else None,
        )

    @property
    def _metrics(self) -> Sequence[type[BaseMetric[Any]]]:
        return self.project.task(self.eval_name).METRICS

    def _judged_metrics(self, current: Point) -> list[str]:
        return [metric for metric, row in overall(current).items() if self.gate.metrics == "all" or row["is_headline"]]

    def _has_lost_red(self, judged: Sequence[str]) -> bool:
        """Whether no metric that regressed is judged any more, as where it was renamed."""
        return not set(self.standing.red) & set(judged)

    def _is_tested(self, current: Point, baseline: Point) -> bool:
        """Whether the result has other scores than the baseline and than the state that was judged before."""
        if self.standing.judged_at is None:
            return True
        before = point_at(self.points, self.standing.judged_at)
        return current.scores_version not in (baseline.scores_version, before.scores_version if before else None)

    def _since_red(self, metric: str, current: Point) -> Comparison | None:
        red = point_at(self.points, self.standing.judged_at)
        try:
            return None if red is None else compare_metric(current, red, metric, self._metrics, alpha=self.level)
        except LakeError:  # its scores are gone: the estimates alone tell whether the result is better
            return None

    def _with_errors(self, row: Regression, rate: ErrorRate) -> Regression:
        row = replace(row, n_errors=rate.errors, n_evaluable=rate.samples)
        if not rate.samples or rate.errors / rate.samples <= self.gate.max_error_rate:
            return row
        of = "samples that the baseline could evaluate" if rate.is_of_baseline else "samples"
        reason = f"{rate.errors} of {rate.samples} {of} are errors; at most {self.gate.max_error_rate:g} of them may be (max_error_rate)"
        return replace(row, verdict=Verdict.ERRORS, reason=reason)

    def _start(self, metric: str, current: Point, baseline: Point) -> Finding:
        reason = f"the baseline has no value of {metric}, or its code is gone; later results are compared with this one"
        return Finding(row=replace(self.incomparable(reason, current, baseline), metric=metric), is_start=True)

    def _compared(self, each: MetricComparison) -> Finding:
        known = each.comparison
        noise = measured_noise(each.a, self.points, each.metric)
        row = replace(
            self.incomparable(None, each.a, each.b),
            metric=each.metric,
            value=known.value_a,
            baseline_value=known.value_b,
            difference=known.difference,
            stderr=known.stderr,
            ci_low=known.ci_low,
            ci_high=known.ci_high,
            p_value=known.p_value,
            test=known.test,
            n_common=known.n_common,
            n_only_value=known.n_only_a,
            n_only_baseline=known.n_only_b,
            min_detectable=known.min_detectable,
            noise_floor=None if noise is None else noise.difference,
            higher_is_better=each.higher_is_better,
            cause=", ".join(each.causes),
        )
        case = Case(
            comparison=known,
            higher_is_better=each.higher_is_better,
            smallest_difference=self.gate.smallest_difference,
            noise_floor=0.0 if noise is None else noise.difference,
        )
        row, drift = self._drift(row, case, each)
        return Finding(row=row, step=case, drift=drift, is_start=self._is_disjoint(known), changes=list(self._changes(each)))

    def _drift(self, row: Regression, case: Case, each: MetricComparison) -> tuple[Regression, Case | None]:
        """The row with its comparison with the anchor; none where that is the baseline, gone, or has nothing in common."""
        anchor = point_at(self.points, self.standing.anchor_at(each.metric))
        if anchor is None or anchor.materialized_at == each.a.materialized_at or not anchor.has_scores:
            return row, None
        if anchor.materialized_at == each.b.materialized_at:
            return replace(row, anchor_materialized_at=anchor.materialized_at), None
        found = compare_metric(each.a, anchor, each.metric, self._metrics, alpha=self.level)
        if found is None or found.p_value is None or found.n_common < found.n_only_b:
            return row, None
        row = replace(
            row,
            anchor=anchor.name(),
            anchor_value=found.value_b,
            drift=found.difference,
            drift_p_value=found.p_value,
            anchor_materialized_at=anchor.materialized_at,
        )
        return row, replace(case, comparison=found)

    def _is_disjoint(self, known: Comparison) -> bool:
        """Whether result and baseline have values, but of other samples alone."""
        return self.standing.baseline_at is not None and not known.n_common and bool(known.n_only_a and known.n_only_b)

    def _changes(self, each: MetricComparison) -> Iterator[ChangedSample]:
        for change in changed_samples(each.a, each.b, each.metric):
            yield ChangedSample(
                suite=self.suite,
                eval=self.eval_name,
                model=self.model,
                metric=change.metric,
                sample_id=change.sample_id,
                subject=change.subject,
                value=change.value_a,
                baseline_value=change.value_b,
                prompt=change.prompt,
                gold=change.gold,
                answer=change.answer_a,
                baseline_answer=change.answer_b,
            )
