"""Judging a suite: each of its results against its baseline."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property

from eval_dagster.config import GateConfig
from eval_dagster.errors import EvalDagsterError
from eval_dagster.gate.attempts import Attempts
from eval_dagster.gate.baselines import Baseline
from eval_dagster.gate.change_points import LookKey, find_looks
from eval_dagster.gate.comparing import MetricComparison, changed_samples, compare_points, overall
from eval_dagster.gate.noise import measured_noise
from eval_dagster.gate.points import Point, PointName, history
from eval_dagster.gate.records import ChangedSample, GateResult, Look, Regression
from eval_dagster.gate.results import known_looks
from eval_dagster.lake.attempts import read_attempts
from eval_dagster.paired import Comparison
from eval_dagster.paired_suites import Case, Verdict, judge_suite
from eval_dagster.project import Project


@dataclass(frozen=True, kw_only=True)
class _Finding:
    """One row before the suite is judged as a whole."""

    row: Regression
    """`not comparable`, with its reason, unless there is a case."""
    case: Case | None = None
    changes: Sequence[ChangedSample] = ()


def judge(project: Project, suite: str, *, run_id: str, since: datetime | None = None) -> GateResult:
    """Compare the results of a suite with their baselines.

    Every eval and model of the suite has a row, or one a metric; what cannot be compared says why, and takes nothing else down. A model
    that is the baseline itself has none, unless it could not be evaluated.

    Args:
        project: Whose lake is read; nothing is written.
        suite: Name of the suite.
        run_id: Of the run that judges.
        since: Only results that were evaluated then or later count; where not given, whatever was evaluated last.

    Raises:
        UsageError: There is no such suite.
    """
    settings = project.suite(suite)
    evals, models = project.select(suite=suite)
    baseline = Baseline.parse(settings.baseline, list(project.config.models))
    known = known_looks(project.lake, suite)
    attempts = Attempts(read_attempts(project.lake), since=since)
    findings: list[_Finding] = []
    looks: list[Look] = []
    warnings: list[str] = []
    for eval_name in evals:
        for model in models:
            partition = _Partition(project, suite, settings.gate, eval_name, model)
            findings += _guarded(partition, baseline, attempts)
            looks += _looks(partition, known, warnings)
    compared = [(each.row, each.case) for each in findings if each.case is not None]
    judgements = iter(judge_suite([case for _, case in compared], alpha=settings.gate.alpha))
    rows: list[Regression] = []
    for each in findings:
        if each.case is None:
            rows.append(each.row)
            continue
        judgement = next(judgements)
        reason = _why_not(each.case.comparison) if judgement.verdict is Verdict.NOT_COMPARABLE else None
        rows.append(replace(each.row, p_adjusted=judgement.p_adjusted, verdict=judgement.verdict, reason=reason))
    return GateResult(
        suite=suite,
        judged_at=datetime.fromisoformat(project.lake.next_time("regressions", suite)),
        run_id=run_id,
        alpha=settings.gate.alpha,
        severity=settings.gate.severity,
        regressions=rows,
        changes=[change for each in findings for change in each.changes],
        looks=looks,
        warnings=tuple(warnings),
    )


@dataclass(frozen=True)
class _Partition:
    """An eval and a model of a suite."""

    project: Project
    suite: str
    gate: GateConfig
    eval_name: str
    model: str

    @cached_property
    def points(self) -> list[Point]:
        """All its materializations, the oldest first. Raises `LakeError` where the newest is damaged."""
        return history(self.project.lake, self.eval_name, self.model)

    def current(self) -> Point | None:
        """The result in question. Raises `LakeError` where it is damaged."""
        return PointName(model=self.model).find(self.project.lake, self.eval_name)

    def compare(self, current: Point, baseline: Point) -> Iterator[_Finding]:
        """A finding for each metric that the suite is judged by."""
        found = {
            each.metric: each
            for each in compare_points(current, baseline, self.project.task(self.eval_name).METRICS, alpha=self.gate.alpha)
        }
        for metric, row in overall(current).items():
            if self.gate.metrics == "headline" and not row["is_headline"]:
                continue
            if metric in found:
                yield self._compared(found[metric])
            else:
                reason = f"the baseline has no value of {metric}, or its code is gone"
                yield _Finding(row=replace(self.incomparable(reason, current, baseline), metric=metric))

    def incomparable(self, reason: str, current: Point | None = None, baseline: Point | None = None) -> Regression:
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

    def _compared(self, each: MetricComparison) -> _Finding:
        known = each.comparison
        noise = measured_noise(each.a, self.points, each.metric)
        row = replace(
            self.incomparable("", each.a, each.b),
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
        return _Finding(row=row, case=case, changes=list(self._changes(each)))

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


def _guarded(partition: _Partition, baseline: Baseline, attempts: Attempts) -> list[_Finding]:
    """The findings of a partition; whatever fails is the reason why there is none."""
    current = before = None
    try:
        current = partition.current()
        if problem := attempts.problem(partition.eval_name, partition.model):
            return [_Finding(row=partition.incomparable(problem, current))]
        if baseline.is_current(partition.model):
            return []
        if current is None:
            return [_Finding(row=partition.incomparable("there is no result yet; evaluate it first"))]
        before = baseline.find(partition.project.lake, partition.eval_name, partition.model)
        return list(partition.compare(current, before))
    except Exception as error:  # the boundary between one partition and the next
        reason = str(error) if isinstance(error, EvalDagsterError) else f"{type(error).__name__}: {error}"
        return [_Finding(row=partition.incomparable(reason, current, before))]


def _looks(partition: _Partition, known: Mapping[LookKey, Look], warnings: list[str]) -> list[Look]:
    """How a score got where it is; what fails is a warning, since the verdict does not depend on it."""
    name = f"{partition.eval_name}|{partition.model}"
    try:
        metrics = partition.project.task(partition.eval_name).METRICS
        return list(find_looks(partition.points, metrics, suite=partition.suite, alpha=partition.gate.alpha, known=known))
    except Exception as error:  # the boundary between one partition and the next
        warnings.append(f"no change points of {name}: {type(error).__name__}: {error}")
        return []


def _why_not(comparison: Comparison) -> str:
    """Why a comparison has no p-value."""
    if comparison.n_common == 0:
        return (
            f"no sample has a value in both: {comparison.n_only_a} have one now alone, {comparison.n_only_b} in the baseline alone, "
            f"{comparison.n_neither} in neither (errors)"
        )
    if comparison.n_clusters < 2:
        return f"the {comparison.n_common} common samples are one independent group; expected at least two"
    return f"the {comparison.n_common} common samples give the metric no value, or nothing that varies tells how sure it is"
