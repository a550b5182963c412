"""Compares the result of an eval and a model with its baseline and its anchor, metric by metric."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from eval_dagster.config.schema import GateConfig
from eval_dagster.errors import LakeError
from eval_dagster.gate.comparison import MetricComparison, changed_samples, compare_metric, compare_points, overall
from eval_dagster.gate.decision import Finding
from eval_dagster.gate.error_rates import ErrorRate, error_rate
from eval_dagster.gate.materializations import Point, PointName, history, point_at
from eval_dagster.gate.noise import measured_noise
from eval_dagster.gate.records import NEW_METRIC, NO_EARLIER_RESULT, Regression
from eval_dagster.gate.standings import Standing
from eval_dagster.metrics.base import BaseMetric
from eval_dagster.project import Project
from eval_dagster.statistics.comparison import Comparison
from eval_dagster.statistics.verdicts import Case, Verdict

_COMPARED = ("difference", "stderr", "ci_low", "ci_high", "p_value", "test", "n_common", "min_detectable")
"""Fields of a comparison that a row of `regressions` has too."""


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
        """All its materializations, the oldest first. Raises `LakeError` if the newest is damaged."""
        return history(self.project.lake, self.eval_name, self.model)

    def current(self) -> Point | None:
        """The result in question. Raises `LakeError` if it is damaged."""
        return PointName(model=self.model).find(self.project.lake, self.eval_name)

    def compare(self, current: Point, baseline: Point) -> Iterator[Finding]:
        """A finding for each metric that the suite is judged by."""
        found = {each.metric: each for each in compare_points(current, baseline, self._metrics, alpha=self.level)}
        for metric in self._judged_metrics(current):
            if metric in found:
                finding = self._compared(found[metric])
            elif metric in overall(baseline):
                reason = f"the code of {metric} is gone, which is needed to compare it"
                finding = Finding(row=replace(self.unjudged_row(Verdict.NOT_COMPARABLE, reason, current, baseline), metric=metric))
            else:
                finding = self._start(NEW_METRIC, metric, current, baseline)
            yield self._with_past(finding, metric, current, baseline)

    def first(self, current: Point) -> Iterator[Finding]:
        """The findings if there is nothing to compare with: later results are compared with this one.

        Results without a value, or with too many errors, are no first results. Red results stay red.
        """
        starts: list[Finding] = []
        for metric in self._judged_metrics(current):
            finding = self._with_past(self._start(NO_EARLIER_RESULT, metric, current), metric, current, None)
            if finding.row.verdict is not Verdict.FIRST_RESULT:
                yield finding
            elif finding.held is not None:
                yield replace(finding, row=replace(finding.row, reason="no result that passed is known"))
            else:
                starts.append(replace(finding, row=replace(finding.row, metric=None)))
        yield from starts[:1]

    def unjudged(self, verdict: Verdict, problem: str, current: Point | None) -> list[Finding]:
        """The findings if there is nothing to judge, or if it cannot be judged. Red results stay red."""
        row = self.unjudged_row(verdict, problem, current)
        return [Finding(row=_compared_as(row, held), held=held) for held in self.standing.red.values()] or [Finding(row=row)]

    def unjudged_row(self, verdict: Verdict, reason: str | None, current: Point | None = None, baseline: Point | None = None) -> Regression:
        """A row that says why there is no comparison."""
        return Regression(
            suite=self.suite,
            eval=self.eval_name,
            model=self.model,
            baseline=baseline.name() if baseline else None,
            verdict=verdict,
            reason=reason,
            materialized_at=current.materialized_at if current else None,
            baseline_materialized_at=baseline.materialized_at if baseline else None,
        )

    @property
    def _metrics(self) -> Sequence[type[BaseMetric[Any]]]:
        return self.project.task(self.eval_name).METRICS

    def _judged_metrics(self, current: Point) -> list[str]:
        return [metric for metric, row in overall(current).items() if self.gate.metrics == "all" or row["is_headline"]]

    def _with_past(self, finding: Finding, metric: str, current: Point, baseline: Point | None) -> Finding:
        """The finding with its error rate, the red state, and whether there is something new to test."""
        held, before = self._held(metric, current), point_at(self.points, self.standing.judged_at)
        same_as_before = before is not None and before.scores_version == current.scores_version
        same_as_baseline = baseline is not None and baseline.scores_version == current.scores_version
        is_tested = self.standing.judged_at is None or not (same_as_before or same_as_baseline)
        red = point_at(self.points, held.materialized_at) if held is not None else None
        return replace(
            finding,
            row=self._with_errors(finding.row, error_rate(current, baseline, metric)),
            held=held,
            before=self.standing.judged.get(metric) if same_as_before and not same_as_baseline else None,
            since_red=self._compared_with_red(metric, current, red) if red is not None and is_tested else None,
            is_as_red=red is not None and red.scores_version == current.scores_version,
            is_as_baseline=same_as_baseline,
            is_tested=is_tested,
        )

    def _held(self, metric: str, current: Point) -> Regression | None:
        """The red row of a metric. If no red metric is judged now, since it was renamed for instance: any red row."""
        red = self.standing.red
        is_lost = not set(red) & set(self._judged_metrics(current))
        return red.get(metric) or (next(iter(red.values()), None) if is_lost else None)

    def _compared_with_red(self, metric: str, current: Point, red: Point) -> Comparison | None:
        try:
            return compare_metric(current, red, metric, self._metrics, alpha=self.level)
        except LakeError:  # its scores were deleted: only the estimates show whether the result is better
            return None

    def _with_errors(self, row: Regression, rate: ErrorRate) -> Regression:
        row = replace(row, n_errors=rate.errors, n_evaluable=rate.samples)
        if not rate.samples or rate.errors / rate.samples <= self.gate.max_error_rate:
            return row
        of = "samples that the baseline could evaluate" if rate.is_of_baseline else "samples"
        reason = f"{rate.errors} of {rate.samples} {of} are errors; at most {self.gate.max_error_rate:g} of them may be (max_error_rate)"
        return replace(row, verdict=Verdict.ERRORS, reason=reason)

    def _start(self, reason: str, metric: str, current: Point, baseline: Point | None = None) -> Finding:
        has_value = overall(current)[metric]["value"] is not None
        verdict, reason = (Verdict.FIRST_RESULT, reason) if has_value else (Verdict.NOT_COMPARABLE, f"the result has no value of {metric}")
        return Finding(row=replace(self.unjudged_row(verdict, reason, current, baseline), metric=metric), is_start=has_value)

    def _compared(self, each: MetricComparison) -> Finding:
        known = each.comparison
        noise = measured_noise(each.a, self.points, each.metric)
        row = replace(
            self.unjudged_row(Verdict.NOT_COMPARABLE, None, each.a, each.b),
            metric=each.metric,
            value=known.value_a,
            baseline_value=known.value_b,
            n_only_value=known.n_only_a,
            n_only_baseline=known.n_only_b,
            noise_floor=None if noise is None else noise.difference,
            higher_is_better=each.higher_is_better,
            cause=", ".join(each.causes),
            **{name: getattr(known, name) for name in _COMPARED},
        )
        case = Case(
            comparison=known,
            higher_is_better=each.higher_is_better,
            smallest_difference=self.gate.smallest_difference,
            noise_floor=0.0 if noise is None else noise.difference,
        )
        row, drift = self._drift(row, case, each)
        changes = list(changed_samples(each.a, each.b, each.metric))
        return Finding(row=row, step=case, drift=drift, is_to_confirm=self.gate.confirm, changes=changes)

    def _drift(self, row: Regression, case: Case, each: MetricComparison) -> tuple[Regression, Case | None]:
        """The row and its comparison with the anchor; none if the anchor is the baseline, was deleted, or has too little in common."""
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


def _compared_as(row: Regression, held: Regression) -> Regression:
    """The row with the points that the red state was compared with."""
    names = ("metric", "baseline", "baseline_materialized_at", "anchor", "anchor_materialized_at", "higher_is_better")
    return replace(row, **{name: getattr(held, name) for name in names})
