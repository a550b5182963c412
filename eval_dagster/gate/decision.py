"""From comparisons to verdicts: which results are red, which stay red, and which states later results are compared with."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from eval_dagster.gate.proof import Proof, is_proven
from eval_dagster.gate.records import minute
from eval_dagster.records.judgements import SOUND, Against, ChangedSample, Regression, Verdict
from eval_dagster.results.materializations import Materialization
from eval_dagster.statistics.paired import Comparison
from eval_dagster.statistics.verdicts import Case, Judgement, judge_suite

_RUN = "eval-dagster run --eval {row.eval} --model {row.model}"
_CONFIRMED = ("confirmation", "fall_level", "n_fresh", "fresh_difference", "fresh_stderr", "fresh_p_value", "fresh_level")
"""Fields of a row that stay as long as its scores are the same."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One row before the suite is judged as a whole."""

    row: Regression
    """Without a comparison, it has the verdict and its reason."""
    step: Case | None = None
    """The result against its baseline."""
    proof: Proof | None = None
    """The tests that it is not worse than baseline and anchor. None if it was not compared."""
    drift: Case | None = None
    """The result against the anchor."""
    held: Regression | None = None
    """The row of the state that regressed first, if the result is red."""
    before: Regression | None = None
    """The row of the previously judged state, if it has the same scores."""
    since_red: Comparison | None = None
    """The result against the state that regressed first, if there is something to test."""
    is_as_red: bool = False
    """Whether it has the same scores as the state that regressed first."""
    is_as_baseline: bool = False
    """Whether it has the same scores as the baseline."""
    is_tested: bool = True
    """Whether the result differs from the baseline and from the previously judged state. Otherwise nothing needs a test."""
    is_to_confirm: bool = False
    """Whether a fall is red only if fresh answers confirm it, for models whose answers can differ."""
    is_start: bool = False
    """Whether an earlier result is missing. Then later results are compared with this one."""
    is_fallen: bool = False
    """Whether a look of a night that may stop early found it worse, at a level of its own for each test of the suite."""
    too_few: str | None = None
    """The reason that it has too few of the anchor's samples, regardless of the baseline. Null if it has enough."""
    changes: Sequence[ChangedSample] = ()
    states: tuple[Materialization, ...] = ()
    """The result, its baseline by the same metric, and the anchor if it is another state. Empty if nothing was compared."""


def decide(findings: Sequence[Finding], *, level: float) -> list[Regression]:
    """Judge the findings of a suite together, at a two-sided level of significance for all tests.

    A result stays red until it is significantly better than the red state, or its estimate is at least as good as a good state's.
    """
    return decide_beside(findings, (), level=level)[0]


def decide_beside(findings: Sequence[Finding], beside: Sequence[Case], *, level: float) -> tuple[list[Regression], list[Judgement]]:
    """Judge the findings of a suite together with other tests, which share the level. Returns the rows, and the other judgements."""
    tests = [case for each in findings if can_be_tested(each) for case in (each.step, each.drift) if case is not None]
    judgements = iter(judge_suite([*tests, *beside], alpha=level))
    rows: list[Regression] = []
    for each in findings:
        tested = can_be_tested(each)
        step = next(judgements) if tested and each.step is not None else None
        drift = next(judgements) if tested and each.drift is not None else None
        row = _row(each, step, drift, level)
        row = replace(row, is_proven=is_proven(row))
        if row.verdict is Verdict.NO_CHANGE_SEEN and row.is_proven:
            row = replace(row, verdict=Verdict.NOT_WORSE)
        if row.n_not_asked and row.verdict in (Verdict.NO_CHANGE_SEEN, Verdict.IMPROVED) and not each.is_as_baseline:
            reason = f"{row.n_not_asked:,} of its samples were not asked, and the others are no verdict; ask them: {_RUN.format(row=row)}"
            row = replace(row, verdict=Verdict.NOT_COMPARABLE, reason=reason)
        is_judged = each.is_start or row.verdict in SOUND
        rows.append(replace(row, is_passed=is_judged and not (row.is_red or row.is_refuted or row.is_gap or row.n_not_asked)))
    return rows, list(judgements)


def has_test(finding: Finding) -> bool:
    """Whether one of its p-values is judged, which uses up a share of the allowed false alarms."""
    return can_be_tested(finding) and any(
        case is not None and case.comparison.p_value is not None for case in (finding.step, finding.drift)
    )


def can_be_tested(finding: Finding) -> bool:
    """Whether there is something new to test."""
    return finding.is_tested and finding.row.verdict is not Verdict.ERRORS


def _row(finding: Finding, step: Judgement | None, drift: Judgement | None, level: float) -> Regression:
    row, before = finding.row, finding.before  # the same scores keep their p-values from the earlier judgement
    row = replace(
        row,
        p_adjusted=step.p_adjusted if step else before.p_adjusted if before else row.p_value if finding.step else None,
        drift_p_adjusted=drift.p_adjusted if drift else before.drift_p_adjusted if before else None,
    )
    verdict, against, reason = _decide(finding, step, drift, level)
    is_to_confirm = finding.is_to_confirm and verdict is Verdict.REGRESSED
    if before is not None and (before.confirmation != "unconfirmed" or is_to_confirm):
        row = replace(row, **{name: getattr(before, name) for name in _CONFIRMED})
        reason = before.reason if before.confirmation in ("refuted", "unconfirmed") else reason
    elif is_to_confirm and finding.held is None:
        row = replace(row, confirmation="unconfirmed", fall_level=level)
    return replace(
        row,
        verdict=verdict,
        against=against,
        reason=reason or row.reason,
        anchor_materialized_at=None if finding.is_start else row.anchor_materialized_at,
    )


