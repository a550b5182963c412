"""Verdicts and figures as text, for all places that show a gate's result."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from eval_dagster.gate.records import GateResult, Outcome, minute, without_minutes
from eval_dagster.records.aggregate_judgements import AggregateRegression
from eval_dagster.records.judgements import COMPARED, GAPS, SOUND, Regression, Verdict
from eval_dagster.results.comparison import cause_words
from eval_dagster.texts.figures import counted, interval, number, p_equals, p_value

NOT_JUDGED = "The suite was not judged"
"""The verdict if the gate itself failed."""
_MOST_NAMED = 3
_MOST_OF_A_REASON = 160


class Tone(StrEnum):
    """How good or bad a result is."""

    BAD = "bad"
    """A result is red, or the suite is incomplete, and this fails the gate."""
    WARNING = "warning"
    """A problem that does not fail the gate; or the suite passed without results that it does not require."""
    GOOD = "good"
    """All results were judged, and none is red."""
    UNKNOWN = "unknown"
    """Nothing could be compared yet, because the results are the first ones."""


def tone(result: GateResult) -> Tone:
    """How good or bad a result is."""
    if not result.is_green:
        return Tone.BAD if result.is_failed else Tone.WARNING
    if result.outcome is Outcome.FIRST:
        return Tone.UNKNOWN
    has_gaps = result.gaps or result.with_verdict(Verdict.ACCEPTED_GAP) or any(row.is_gap for row in result.aggregates)
    return Tone.WARNING if has_gaps or result.drifting else Tone.GOOD


def verdict_line(result: GateResult) -> str:
    """The result in one line, without the suite's name."""
    regressed, failing = result.with_verdict(Verdict.REGRESSED), result.with_verdict(Verdict.ERRORS)
    total = len(result.regressions)
    if not total:
        return "Incomplete: the suite has no results to judge"
    if result.is_first:
        these = "this one" if total == 1 else f"these {total}"
        return f"First results: nothing to compare with yet; later results are compared with {these}"
    errors = [f"{row.eval} on {row.model} ({row.n_errors} of {row.n_evaluable} samples)" for row in failing]
    falls: list[str] = []
    for row in regressed:  # the difference from its anchor, if it is only worse than that
        is_drift = row.against == "anchor" and row.drift is not None
        fall = f"{number(row.drift, '+')} since {row.anchor}" if is_drift else number(row.difference, "+")
        falls.append(f"{row.eval} on {row.model} ({row.metric} {fall})")
    said = [
        *([f"{len(regressed)} of {total} results regressed: {_listed(falls)}"] if regressed else []),
        *([f"too many errors in {len(failing)} of {total} results: {_listed(errors)}"] if failing else []),
    ]
    if result.red_aggregates:
        falls = [aggregate_fall(row) for row in result.red_aggregates]
        said.append(f"{len(falls)} of {counted(len(result.aggregates), 'aggregate')} regressed: {_listed(falls)}")
    compared = sum(row.verdict in COMPARED for row in result.regressions)
    sound = sum(row.verdict in SOUND for row in result.aggregates)
    beside = f" and {counted(sound, 'aggregate')}" if sound else ""
    if result.outcome is Outcome.INCOMPLETE:
        parts: list[str] = []
        for verdict in reversed(GAPS):
            rows = [row for row in result.missing if row.verdict is verdict]
            if rows:
                parts.append(f"{len(rows)} of {counted(total, 'result')} {verdict.value} ({_reasons(rows)})")
        parts += _unjudged_aggregates(result, result.missing_aggregates)
        seen = f"no regression seen in {counted(compared, 'comparison')}{beside}" if compared else "nothing was compared"
        said = [f"Incomplete: {'; '.join(parts)}; {seen}" if parts else "Incomplete: nothing was judged"]
    elif result.outcome is Outcome.NOT_PROVEN:
        said = [f"Not proven: {_unproven(result)}; no regression seen in {counted(compared, 'comparison')}{beside}"]
    elif not said:
        said = [_not_worse(result, compared, beside) if compared else "Nothing to compare with yet"]
    return "; ".join([*said, *_others(result)])


