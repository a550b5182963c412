"""Compares the result of an eval and a model with its baseline and its anchor, metric by metric."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from itertools import chain
from typing import Any

from eval_dagster.config.gate import GateConfig
from eval_dagster.errors import EvalDagsterError, LakeError
from eval_dagster.gate.asked_part import AskedPart
from eval_dagster.gate.decision import Finding
from eval_dagster.gate.error_rates import asked_samples, error_rate, n_lost
from eval_dagster.gate.looks import LookedAt, is_part, looked_at, plan_key
from eval_dagster.gate.noise import measured_noise
from eval_dagster.gate.pooling import Pooling, pooled_times
from eval_dagster.gate.proof import Proof, default_margin
from eval_dagster.gate.records import NEW_METRIC, NO_EARLIER_RESULT, minute
from eval_dagster.gate.scored_again import Rescorer, ScoredAgain
from eval_dagster.gate.standings import Baseline, Standing, Standings
from eval_dagster.lake.format.parquet_files import time_of
from eval_dagster.metrics.base import BaseMetric
from eval_dagster.project import Project
from eval_dagster.records.judgements import Regression, Verdict
from eval_dagster.results.comparison import causes, changed_samples, compare_metric
from eval_dagster.results.materializations import (
    Materialization,
    MaterializationName,
    history,
    is_estimate,
    materialization_at,
    n_values,
    overall,
    previous_materialization,
    require_no_estimate,
    with_rows,
)
from eval_dagster.stages.looks import NOT_ASKED, STOP_REASON, STOPPED_BY
from eval_dagster.statistics.noninferiority import LEVEL
from eval_dagster.statistics.paired import Comparison
from eval_dagster.statistics.verdicts import Case

_COMPARED = ("difference", "stderr", "ci_low", "ci_high", "p_value", "test", "n_common", "min_detectable")
"""Fields of a comparison that are also in a row of `regressions`."""
_OF_RED = ("metric", "baseline", "baseline_materialized_at", "anchor", "anchor_materialized_at", "higher_is_better", "is_headline")
"""Fields that tell which points a red state was compared with."""


def _answers(state: Materialization) -> str:
    """Version of the answers of a state."""
    return state.metrics.info.inputs["model_outputs"]


@dataclass(frozen=True)
class Partition:
    """An eval and a model of a suite."""

    project: Project
    suite: str
    gate: GateConfig
    level: float
    eval_name: str
    model: str
    baseline: Baseline
    standings: Standings
    rescorer: Rescorer
    pooling: Pooling

    @cached_property
    def points(self) -> list[Materialization]:
        """All its materializations, the oldest first. Raises `LakeError` if the newest is damaged."""
        return with_rows(history(self.project.lake, self.eval_name, self.model))

    def current(self) -> Materialization | None:
        """The result in question. Raises `LakeError` if it is damaged."""
        found = MaterializationName(model=self.model).find(self.project.lake, self.eval_name)
        return found and self.rescorer.same(found)

    def findings(self, current: Materialization) -> list[Finding]:
        """A finding for each metric that the suite is judged by.

        A metric that was judged before stays judged while the result has it. If the result loses it, that is a gap.
        """
        findings: list[Finding] = []
        for metric, is_shown in self._judged_metrics(current).items():
            standing, before = self._standing(metric), None
            try:
                if metric not in overall(current):
                    reason = f"the result has no {metric} any more, by which earlier results were judged; accept this if it is meant"
                    finding = self._gap(reason, metric, current)
                else:
                    before, note = self._before(metric)
                    finding = self._against(before, metric, current, note)
            except Exception as error:  # the boundary between one metric and the next
                reason = str(error) if isinstance(error, EvalDagsterError) else f"{type(error).__name__}: {error}"
                finding = self._gap(reason, metric, current, before)
            findings.append(replace(finding, row=replace(finding.row, is_headline=is_shown), held=standing.red))
        return findings

    def unjudged(self, verdict: Verdict, problem: str, current: Materialization | None) -> list[Finding]:
        """The findings if there is nothing to judge, or if it cannot be judged. Red results stay red."""
        row = self.unjudged_row(verdict, problem, current)
        found: list[Finding] = []
        for metric in self.standings.metrics(self.key):
            held = self._standing_of(metric).red
            if held is not None and self.baseline.last_passed:
                found.append(Finding(row=replace(row, **{name: getattr(held, name) for name in _OF_RED}), held=held))
        return found or [Finding(row=row)]

    def unjudged_row(
        self, verdict: Verdict, reason: str | None, current: Materialization | None = None, baseline: Materialization | None = None
    ) -> Regression:
        """A row with the reason for a missing comparison."""
        return Regression(
            suite=self.suite,
            eval=self.eval_name,
            model=self.model,
            baseline=baseline.name() if baseline else None,
            verdict=verdict,
            reason=reason,
            n_not_asked=int(current.metrics.info.counts.get(NOT_ASKED, 0)) or None if current else None,
            is_estimate=current is not None and is_estimate(current),
            materialized_at=current.materialized_at if current else None,
            baseline_materialized_at=baseline.materialized_at if baseline else None,
        )

    @property
    def key(self) -> tuple[str, str]:
        """Eval and model."""
        return self.eval_name, self.model

    @property
    def _metrics(self) -> Sequence[type[BaseMetric[Any]]]:
        return self.project.task(self.eval_name).METRICS

    def _judged_metrics(self, current: Materialization) -> dict[str, bool]:
        """The metrics to judge, and whether the leaderboard shows them now or showed them before."""
        before = self.standings.metrics(self.key) if self.baseline.last_passed else {}
        if not before:  # first results of earlier releases do not name their metrics
            try:
                point = self._before(next((name for name, row in overall(current).items() if row["is_headline"]), ""))[0]
                point = point or next(iter(self.points[-2:-1]), None)  # its judgement can be lost
                before = {} if point is None else {name: row["is_headline"] for name, row in overall(point).items()}
            except EvalDagsterError:  # found again for each metric, and reported
                before = {}
        # If a metric with several values declares no headline, each value is judged.
        shown = {name for name, row in overall(current).items() if row["is_headline"]} or set(overall(current))
        names = dict.fromkeys([*overall(current), *before])
        found: dict[str, bool] = {}
        for name in names:
            if name not in overall(current):
                # A person may have accepted a state without the metric after the last judgement that named it.
                point = materialization_at(self.points, self.standings.accepted_since(self.key, name))
                if point is not None and name not in overall(point):
                    continue
            is_shown = name in shown or before.get(name, False)
            if is_shown or self.gate.metrics == "all":
                found[name] = is_shown
        return found

    def _gap(self, reason: str, metric: str, current: Materialization, baseline: Materialization | None = None) -> Finding:
        return Finding(row=replace(self.unjudged_row(Verdict.NOT_COMPARABLE, reason, current, baseline), metric=metric))

    def _standing_of(self, metric: str) -> Standing:
        return self.standings.of(self.key, metric) if self.baseline.last_passed else Standing()

    def _standing(self, metric: str) -> Standing:
        """The standing of a metric. A metric that was never judged begins at the last state in which the others passed."""
        own = self._standing_of(metric)
        if own.is_own:
            return own
        others = [self._standing_of(each).baseline_at for each in self.standings.metrics(self.key)]
        times = [time for time in others if time is not None]
        return Standing(baseline_at=min(times), anchor_at=min(times)) if times else own

    def _before(self, metric: str) -> tuple[Materialization | None, str | None]:
        """The result to compare a metric with, and a note about it. None for a first result.

        When the suite first judges the eval and the model, `last_passed` means the state before the last change. A damaged or missing state
        is scored again from its answers. If these are also gone, the state that passed before it is used.

        Raises:
            LakeError: The baseline that the suite names does not exist, or no state can be read.
        """
        lake, standing = self.project.lake, self._standing(metric)
        if not self.baseline.last_passed:
            found = self.baseline.find(lake, self.eval_name, self.model)
            if found is None:
                return self._lost()
            return self._first_readable([found.materialized_at], found.model)
        if standing.baseline_at is not None:
            older = (time for time in self.standings.passed(self.key, metric) if time < standing.baseline_at)
            return self._first_readable(chain([standing.baseline_at], older), self.model)
        full = [*(point for point in self.points[:-1] if not is_part(point)), *self.points[-1:]]
        before = None if standing.is_known else previous_materialization(full)
        if before is not None and n_values(before):
            return before, None
        return (None, None) if standing.is_known else self._lost()

    def _lost(self) -> tuple[Materialization | None, str | None]:
        """An earlier result without a readable file of metrics, if any has its answers in the lake."""
        lake, known = self.project.lake, {point.materialized_at for point in self.points}
        times = [time_of(path) for path in lake.files(lake.folder("metrics", *self.key))]
        lost = [time for time in reversed(times) if time not in known]
        return self._first_readable(lost, self.model) if lost else (None, None)

    def _first_readable(self, times: Iterable[datetime], model: str) -> tuple[Materialization, str | None]:
        problems: list[tuple[datetime, str]] = []
        for time in times:
            try:
                point = self.rescorer.readable(self.eval_name, model, time)
            except EvalDagsterError as error:
                problems.append((time, str(error)))
                continue
            if problems:
                newest, why = problems[0]
                return point, f"compared with the state of {minute(time)}, since that of {minute(newest)} cannot be read: {why}"
            lost = f"the result of {minute(time)} is damaged or gone, so its answers were scored again"
            return point, lost if isinstance(point, ScoredAgain) else None
        raise LakeError(
            f"no result that passed can be read: {problems[0][1]}; look at the current one, and make it the baseline: eval-dagster accept "
            f"{self.suite} --eval {self.eval_name} --model {self.model} --why ..."
        )

    def _against(self, before: Materialization | None, metric: str, current: Materialization, note: str | None) -> Finding:
        """The finding against an earlier result, or for a first result."""
        require_no_estimate(current, before)
        standing = self._standing(metric)
        if before is None:
            reason = NO_EARLIER_RESULT if standing.red is None else "no result that passed is known"
            return self._with_past(self._start(reason, metric, current), metric, current, None, None)
        baseline = self.rescorer.like(current, before, metric)
        self._require_few_refused(baseline, metric)
        if metric not in overall(baseline):
            return self._with_past(self._start(NEW_METRIC, metric, current, before), metric, current, None, None)
        looked, n_not_asked = self._looked(metric, current, before, baseline), int(current.metrics.info.counts.get(NOT_ASKED, 0))
        baseline = AskedPart.like(baseline, current)
        found = compare_metric(current, baseline, metric, self._metrics, alpha=self.level)
        found = looked.on(found) if found is not None and looked is not None else found
        if found is None:
            return self._gap(f"the code of {metric} is gone, which is needed to compare it", metric, current, before)
        asked, asked_before = asked_samples(current, metric)[0], asked_samples(baseline, metric)[0]
        is_better, noise = bool(overall(current)[metric]["higher_is_better"]), measured_noise(current, self.points, metric)
        stored_value = None  # by the baseline's own metric on the common samples, unless the result's metric gives the same
        if baseline is not before and metric in overall(before):
            stored = compare_metric(current, before, metric, self._metrics, alpha=self.level)
            again = compare_metric(current, baseline, metric, self._metrics, alpha=self.level)
            is_turned = overall(before)[metric]["higher_is_better"] != overall(baseline)[metric]["higher_is_better"]
            if stored is not None and (is_turned or stored.value_b != (again and again.value_b)):
                stored_value = stored.value_b
        row = replace(
            self.unjudged_row(Verdict.NOT_COMPARABLE, note, current, before),
            metric=metric,
            value=found.value_a,
            baseline_value=found.value_b,
            stored_baseline_value=stored_value,
            n_only_value=found.n_only_a,
            n_only_baseline=found.n_only_b,
            n_new=len(asked - asked_before),
            n_gone=len(asked_before - asked),
            noise_floor=None if noise is None else noise.difference,
            higher_is_better=is_better,
            cause=", ".join(causes(current, AskedPart.like(before, current), metric)),
            look=looked.look if looked is not None and n_not_asked else None,
            stop_reason=current.metrics.info.inputs.get(STOP_REASON),
            whole_reason=None if n_not_asked else self._whole_reason(current, before, metric),
            **{name: getattr(found, name) for name in _COMPARED},
        )
        of_name = next((each for each in self._metrics if metric.partition("/")[0] == each.NAME), None)
        case = Case(
            comparison=found,
            higher_is_better=is_better,
            smallest_difference=self.gate.smallest_difference,
            noise_floor=0.0 if noise is None else noise.difference,
        )
        anchor, since_anchor, too_few = self._anchor(metric, current, baseline)
        row = replace(row, anchor_materialized_at=None if anchor is None else anchor.materialized_at)
        if anchor is not None and since_anchor is not None:
            row = replace(row, anchor=anchor.name(), anchor_value=since_anchor.value_b)
            row = replace(row, drift=since_anchor.difference, drift_p_value=since_anchor.p_value)
        # A test against the anchor is not repeated at looks, so a part of the samples has none.
        drift = None if since_anchor is None or n_not_asked else replace(case, comparison=since_anchor)
        own = self.gate.margin.get(self.eval_name) if isinstance(self.gate.margin, dict) else self.gate.margin
        compared = [(baseline, found)] + ([(anchor, since_anchor)] if anchor is not None and since_anchor is not None else [])
        anchor_at = self._standing(metric).anchor_at
        is_anchored = anchor_at in (None, current.materialized_at) or (anchor is not None and anchor.materialized_at == anchor_at)
        problem = None if is_anchored or anchor_at is None else f"the anchor of {minute(anchor_at)} cannot be read or compared"
        n_samples, is_share = len(asked) + n_not_asked, of_name is not None and of_name.IS_PROPORTION
        own = default_margin(found, is_share=is_share, n_samples=n_samples) if own is None else own
        is_looked = looked is not None and looked.plan.margin is not None and looked.plan.margin == own
        if n_not_asked and not is_looked and before.scores_version != current.scores_version:
            problem = "it was stopped before it could be proven by this margin"
        # Levels of looks are those of a test against single states.
        proven: Sequence[tuple[Materialization, Comparison]] = compared
        if looked is None and before.model == self.model:
            proven = self.pooling.comparisons(compared, current, metric, self._metrics, points=self.points, since=anchor_at)
        proof = Proof(
            problem=problem,
            margin=own,
            higher_is_better=is_better,
            comparisons=tuple(comparison for _, comparison in proven),
            n_lost=tuple(n_lost(current, point, metric) for point, _ in proven),
        )
        pooled = [pooled_times(point) for point, _ in proven]
        row = replace(row, pooled_baseline=pooled[0], pooled_anchor=pooled[1] if len(pooled) > 1 else ())
        row = replace(proof.on(row), margin_level=looked.proof_level if is_looked and looked is not None else LEVEL)
        changes = list(changed_samples(current, baseline, metric))
        finding = Finding(
            row=row,
            step=case,
            drift=drift,
            proof=proof,
            is_fallen=looked is not None and looked.is_fallen,
            is_to_confirm=self.gate.confirm,
            too_few=too_few,
            changes=changes,
            states=(current, *(point for point, _ in compared)),
        )
        return self._with_past(finding, metric, current, baseline, anchor)

    def states(self, metric: str) -> tuple[Materialization | None, Materialization | None, datetime | None]:
        """The states that the next result of a metric is compared with: the baseline, and the anchor with its time.

        The baseline is None if it depends on the next result, or if there is none. The anchor is None if it is the baseline, which has no
        time then either, or if it cannot be read. Raises `LakeError` if the baseline cannot be read.
        """
        is_known = self._standing(metric).baseline_at is not None if self.baseline.last_passed else self.baseline.until is not None
        if not is_known or self.baseline.previous:
            return None, None, None
        before = self._before(metric)[0]
        anchor_at = self._other_anchor(metric, before)
        if before is None or anchor_at is None:
            return before, None, None
        with suppress(EvalDagsterError):
            return before, self.rescorer.readable(self.eval_name, self.model, anchor_at), anchor_at
        return before, None, anchor_at

    def is_held(self, metric: str) -> bool:
        """Whether a metric is red."""
        return self._standing(metric).red is not None

    def _other_anchor(self, metric: str, before: Materialization | None) -> datetime | None:
        """The time of the anchor, unless it is the baseline."""
        anchor_at = self._standing(metric).anchor_at if self.baseline.last_passed else None
        return None if before is None or anchor_at == before.materialized_at else anchor_at

    def _looked(self, metric: str, current: Materialization, before: Materialization, baseline: Materialization) -> LookedAt | None:
        """The looks at a result. None if all of it was asked at once.

        `baseline` is `before`, scored by the metric of the result. Raises `LakeError` if a part was asked, and no plan for these states is
        known.
        """
        missing = int(current.metrics.info.counts.get(NOT_ASKED, 0))
        if (not missing and self.gate.stop != "early") or before.scores_version == current.scores_version:
            return None  # a state that was accepted is its own baseline
        inputs = current.metrics.info.inputs
        if missing and STOPPED_BY not in inputs:
            raise LakeError(f"{missing} of its samples were not asked: {inputs[STOP_REASON]}; the next run of the suite asks them")
        rises = bool(overall(current)[metric]["higher_is_better"])
        key = plan_key(current, before.materialized_at, self._other_anchor(metric, before))
        plan, is_own = self.standings.night_plans.get(key), not missing or inputs[STOPPED_BY] == self.suite
        if plan is not None and is_own and plan.reason is None and plan.metric == metric:
            try:
                return looked_at(plan, current, baseline, metric, higher_is_better=rises)
            except ValueError as error:
                if missing:
                    raise LakeError(f"its looks cannot be repeated: {error}") from error
        if missing:
            raise LakeError(
                f"{missing} of its samples were not asked, because a gate stopped it early by another plan; ask them: "
                f"eval-dagster run --eval {self.eval_name} --model {self.model}"
            )
        return None

    def _whole_reason(self, current: Materialization, before: Materialization, metric: str) -> str | None:
        """Why no look could stop a result that was asked in full. None if looks decided, or if nothing was asked."""
        if self.gate.stop != "early" or _answers(before) == _answers(current):
            return None
        key = plan_key(current, before.materialized_at, self._other_anchor(metric, before))
        unknown = key._replace(baseline_at=None, anchor_at=None)  # of a night that could not know what it is compared with
        plan = self.standings.night_plans.get(unknown if self.baseline.previous else key)
        return None if plan is None else plan.reason

    def _require_few_refused(self, baseline: Materialization, metric: str) -> None:
        refused = baseline.refused(metric) if isinstance(baseline, ScoredAgain) else []
        if refused and len(refused) > self.gate.max_error_rate * len(asked_samples(baseline, metric)[0]):
            raise LakeError(
                f"{metric} has changed, and gives no value for {len(refused)} of the {len(asked_samples(baseline, metric)[0])} answers of "
                f"the baseline ({refused[0]})"
            )

    def _with_past(
        self, finding: Finding, metric: str, current: Materialization, baseline: Materialization | None, anchor: Materialization | None
    ) -> Finding:
        """The finding with its error rate, the red state, and whether there is something new to test."""
        standing = self._standing(metric)
        before, judged = materialization_at(self.points, standing.judged_at), standing.judged
        is_turned = judged is not None and judged.higher_is_better not in (None, overall(current)[metric]["higher_is_better"])
        same_as_before = before is not None and before.scores_version == current.scores_version and not is_turned
        same_as_baseline = baseline is not None and baseline.scores_version == current.scores_version
        is_tested = standing.judged_at is None or not (same_as_before or same_as_baseline)
        # The state that regressed first, scored by the current metric.
        red, since_red = None if standing.red is None else materialization_at(self.points, standing.red.materialized_at), None
        try:
            red = None if red is None else self.rescorer.like(current, red, metric)
        except EvalDagsterError:  # then only the estimates show whether the result is better
            red = None
        if red is not None and is_tested:
            with suppress(LakeError):  # its scores were deleted
                since_red = compare_metric(current, red, metric, self._metrics, alpha=self.level)
        most, good, accepted = self.gate.max_error_rate, anchor or baseline, None
        if self.baseline.last_passed and good is not None and self.standings.is_accepted(self.key, metric, good.materialized_at):
            accepted = good
        rate = error_rate(current, baseline, metric, most=most, anchor=anchor, accepted=accepted)
        row = replace(finding.row, n_errors=rate.errors, n_evaluable=rate.samples)
        if rate.share > most:
            reason = f"{rate.errors} of {rate.samples} {rate.what} are errors; at most {most:g} of them may be (max_error_rate)"
            row = replace(row, verdict=Verdict.ERRORS, reason=reason)
        if finding.step is not None and baseline is not None:
            row = replace(row, is_unchanged=_answers(baseline) == _answers(current))
        return replace(
            finding,
            row=row,
            held=standing.red,
            before=judged if same_as_before and not same_as_baseline else None,
            since_red=since_red,
            is_as_red=red is not None and red.scores_version == current.scores_version,
            is_as_baseline=same_as_baseline,
            is_tested=is_tested,
        )

    def _start(self, reason: str, metric: str, current: Materialization, baseline: Materialization | None = None) -> Finding:
        has_value = overall(current)[metric]["value"] is not None
        verdict, reason = (Verdict.FIRST_RESULT, reason) if has_value else (Verdict.NOT_COMPARABLE, f"the result has no value of {metric}")
        return Finding(row=replace(self.unjudged_row(verdict, reason, current, baseline), metric=metric), is_start=has_value)

    def _anchor(
        self, metric: str, current: Materialization, baseline: Materialization
    ) -> tuple[Materialization | None, Comparison | None, str | None]:
        """The anchor of a metric's drift, the comparison with it, and the reason that the result has too few of its samples.

        If an anchor cannot be read, or has too little in common with the result, the oldest state that passed after it replaces it. The
        comparison is None if the anchor is the baseline. All are None if no state is left or the anchor is the result itself.
        """
        anchor_at, too_few = self._standing(metric).anchor_at, None
        if anchor_at is None or anchor_at == current.materialized_at:
            return None, None, None
        for time in self._anchor_times(metric, anchor_at):
            if time == baseline.materialized_at:
                return baseline, None, too_few
            try:
                anchor = self.rescorer.like(current, self.rescorer.readable(self.eval_name, self.model, time), metric)
                self._require_few_refused(anchor, metric)
                anchor = AskedPart.like(anchor, current)
                found = compare_metric(current, anchor, metric, self._metrics, alpha=self.level)
            except EvalDagsterError:
                continue
            if found is not None and found.p_value is not None and found.n_common >= found.n_only_b:
                return anchor, found, too_few
            if found is not None and time == anchor_at:
                too_few = (
                    f"only {found.n_common} of the {found.n_common + found.n_only_b} samples of the anchor {anchor.name()} have a value "
                    "now; expected at least half of them"
                )
        return None, None, too_few

    def _anchor_times(self, metric: str, anchor_at: datetime) -> Iterator[datetime]:
        yield anchor_at
        yield from (time for time in reversed(list(self.standings.passed(self.key, metric))) if time > anchor_at)
