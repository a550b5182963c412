"""From comparisons to verdicts: which results are red, which stay red, and which states later results are compared with."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from eval_dagster.gate.records import minute
from eval_dagster.records.judgements import Against, ChangedSample, Regression, Verdict
from eval_dagster.statistics.paired import Comparison
from eval_dagster.statistics.verdicts import Case, Judgement, judge_suite

_CONFIRMED = ("confirmation", "fall_level", "n_fresh", "fresh_difference", "fresh_stderr", "fresh_p_value", "fresh_level")
"""Fields of a row that stay as long as its scores are the same."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One row before the suite is judged as a whole."""

    row: Regression
    """Without a comparison, it has the verdict and its reason."""
    step: Case | None = None
    """The result against its baseline."""
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
    too_few: str | None = None
    """The reason that it has too few of the anchor's samples, regardless of the baseline. Null if it has enough."""
    changes: Sequence[ChangedSample] = ()


def decide(findings: Sequence[Finding], *, level: float) -> list[Regression]:
    """Judge the findings of a suite together, at a two-sided level of significance for all tests.

    A result stays red until it is significantly better than the red state, or its estimate is at least as good as a good state's.
    """
    tests = [case for each in findings if _can_be_tested(each) for case in (each.step, each.drift) if case is not None]
    judgements = iter(judge_suite(tests, alpha=level))
    rows: list[Regression] = []
    for each in findings:
        tested = _can_be_tested(each)
        step = next(judgements) if tested and each.step is not None else None
        drift = next(judgements) if tested and each.drift is not None else None
        rows.append(_row(each, step, drift, level))
    return [replace(row, is_passed=_is_passed(each, row)) for each, row in zip(findings, rows, strict=True)]


def has_test(finding: Finding) -> bool:
    """Whether one of its p-values is judged, which uses up a share of the allowed false alarms."""
    return _can_be_tested(finding) and any(
        case is not None and case.comparison.p_value is not None for case in (finding.step, finding.drift)
    )


def _is_passed(finding: Finding, row: Regression) -> bool:
    """Whether a metric passes: it was judged or has its first result, and is neither a gap, nor red, nor refuted."""
    is_judged = finding.is_start or row.verdict in (Verdict.NO_CHANGE_SEEN, Verdict.IMPROVED)
    return is_judged and not (row.is_red or row.is_refuted or row.is_gap)


def _can_be_tested(finding: Finding) -> bool:
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
    if step is not None and step.verdict is Verdict.REGRESSED:
        return Verdict.REGRESSED, "baseline", None
    if Verdict.REGRESSED in verdicts:
        return Verdict.REGRESSED, "anchor", _drifted(row)
    if finding.held is not None and not _is_released(finding, level):
        return Verdict.REGRESSED, finding.held.against or "baseline", _still_worse(finding)
    if finding.step is None:
        return row.verdict, None, None
    is_equal = finding.is_as_baseline and row.value is not None  # it needs no test
    if finding.step.comparison.p_value is None and not is_equal:
        return Verdict.NOT_COMPARABLE, None, _why_not(finding.step.comparison)
    if row.is_partial:
        return Verdict.NOT_COMPARABLE, None, _too_few(row)
    if finding.too_few is not None:  # a little less each night adds up to a lot
        return Verdict.NOT_COMPARABLE, None, finding.too_few
    if Verdict.IMPROVED in verdicts and _has_risen(finding.step):  # if it rose only since the anchor, it can be worse than the baseline
        return Verdict.IMPROVED, None, None
    return Verdict.NO_CHANGE_SEEN, None, _recovered(finding.held)


def _has_risen(step: Case) -> bool:
    return bool(step.comparison.difference) and (step.comparison.difference or 0) * (1 if step.higher_is_better else -1) > 0


def _is_released(finding: Finding, level: float) -> bool:
    """Whether a red result turns green: it is significantly better than the red state, or its estimate is as good as a good state.

    Good states are the anchor, and the baseline unless drift led to it. A result with the same scores as the baseline is good. The anchor
    counts because chance can make a baseline look better than it is. Otherwise a result that was never worse would stay red for months. The
    anchor does not count while the result is worse than the baseline by more than chance, so a lost real improvement stays red. A result on
    few samples turns green only if it turned red on few samples.
    """
    is_drift = finding.held is not None and finding.held.against == "anchor"
    step = None if is_drift and finding.drift is not None else finding.step
    good = [case for case in (finding.drift, step) if case is not None]
    if finding.row.is_partial and finding.held is not None and not finding.held.is_partial:
        return False
    if finding.is_as_baseline or _is_better_than_red(finding, level):
        return True
    return any(map(_is_as_good, good)) and not (step is not None and _has_fallen(step, level))


def _has_fallen(case: Case, level: float) -> bool:
    """Whether this comparison alone shows a fall by more than chance."""
    found = case.comparison
    is_down = (found.difference or 0) * (1 if case.higher_is_better else -1) < 0
    return is_down and found.p_value is not None and found.p_value <= level


def _is_better_than_red(finding: Finding, level: float) -> bool:
    since = finding.since_red
    if finding.held is None or since is None or since.p_value is None or not since.difference:
        return False
    case = finding.step or finding.drift
    higher_is_better = finding.held.higher_is_better if case is None else case.higher_is_better
    return since.p_value <= level and higher_is_better is (since.difference > 0)


def _is_as_good(case: Case) -> bool:
    """Whether the result has no fall, or only a fall too small to matter."""
    difference = case.comparison.difference
    if difference is None:
        return False
    fall = -difference if case.higher_is_better else difference
    return fall <= 0 or fall < max(case.smallest_difference, case.noise_floor)


def _drifted(row: Regression) -> str:
    return f"drifted since {row.anchor}: {row.anchor_value:.3f} → {(row.anchor_value or 0) + (row.drift or 0):.3f} ({row.drift:+.3f})"


def _still_worse(finding: Finding) -> str:
    held = finding.held
    if held is None or held.materialized_at is None:
        return ""
    when = f"regressed in the state of {minute(held.materialized_at)}"
    if finding.row.reason:
        return f"{when}; the last evaluation shows nothing better: {finding.row.reason}"
    since = "unchanged since" if finding.is_as_red else "not significantly better since"
    return " and ".join([when, since]) + (f" ({held.reason})" if held.reason and held.against == "anchor" else "")


def _recovered(held: Regression | None) -> str | None:
    if held is None or held.materialized_at is None:
        return None
    return f"no longer regressed, as it was in the state of {minute(held.materialized_at)}"


def _too_few(row: Regression) -> str:
    asked = row.n_common + row.n_only_baseline
    return f"only {row.n_common} of the {asked} samples of the baseline have a value now; expected at least half of them"


def _why_not(comparison: Comparison) -> str:
    """The reason that a comparison has no p-value."""
    if comparison.n_common == 0:
        return (
            f"no sample has a value in both results: {comparison.n_only_a} only in the new one, {comparison.n_only_b} only in the "
            f"baseline, {comparison.n_neither} in neither (errors)"
        )
    if comparison.n_clusters < 2:
        return f"the {comparison.n_common} common samples are one independent group; expected at least two"
    return f"the metric has no value on the {comparison.n_common} common samples, or no variation, so no test is possible"