def aggregate_fall(row: AggregateRegression) -> str:
    """A red aggregate, and the fall for which it is red."""
    is_drift = row.against == "anchor" and row.drift is not None
    fall = f"{number(row.drift, '+')} since the anchors of its evals" if is_drift else number(row.difference, "+")
    return f"{row.aggregate} on {row.model} ({fall})"


def _unjudged_aggregates(result: GateResult, rows: Sequence[AggregateRegression]) -> list[str]:
    """The aggregates that were not judged, with their number and their reasons, if there are any."""
    reasons = [f"{row.aggregate} on {row.model}: {_shortened((row.reason or 'no reason is known').splitlines()[0])}" for row in rows]
    return [f"{len(rows)} of {counted(len(result.aggregates), 'aggregate')} not comparable ({_listed(reasons)})"] if rows else []


def _not_worse(result: GateResult, compared: int, beside: str) -> str:
    """The findings about comparisons of which none is red. `beside` counts the aggregates, about which nothing is proven."""
    proven = sum(bool(row.is_proven) for row in result.regressions)
    if result.is_proven and proven == compared:
        unproven = f"; no regression seen in {beside.removeprefix(' and ')}" if beside else ""
        return f"Proven not worse in {counted(compared, 'comparison')}{unproven}"
    if result.is_proven:
        left = [f"{row.eval} on {row.model}" for row in result.without_margin]
        without = f"; no margin is set for {_listed(left)}" if left else ""
        return f"Proven not worse in {counted(proven, 'comparison')}; no regression seen in {compared - proven} more{beside}{without}"
    some = f", {proven} of them proven not worse" if proven else ""
    return f"No regression seen in {counted(compared, 'comparison')}{some}{beside}"


def _unproven(result: GateResult) -> str:
    """The results without the proof that the suite requires."""
    rows = result.unproven
    parts = [f"{row.eval} on {row.model} ({proof_text(row) or row.verdict.value})" for row in rows]
    said = (
        [f"{len(rows)} of {counted(sum(map(result.is_critical, result.regressions)), 'critical result')}: {_listed(parts)}"] if rows else []
    )
    if not result.is_mean_proven:
        p_value = result.supporting_p_value
        found = "their samples are too few, or one of them cannot be tested" if p_value is None else f"p {p_equals(p_value)}"
        said.append(f"the mean of the other evals ({found})")
    return "; ".join(said)


def proof_text(row: Regression) -> str:
    """The proof that a row is not worse, or why there is none. Empty if it was not compared, or in rows of earlier releases."""
    if row.is_proven is None:
        return ""
    if row.unproven_reason or row.margin is None:
        return row.unproven_reason or "no margin set"
    by = f"worse by {row.margin:g}"
    said = f"proven not {by}" if row.is_proven else f"may be {by}"
    return f"{said}: p {p_equals(row.margin_p_value)}{_pools(row)}"


def _pools(row: Regression) -> str:
    """The states whose means are the baseline and the anchor of the proof, as the end of a sentence. Empty without any."""
    pools = [
        f"the mean of {len(times)} states ({minute(times[0])} to {minute(times[-1])}){what}"
        for times, what in ((row.pooled_baseline, ""), (row.pooled_anchor, " as the anchor"))
        if times
    ]
    return f" against {' and '.join(pools)}" if pools else ""


