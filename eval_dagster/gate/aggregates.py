"""Judges the aggregates of a suite: each against the states that its evals are compared with.

An aggregate has no baseline of its own. Its difference is made of the differences of its evals, each from that eval's baseline, and its
drift of the differences from their anchors. So while it is red, the states of its evals do not pass: otherwise they would be the baselines
of the next night, in which the fall could not be seen any more.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime

from eval_dagster.config.aggregates import AggregateConfig
from eval_dagster.errors import EvalDagsterError, LakeError
from eval_dagster.gate.decision import Finding, can_be_tested, incomparable
from eval_dagster.gate.partition import Partition
from eval_dagster.gate.records import minute
from eval_dagster.gate.results import last_aggregates, result_at
from eval_dagster.gate.standings import Baseline, Standings
from eval_dagster.project import Project
from eval_dagster.records.aggregate_judgements import AggregateRegression
from eval_dagster.records.judgements import SOUND, Regression, Verdict
from eval_dagster.results.comparison import compare_metric
from eval_dagster.results.eval_differences import SampleParts, with_common_numbers
from eval_dagster.results.materializations import Materialization, overall
from eval_dagster.statistics.aggregate_differences import EvalDifference, compare_medians, compare_weighted
from eval_dagster.statistics.aggregates import Scale, mixed_scales
from eval_dagster.statistics.paired import Comparison
from eval_dagster.statistics.verdicts import Case, Judgement

_COMPARED = ("difference", "stderr", "ci_low", "ci_high", "p_value", "test", "n_common", "min_detectable")
"""Fields of a comparison that are also in a row."""


@dataclass(frozen=True, kw_only=True)
class _Member:
    """An eval of an aggregate on a model: its comparisons by one metric, or the reason that there are none."""

    problem: str | None = None
    is_first: bool = False
    """Whether there is no problem but that it has its first result."""
    is_tested: bool = False
    """Whether its result is new."""
    scale: Scale | None = None
    chance: float | None = None
    """The score of guessing. Null if it is not known."""
    noise: float = 0.0
    """The difference between two runs of the same model; 0 if unknown."""
    step: SampleParts | None = None
    """The result against its baseline."""
    drift: SampleParts | None = None
    """The result against its anchor. Null if this is the baseline."""
    since_red: Mapping[str, SampleParts] = field(default_factory=dict)
    """By aggregate that is red, the result against the one in which the aggregate regressed first."""
    baseline_at: datetime | None = None
    anchor_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class AggregateFinding:
    """An aggregate for a model before the suite is judged as a whole."""

    row: AggregateRegression
    """Without a comparison, it has the verdict and its reason."""
    step: Case | None = None
    """The aggregate against the baselines of its evals."""
    drift: Case | None = None
    """The aggregate against their anchors. None if these are the baselines."""
    since_red: Comparison | None = None
    """The aggregate against the results in which it regressed first, if it is red and these can be read."""
    before: AggregateRegression | None = None
    """Its last row that is more than a gap."""
    held_since: datetime | None = None
    """The judgement in which it regressed first, if it is still red."""
    is_tested: bool = False
    """Whether a result of one of its evals is new."""

    @property
    def tests(self) -> list[Case]:
        """Its comparisons that share the level of the suite."""
        return [each for each in (self.step, self.drift) if each is not None] if self.is_tested else []


class AggregateJudge:
    """Collects the comparisons of a suite's evals, and makes the comparisons of its aggregates from them.

    The scores of an eval are read while they are in memory for its own verdict. A suite without aggregates costs nothing.
    """

    def __init__(self, project: Project, suite: str, standings: Standings, baseline: Baseline, level: float) -> None:
        self._project, self._suite, self._standings, self._level = project, suite, standings, level
        settings = project.suite(suite)
        self._settings = settings
        self._evals = {name: each.evals or settings.evals for name, each in settings.aggregates.items()}
        self._metrics: dict[str, set[str | None]] = defaultdict(set)
        for name, each in settings.aggregates.items():
            for eval_name in self._evals[name]:
                self._metrics[eval_name].add(each.metric)
        self._members: dict[tuple[str, str, str | None], _Member] = {}
        self._skipped: set[tuple[str, str]] = set()
        self._before = last_aggregates(project.lake, suite) if settings.aggregates else {}
        self._held = {key: row for key, (at, row) in self._before.items() if baseline.last_passed and self._is_held(row, at)}
        reds = {row.red_since for row in self._held.values() if row.red_since is not None}
        self._reds = {at: self._states(at) for at in reds}

    def take(self, partition: Partition, findings: Sequence[Finding]) -> list[Finding]:
        """Take the findings of an eval and a model, in any order of these. Returns them without their states, whose tables are large."""
        for metric in self._metrics.get(partition.eval_name, ()):
            if not findings:
                self._skipped.add(partition.key)  # the baseline itself
                continue
            try:
                member = self._member(partition, findings, metric)
            except Exception as error:  # the boundary between one eval and the next
                member = _Member(problem=str(error) if isinstance(error, EvalDagsterError) else f"{type(error).__name__}: {error}")
            self._members[partition.eval_name, partition.model, metric] = member
        return [replace(each, states=()) for each in findings]

    def skip(self, key: tuple[str, str]) -> None:
        """Leave out the aggregates of an eval and a model that is not judged and no gap."""
        self._skipped.add(key)

    def findings(self, models: Sequence[str]) -> list[AggregateFinding]:
        """The findings of all aggregates for these models, one aggregate after the other."""
        found: list[AggregateFinding] = []
        for name, section in self._settings.aggregates.items():
            for model in models:
                keys = [(each, model) for each in self._evals[name]]
                if not any(self._project.is_pair(*key) for key in keys) or not self._skipped.isdisjoint(keys):
                    continue
                try:
                    found.append(self._finding(name, section, model))
                except Exception as error:  # the boundary between one aggregate and the next
                    reason = str(error) if isinstance(error, EvalDagsterError) else f"{type(error).__name__}: {error}"
                    found.append(self._with_past(AggregateFinding(row=self._gap(name, section, model, reason))))
        return found

    def _is_held(self, row: AggregateRegression, at: datetime) -> bool:
        """Whether a row still counts as red: it is, the aggregate is defined as it was, and nobody has accepted a result of it since."""
        section = self._settings.aggregates.get(row.aggregate)
        if not row.is_red or section is None or row.definition != _definition(section, self._evals[row.aggregate]):
            return False
        return not any(
            each.materialized_at is not None and each.model == row.model and each.eval in row.evals and each.accepted_at >= at
            for each in self._standings.acceptances
        )

    def _states(self, judged_at: datetime) -> dict[tuple[str, str], datetime | None]:
        """The results that a judgement judged, by eval and model."""
        with suppress(LakeError):
            result = result_at(self._project.lake, self._suite, judged_at)
            return {} if result is None else {(row.eval, row.model): row.materialized_at for row in result.regressions}
        return {}

    def _member(self, partition: Partition, findings: Sequence[Finding], metric: str | None) -> _Member:
        chosen = _chosen(findings, metric)
        row = chosen.row
        if not chosen.states:
            return _Member(problem=row.reason or row.verdict.value, is_first=row.verdict is Verdict.FIRST_RESULT)
        if row.n_not_asked:
            return _Member(problem=f"it stopped early, {row.n_not_asked:,} samples not asked")
        if row.verdict is Verdict.ERRORS or (problem := incomparable(chosen)) is not None:
            return _Member(problem=row.reason if row.verdict is Verdict.ERRORS else problem)
        assert chosen.step is not None
        current, before, *anchors = chosen.states
        name = row.metric if metric is None else metric
        assert name is not None
        if name not in overall(current):
            return _Member(problem=f"the result has no metric {name}")
        task = partition.project.task(partition.eval_name)
        clusters_of = None if task.CLUSTER_FIELD is None else task.DATASET_PATH

        def parts(state: Materialization, known: Comparison | None) -> SampleParts | None:
            """The comparison with a state, by the metric. `known` is the one by the metric of the verdict."""
            if name != row.metric or known is None:
                state = partition.rescorer.like(current, state, name)
                known = compare_metric(current, state, name, task.METRICS, alpha=self._level)
            if known is None or known.difference is None or known.n_common < known.n_only_b:
                return None
            return SampleParts.of(current, state, name, known, clusters_of=clusters_of)

        step = parts(before, chosen.step.comparison)
        if step is None:
            return _Member(problem=f"too few samples have a value of {name} in the result and in its baseline")
        drift = parts(anchors[0], None if chosen.drift is None else chosen.drift.comparison) if anchors else None
        since_red: dict[str, SampleParts] = {}
        for aggregate, red in self._held.items():
            time = self._reds.get(red.red_since, {}).get(partition.key) if red.red_since is not None else None
            if aggregate[1] == partition.model and partition.eval_name in red.evals and time is not None:
                with suppress(EvalDagsterError):
                    state = partition.rescorer.readable(*partition.key, time)
                    if (found := parts(partition.rescorer.like(current, state, name), None)) is not None:
                        since_red[aggregate[0]] = found
        metric_row = overall(current)[name]
        low, high, chance = metric_row.get("bound_low"), metric_row.get("bound_high"), metric_row.get("chance")
        return _Member(
            is_tested=can_be_tested(chosen),
            scale=Scale(
                metric=name,
                higher_is_better=bool(metric_row["higher_is_better"]),
                bounds=None if low is None or high is None else (low, high),
            ),
            chance=None if chance is None or chance >= 1 else chance,
            noise=(row.noise_floor or 0.0) if name == row.metric else 0.0,
            step=step,
            drift=drift,
            since_red=since_red,
            baseline_at=before.materialized_at,
            anchor_at=anchors[0].materialized_at if anchors and drift is not None else None,
        )

    def _gap(self, name: str, section: AggregateConfig, model: str, reason: str) -> AggregateRegression:
        return AggregateRegression(
            suite=self._suite,
            aggregate=name,
            model=model,
            definition=_definition(section, self._evals[name]),
            evals=self._evals[name],
            verdict=Verdict.NOT_COMPARABLE,
            reason=reason,
        )

    def _finding(self, name: str, section: AggregateConfig, model: str) -> AggregateFinding:
        members: dict[str, _Member] = {}
        for each in self._evals[name]:
            without = "it is not evaluated with this model" if not self._project.is_pair(each, model) else "it was not judged"
            members[each] = self._members.get((each, model, section.metric), _Member(problem=without))
        missing = {each: member for each, member in members.items() if member.problem is not None}
        row = self._gap(name, section, model, "; ".join(f"{each}: {member.problem}" for each, member in missing.items()))
        if missing:
            firsts = tuple(each for each, member in missing.items() if member.is_first)
            if len(firsts) == len(missing):
                reason = "every eval has its first result" if len(firsts) == len(members) else f"the first result of {', '.join(firsts)}"
                row = replace(row, verdict=Verdict.FIRST_RESULT, reason=f"{reason}; later results are compared with these")
            return self._with_past(AggregateFinding(row=replace(row, missing=tuple(missing))))
        scales = [(each, member.scale) for each, member in members.items() if member.scale is not None]
        unknown = [each for each, member in members.items() if member.chance is None]
        if section.normalised and unknown:
            return self._with_past(AggregateFinding(row=replace(row, reason=f"no known score by chance: {', '.join(unknown)}")))
        if not section.normalised and (problem := mixed_scales(scales)) is not None:
            return self._with_past(AggregateFinding(row=replace(row, reason=problem)))
        return self._with_past(self._compared(row, section, members))

    def _compared(self, row: AggregateRegression, section: AggregateConfig, members: Mapping[str, _Member]) -> AggregateFinding:
        weights = [(section.weights or {}).get(each, 1.0) for each in members]
        chances = [(member.chance or 0.0) if section.normalised else 0.0 for member in members.values()]

        def compared(parts: Sequence[SampleParts | None]) -> Comparison | None:
            known = [each for each in parts if each is not None]
            if len(known) < len(members):
                return None
            scaled = [replace(each, zero=chance, unit=1 - chance) for each, chance in zip(with_common_numbers(known), chances, strict=True)]
            return _aggregated(scaled, section, weights, self._level)

        step = compared([each.step for each in members.values()])
        # An eval whose anchor is its baseline counts with this.
        drift = compared([each.drift or each.step for each in members.values()]) if any(each.drift for each in members.values()) else None
        since_red = compared([each.since_red.get(row.aggregate) for each in members.values()])
        assert step is not None
        rises = next(each.scale.higher_is_better for each in members.values() if each.scale is not None)
        noise = [each.noise / (1 - chance) for each, chance in zip(members.values(), chances, strict=True)]
        shares = [weight / math.fsum(weights) for weight in weights]
        floor = max(noise) if section.of == "median" else math.hypot(*(share * each for share, each in zip(shares, noise, strict=True)))
        case = Case(comparison=step, higher_is_better=rises, smallest_difference=self._settings.gate.smallest_difference, noise_floor=floor)
        times = [each.baseline_at for each in members.values() if each.baseline_at is not None]
        anchors = [time for each in members.values() if (time := each.anchor_at or each.baseline_at) is not None]
        row = replace(
            row,
            reason=None,
            value=step.value_a,
            baseline_value=step.value_b,
            n_only_value=step.n_only_a,
            n_only_baseline=step.n_only_b,
            noise_floor=floor or None,
            higher_is_better=rises,
            oldest_baseline_at=min(times),
            newest_baseline_at=max(times),
            **{name: getattr(step, name) for name in _COMPARED},
        )
        if drift is not None:
            row = replace(
                row, anchor_value=drift.value_b, drift=drift.difference, drift_p_value=drift.p_value, oldest_anchor_at=min(anchors)
            )
        return AggregateFinding(
            row=row,
            step=case,
            drift=None if drift is None else replace(case, comparison=drift),
            since_red=since_red,
            is_tested=any(each.is_tested for each in members.values()),
        )

    def _with_past(self, finding: AggregateFinding) -> AggregateFinding:
        key = finding.row.aggregate, finding.row.model
        held = self._held.get(key)
        before = self._before.get(key, (None, None))[1]
        # The first judgement of an aggregate has a test even if its evals have none.
        is_tested = finding.is_tested or (before is None and bool(finding.row.difference))
        return replace(finding, before=before, held_since=None if held is None else held.red_since, is_tested=is_tested)


def decide_aggregates(findings: Sequence[AggregateFinding], judgements: Sequence[Judgement], level: float) -> list[AggregateRegression]:
    """The rows of a suite's aggregates.

    Args:
        findings: Those of all aggregates.
        judgements: Of their `tests`, in this order, after Holm's correction for all comparisons of the suite.
        level: Two-sided level of significance of the judgement.
    """
    rows: list[AggregateRegression] = []
    left = iter(judgements)
    for each in findings:
        step, drift = (next(left) if each.is_tested and case is not None else None for case in (each.step, each.drift))
        row, before = each.row, each.before
        if not each.is_tested and before is not None and before.p_value == row.p_value:
            row = replace(row, p_adjusted=before.p_adjusted, drift_p_adjusted=before.drift_p_adjusted)
        if step is not None:
            row = replace(row, p_adjusted=step.p_adjusted, drift_p_adjusted=drift.p_adjusted if drift is not None else None)
        rows.append(_decided(replace(each, row=row), step, drift, level))
    return rows


def with_held_states(rows: Sequence[Regression], aggregates: Sequence[AggregateRegression]) -> list[Regression]:
    """The rows of the evals. States in a red aggregate do not pass, so that their baselines stay those from which the aggregate fell."""
    by_key = {(eval_name, each.model): each.aggregate for each in reversed(aggregates) if each.is_red for eval_name in each.evals}
    return [
        replace(row, is_passed=False, held_by=by_key[row.eval, row.model])
        if (row.eval, row.model) in by_key and row.verdict in SOUND and not (row.is_refuted or row.n_not_asked)
        else row
        for row in rows
    ]


def with_accepted_evals(aggregates: Sequence[AggregateRegression], rows: Sequence[Regression]) -> list[AggregateRegression]:
    """The aggregates. A gap is accepted if the gaps of all evals that it lacks are."""
    accepted = {(row.eval, row.model) for row in rows if row.verdict is Verdict.ACCEPTED_GAP}
    return [
        replace(each, verdict=Verdict.ACCEPTED_GAP)
        if each.is_gap and each.missing and all((name, each.model) in accepted for name in each.missing)
        else each
        for each in aggregates
    ]


def _chosen(findings: Sequence[Finding], metric: str | None) -> Finding:
    """The finding about a metric, or else about the headline, whose states any other metric is compared with."""
    named = [each for each in findings if each.row.metric == metric] if metric is not None else []
    shown = [each for each in findings if each.row.is_headline] or list(findings)
    states = next((each.states for each in findings if each.states), ())
    headlines = {name for name, row in overall(states[0]).items() if row["is_headline"]} if states else set()
    return (named or [each for each in shown if each.row.metric in headlines] or shown)[-1]


def _definition(section: AggregateConfig, evals: Sequence[str]) -> str:
    weights = section.weights or {}
    names = ", ".join(f"{each} × {weights[each]:g}" if each in weights else each for each in evals)
    what = "".join([f"{section.metric} of " if section.metric else "", "the part above guessing of " if section.normalised else ""])
    return f"{'weighted mean' if section.of == 'weighted' else section.of} of {what}{names}"


def _aggregated(parts: Sequence[EvalDifference], section: AggregateConfig, weights: Sequence[float], level: float) -> Comparison:
    return compare_medians(parts, alpha=level) if section.of == "median" else compare_weighted(parts, weights, alpha=level)


def _decided(finding: AggregateFinding, step: Judgement | None, drift: Judgement | None, level: float) -> AggregateRegression:
    row, held_since = finding.row, finding.held_since
    if step is not None and step.verdict is Verdict.REGRESSED:
        return replace(row, verdict=Verdict.REGRESSED, against="baseline", red_since=held_since)
    if drift is not None and drift.verdict is Verdict.REGRESSED:
        reason = f"drifted since the anchors of its evals: {row.anchor_value:.3f} → {(row.anchor_value or 0) + (row.drift or 0):.3f}"
        return replace(row, verdict=Verdict.REGRESSED, against="anchor", red_since=held_since, reason=f"{reason} ({row.drift:+.3f})")
    if held_since is not None and not _is_released(finding, level):
        why = f"regressed in the judgement of {minute(held_since)}"
        why += " and not significantly better since" if row.reason is None else f"; the last evaluation shows nothing better: {row.reason}"
        against = finding.before.against if finding.before is not None else "baseline"
        return replace(row, verdict=Verdict.REGRESSED, against=against, red_since=held_since, reason=why)
    if finding.step is None:
        return row
    if finding.step.comparison.p_value is None:
        return replace(row, reason="an eval has no error bar, so no test is possible")
    rise = (finding.step.comparison.difference or 0) * (1 if finding.step.higher_is_better else -1)
    if rise > 0 and any(each is not None and each.verdict is Verdict.IMPROVED for each in (step, drift)):
        return replace(row, verdict=Verdict.IMPROVED)
    ended = None if held_since is None else f"no longer regressed, as it was in the judgement of {minute(held_since)}"
    return replace(row, verdict=Verdict.NO_CHANGE_SEEN, reason=ended)


def _is_released(finding: AggregateFinding, level: float) -> bool:
    """Whether a red aggregate turns green: it is significantly better than it was then, or no worse than baselines or anchors.

    The anchors do not count while it is worse than the baselines by more than chance.
    """
    if finding.step is None:
        return False
    sign = 1 if finding.step.higher_is_better else -1
    since = finding.since_red
    if since is not None and since.p_value is not None and since.p_value <= level and (since.difference or 0.0) * sign > 0:
        return True

    def is_good(case: Case) -> bool:
        fall = -(case.comparison.difference or 0.0) * sign
        return fall <= 0 or fall < max(case.smallest_difference, case.noise_floor)

    if is_good(finding.step):
        return True
    is_worse = finding.step.comparison.p_value is not None and finding.step.comparison.p_value <= level
    return finding.drift is not None and not is_worse and is_good(finding.drift)