def _decide(finding: Finding, step: Judgement | None, drift: Judgement | None, level: float) -> tuple[Verdict, Against | None, str | None]:
    """The verdict, the state that the result is worse than, and the reason."""
    row = finding.row
    verdicts = {each.verdict for each in (step, drift) if each is not None}
    if row.verdict is Verdict.ERRORS:
        return Verdict.ERRORS, None, None
    if step is not None and (step.verdict is Verdict.REGRESSED or (finding.is_fallen and _is_large(finding.step))):
        return Verdict.REGRESSED, "baseline", None
    if Verdict.REGRESSED in verdicts:
        now = (row.anchor_value or 0) + (row.drift or 0)
        return Verdict.REGRESSED, "anchor", f"drifted since {row.anchor}: {row.anchor_value:.3f} → {now:.3f} ({row.drift:+.3f})"
    if finding.held is not None and not _is_released(finding, level):
        held, reason = finding.held, ""
        if held.materialized_at is not None:
            reason = f"regressed in the state of {minute(held.materialized_at)}"
            if row.reason:
                reason += f"; the last evaluation shows nothing better: {row.reason}"
            else:
                reason += " and unchanged since" if finding.is_as_red else " and not significantly better since"
                reason += f" ({held.reason})" if held.reason and held.against == "anchor" else ""
        return Verdict.REGRESSED, held.against or "baseline", reason
    if finding.step is None:
        return row.verdict, None, None
    if (problem := incomparable(finding)) is not None:
        return Verdict.NOT_COMPARABLE, None, problem
    rise = (finding.step.comparison.difference or 0) * (1 if finding.step.higher_is_better else -1)
    if Verdict.IMPROVED in verdicts and rise > 0:  # if it rose only since the anchor, it can be worse than the baseline
        return Verdict.IMPROVED, None, None
    if finding.held is None or finding.held.materialized_at is None:
        return Verdict.NO_CHANGE_SEEN, None, None
    return Verdict.NO_CHANGE_SEEN, None, f"no longer regressed, as it was in the state of {minute(finding.held.materialized_at)}"


def incomparable(finding: Finding) -> str | None:
    """Why a result cannot be compared with its baseline, although both are there. None if it can."""
    if finding.step is None:
        return None
    row = finding.row
    is_equal = finding.is_as_baseline and row.value is not None  # it needs no test
    if finding.step.comparison.p_value is None and not is_equal:
        found = finding.step.comparison
        if found.n_common == 0:
            return (
                f"no sample has a value in both results: {found.n_only_a} only in the new one, {found.n_only_b} only in the "
                f"baseline, {found.n_neither} in neither (errors)"
            )
        if found.n_clusters < 2:
            return f"the {found.n_common} common samples are one independent group; expected at least two"
        return f"the metric has no value on the {found.n_common} common samples, or no variation, so no test is possible"
    if row.is_partial:
        asked = row.n_common + row.n_only_baseline
        return f"only {row.n_common} of the {asked} samples of the baseline have a value now; expected at least half of them"
    return finding.too_few  # a little less each night adds up to a lot


def _is_large(case: Case | None) -> bool:
    """Whether a difference is one that matters."""
    return case is not None and abs(case.comparison.difference or 0.0) >= max(case.smallest_difference, case.noise_floor)


def _is_released(finding: Finding, level: float) -> bool:
    """Whether a red result turns green: it is significantly better than the red state, or its estimate is as good as a good state.

    Good states are the anchor, and the baseline unless drift led to it. A result with the same scores as the baseline is good. The anchor
    counts because chance can make a baseline look better than it is. Otherwise a result that was never worse would stay red for months. The
    anchor does not count while the result is worse than the baseline by more than chance, so a lost real improvement stays red. A result on
    few samples turns green only if it turned red on few samples.
    """
    held, since = finding.held, finding.since_red
    if finding.row.is_partial and held is not None and not held.is_partial:
        return False
    if finding.is_as_baseline:
        return True
    if held is not None and since is not None and since.p_value is not None and since.difference:
        case = finding.step or finding.drift
        higher_is_better = held.higher_is_better if case is None else case.higher_is_better
        if since.p_value <= level and higher_is_better is (since.difference > 0):
            return True
    is_drift = held is not None and held.against == "anchor"
    step = None if is_drift and finding.drift is not None else finding.step
    if step is not None:
        rise = (step.comparison.difference or 0) * (1 if step.higher_is_better else -1)
        if rise < 0 and step.comparison.p_value is not None and step.comparison.p_value <= level:
            return False
    for good in (finding.drift, step):
        if good is not None and good.comparison.difference is not None:
            fall = good.comparison.difference * (-1 if good.higher_is_better else 1)
            if fall <= 0 or fall < max(good.smallest_difference, good.noise_floor):
                return True
    return False