def _others(result: GateResult) -> list[str]:
    """The remaining parts of the line."""
    missing = result.missing if result.outcome is Outcome.INCOMPLETE else []
    improved, first, accepted = (
        len(result.with_verdict(verdict)) for verdict in (Verdict.IMPROVED, Verdict.FIRST_RESULT, Verdict.ACCEPTED_GAP)
    )
    unchanged = sum(bool(row.is_unchanged) and row.verdict in COMPARED for row in result.regressions)
    refuted = [f"{row.eval} on {row.model}" for row in result.refuted]
    partial = [row for row in result.with_verdict(Verdict.REGRESSED) if row.is_partial]
    few = [f"{row.eval} on {row.model} ({row.n_common} of {row.n_common + row.n_only_baseline})" for row in partial]
    told = {id(row) for row in missing}
    left = [row for row in result.gaps if id(row) not in told]
    marked = [f"{row.eval} on {row.model} ({'; '.join(row.marks)})" for row in result.regressions if row.marks]
    parts = [row for row in result.regressions if row.n_not_asked]
    stopped, estimates = ([row for row in parts if bool(row.is_estimate) is which] for which in (False, True))
    unasked, unasked_of_estimates = (sum(row.n_not_asked or 0 for row in rows) for rows in (stopped, estimates))
    are = "is an estimate" if len(estimates) == 1 else "are estimates"
    gaps = [(verdict, sum(row.verdict is verdict for row in left)) for verdict in reversed(GAPS)]
    allowed = "" if result.outcome is Outcome.REGRESSED and result.missing else ", which `require` allows"
    drifting = [f"{row.eval} on {row.model} ({row.drifts})" for row in result.drifting]
    told_aggregates = {id(row) for row in result.missing_aggregates} if result.outcome is Outcome.INCOMPLETE else set()
    of_aggregates = Counter(row.verdict for row in result.aggregates if not row.is_gap)
    return [
        *([f"{counted(len(drifting), 'slow fall')}: {_listed(drifting)}"] if drifting else []),
        *([f"{counted(len(refuted), 'fall')} not confirmed by asking again: {_listed(refuted)}"] if refuted else []),
        *([f"{unchanged} with the answers of {'its baseline' if unchanged == 1 else 'their baselines'}"] if unchanged else []),
        *([f"{improved} improved"] if improved else []),
        *([counted(first, "first result")] if first else []),
        *([counted(accepted, "accepted gap")] if accepted else []),
        *(
            f"{counted(of_aggregates[verdict], 'aggregate')} {how}"
            for verdict, how in (
                (Verdict.IMPROVED, "improved"),
                (Verdict.FIRST_RESULT, "with a first result"),
                (Verdict.ACCEPTED_GAP, "with accepted gaps"),
            )
            if of_aggregates[verdict]
        ),
        *_unjudged_aggregates(result, [row for row in result.aggregates if row.is_gap and id(row) not in told_aggregates]),
        *(f"{count} {verdict.value}{allowed}" for verdict, count in gaps if count),
        *([f"fewer than half of the baseline's samples in {_listed(few)}"] if few else []),
        *([f"not only the model changed: {_listed(marked)}"] if marked else []),
        *([f"{counted(len(stopped), 'result')} stopped early, {unasked:,} samples not asked"] if stopped else []),
        *([f"{counted(len(estimates), 'result')} {are}, {unasked_of_estimates:,} samples not asked"] if estimates else []),
    ]


def clearest_fall(result: GateResult) -> str | None:
    """The fall that is closest to red in a green result, with the fall that would be detected. None if nothing is worse.

    Falls with their own reason, such as one that fresh answers do not show, are left out.
    """
    falls = [
        row
        for row in result.regressions
        if row.verdict in (Verdict.NO_CHANGE_SEEN, Verdict.NOT_WORSE)
        and not row.reason
        and row.difference is not None
        and row.p_adjusted is not None
        and (row.difference > 0 if row.higher_is_better is False else row.difference < 0)
    ]
    if not falls or not result.level:
        return None
    row = min(falls, key=lambda each: 1.0 if each.p_value is None else each.p_value)
    is_beyond = row.p_adjusted is not None and row.p_adjusted > result.level
    why = f"p {p_equals(row.p_adjusted)} is above the level {result.level:.2g}" if is_beyond else "less than the suite takes for a change"
    samples = counted(row.n_common, "sample")
    return "".join(
        (
            f"{title(row)} {number(row.baseline_value)} → {number(row.value)}",
            f" ({number(row.difference, '+')}, 95 % interval {interval(row.ci_low, row.ci_high, '+')})",
            f", the clearest fall of {len(falls)}" if len(falls) > 1 else "",
            f": {row.verdict}, since {why}" if row.verdict is Verdict.NO_CHANGE_SEEN else f": {proof_text(row)}, and {why}",
            "" if row.min_detectable is None else f"; on {samples} a fall of {number(row.min_detectable)} is found in 8 of 10 cases",
        )
    )


def level(result: GateResult) -> str:
    """The level of the judgement, as a text that follows the time of the judgement."""
    if result.level:
        share = "" if result.level == result.alpha else f", the share of this judgement of α = {result.alpha:g} in 30 days"
        return f"at the level {result.level:.2g} for all comparisons together{share}"
    if any(row.verdict in COMPARED for row in result.regressions):
        return "without a new test: the scores that were compared are those of the baseline or of the last judgement"
    return "without a test: there was nothing to compare"


def title(row: Regression) -> str:
    """The title of a row."""
    return f"{row.eval} · {row.model}" + (f" · {row.metric}" if row.metric else "")


FIGURE_COLUMNS = ("baseline", "now", "difference", "95 % interval", "p (Holm)", "samples")
"""The columns of `figures`."""


def figures(row: Regression | AggregateRegression) -> tuple[str, ...]:
    """A row's figures as the cells of a table."""
    return (
        number(row.baseline_value),
        number(row.value),
        number(row.difference, "+"),
        interval(row.ci_low, row.ci_high, "+"),
        p_value(row.p_adjusted),
        str(row.n_common),
    )


@dataclass(frozen=True, kw_only=True)
class Unjudged:
    """Results that were not judged for the same reason: some evals with each of some models."""

    verdict: Verdict
    models: str
    what: str
    """Names of evals, with the metric if only one metric is concerned."""
    reason: str
    count: int
    """Number of results."""


def asked_in_full(rows: Sequence[Regression]) -> list[str]:
    """Why results of a suite that may stop early were asked in full: a line for each reason, with the number of results."""
    counts = Counter(row.whole_reason for row in rows if row.whole_reason)
    return [f"{counted(count, 'result')} asked in full: {reason}" for reason, count in counts.most_common()]


def unjudged(rows: Sequence[Regression]) -> list[Unjudged]:
    """Rows that were not judged, by verdict and reason. A model that cannot be loaded is one entry, and so is a first night."""
    by_model: dict[tuple[Verdict, str, str], list[str]] = {}
    shown: dict[str, str] = {}
    for row in rows:
        is_named = row.metric and row.verdict is not Verdict.FIRST_RESULT  # all metrics of a first result share its reason
        what = f"{row.eval} · {row.metric}" if is_named else row.eval
        reason = row.reason or "no reason is known"
        cause = without_minutes(reason)
        shown.setdefault(cause, reason)
        names = by_model.setdefault((row.verdict, cause, row.model), [])
        names += [what] if what not in names else []
    grouped: dict[tuple[Verdict, str, tuple[str, ...]], list[str]] = {}
    for (verdict, cause, model), names in by_model.items():
        grouped.setdefault((verdict, cause, tuple(names)), []).append(model)
    return [
        Unjudged(verdict=verdict, models=", ".join(models), what=", ".join(names), reason=shown[cause], count=len(models) * len(names))
        for (verdict, cause, names), models in grouped.items()
    ]


def cause_text(text: str | None) -> str:
    """The cause of a difference in words; empty if unknown."""
    if text is None:
        return ""
    return cause_words(text) if text else "nothing differs"


def asked_again(row: Regression) -> str:
    """The findings of fresh answers about a fall; empty without fresh answers."""
    if row.n_fresh is None:
        return ""
    test = f"p {p_value(row.fresh_p_value)}, below {p_value(row.fresh_level)} confirms"
    return f"{counted(row.n_fresh, 'sample')}: difference {number(row.fresh_difference, '+')} ± {number(row.fresh_stderr)} ({test})"


def evidence(row: Regression) -> str:
    """The evidence for a row's verdict, in one line."""
    if row.difference is None:
        return row.reason or "no common samples"
    cause = cause_text(row.cause)
    parts = [
        *([row.reason] if row.reason and row.is_red else []),
        f"{number(row.baseline_value)} → {number(row.value)}",
        f"difference {number(row.difference, '+')} (95 % interval {interval(row.ci_low, row.ci_high, '+')})",
        f"p {p_equals(row.p_adjusted)} by {row.test or 'no test'}, adjusted by Holm",
        counted(row.n_common, "common sample"),
        *([f"a difference of {number(row.min_detectable)} would have been seen"] if row.min_detectable is not None else []),
        *([proof_text(row)] if row.is_proven is not None and not row.is_red else []),
        *([f"asked in full: {row.whole_reason}"] if row.whole_reason else []),
        *([f"what differs: {cause}"] if cause else []),
        *(said for said in row.remarks if not (row.is_red and said == row.reason)),
    ]
    return "; ".join(parts)


def aggregate_remarks(row: AggregateRegression) -> str:
    """The words beside the verdict about an aggregate, without its figures."""
    drift = f"since the anchors of its evals {number(row.drift, '+')}, p {p_equals(row.drift_p_adjusted)}"
    return "; ".join([*([row.reason] if row.reason else []), *([drift] if row.drift is not None else [])])


def aggregate_evidence(row: AggregateRegression) -> str:
    """The evidence for the verdict about an aggregate, in one line."""
    if row.difference is None:
        return row.reason or "it was not compared"
    parts = [
        *([row.reason] if row.reason and row.is_red else []),
        row.definition,
        f"{number(row.baseline_value)} → {number(row.value)}",
        f"difference {number(row.difference, '+')} (95 % interval {interval(row.ci_low, row.ci_high, '+')})",
        f"p {p_equals(row.p_adjusted)} by {row.test or 'no test'}, adjusted by Holm",
        counted(row.n_common, "common sample"),
        *([f"a difference of {number(row.min_detectable)} would have been seen"] if row.min_detectable is not None else []),
        f"compared with {compared_states(row)}",
        *([aggregate_remarks(row)] if aggregate_remarks(row) and not (row.is_red and row.drift is None) else []),
    ]
    return "; ".join(parts)


def compared_states(row: AggregateRegression) -> str:
    """The times of the baselines of an aggregate's evals."""
    oldest, newest = row.oldest_baseline_at, row.newest_baseline_at
    if oldest is None or newest is None:
        return "–"
    return f"the baselines of its evals, of {minute(oldest)}" + ("" if minute(oldest) == minute(newest) else f" to {minute(newest)}")


def _listed(texts: Sequence[str]) -> str:
    left = len(texts) - _MOST_NAMED
    return ", ".join(texts[:_MOST_NAMED]) + (f" and {left} more" if left > 0 else "")


def _reasons(rows: Sequence[Regression]) -> str:
    """The reasons that rows were not judged, by decreasing number of results."""
    counts: Counter[str] = Counter()
    for each in unjudged(rows):
        counts[f"{each.what} on {each.models}: {_shortened(each.reason.splitlines()[0])}"] += each.count
    reasons = [reason for reason, _ in counts.most_common()]
    left = len(reasons) - _MOST_NAMED
    return "; ".join(reasons[:_MOST_NAMED]) + (f"; and {counted(left, 'other reason')}" if left > 0 else "")


def _shortened(reason: str) -> str:
    return reason if len(reason) <= _MOST_OF_A_REASON else f"{reason[:_MOST_OF_A_REASON]}…"
