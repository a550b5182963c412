"""The texts of notices: short and plain, so that chats, e-mails and telephones show them in the same way."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

from eval_dagster.gate.records import GateResult
from eval_dagster.gate.wording import aggregate_evidence, aggregate_fall, proof_text, verdict_line
from eval_dagster.records.judgements import GAPS, Regression, Verdict
from eval_dagster.results.comparison import cause_words
from eval_dagster.texts.figures import counted

_MOST_LISTED = 10
"""Most results or failures in a notice."""
_MOST_CHARACTERS = 300


def regression_notice(result: GateResult, places: Sequence[str] = (), *, can_be_accepted: bool) -> tuple[str, str]:
    """Title and body for a suite with red results: their differences, the evidence, the causes, and the next command.

    Args:
        result: The judgement, with at least one red row or red aggregate.
        places: Lines with the places of the report and its pages.
        can_be_accepted: Whether an acceptance changes the suite's baseline.
    """
    worse = result.red
    names = ", ".join(dict.fromkeys([*(row.eval for row in worse), *(row.aggregate for row in result.red_aggregates)]))
    lines: list[str] = []
    for row in worse[:_MOST_LISTED]:
        values = f"{_number(row.baseline_value)} → {_number(row.value)} ({_number(row.difference, '+')})"
        evidence = row.reason or "no common samples"
        if row.difference is not None:
            interval = "" if row.ci_low is None else f"95 % interval {_number(row.ci_low, '+')} to {_number(row.ci_high, '+')}, "
            p_value = "" if row.p_adjusted is None else f"p {row.p_adjusted:.2g} after Holm's correction, "
            reason = "".join(f"{said}; " for said in row.remarks)
            cause = cause_words(row.cause) if row.cause else "no known cause"
            evidence = f"{reason}{interval}{p_value}{row.n_common} common samples; differs from {row.baseline}: {cause}"
        lines.append(f"- {row.eval} · {row.model} · {row.metric}: {values}\n  {evidence}")
    lines += [f"- {aggregate_fall(row)}\n  {aggregate_evidence(row)}" for row in result.red_aggregates[:_MOST_LISTED]]
    others = _gaps(result.gaps)
    unseen = f"Not confirmed: {_named([f'{row.eval}|{row.model} ({row.reason})' for row in result.refuted])}" if result.refuted else ""
    acceptance = f'To take it as it is: eval-dagster accept {result.suite} --why "..."' if can_be_accepted else ""
    compared = next((row for row in worse if row.baseline and row.verdict is Verdict.REGRESSED), None)
    command = "eval-dagster sql errors"
    if compared is not None:
        against = compared.anchor if compared.against == "anchor" else compared.baseline
        command = f"eval-dagster compare {compared.model} {against} --eval {compared.eval}"
    elif result.red_aggregates and not worse:
        command = f"eval-dagster sql \"from aggregate_regressions where suite = '{result.suite}'\""
    next_step = "\n".join(filter(None, [f"Next: {command}", acceptance])) if worse or result.red_aggregates else ""
    parts = ["\n".join([*lines, *_more(worse)]), unseen, others, *places, next_step]
    what = "worse" if result.with_verdict(Verdict.REGRESSED) or result.red_aggregates else "too many errors"
    return f"{result.suite}: {what} in {_shorten(names)}", "\n".join(filter(None, parts))


def incomplete_notice(result: GateResult, messages: Sequence[str], places: Sequence[str] = ()) -> tuple[str, str]:
    """Title and body for a suite that is incomplete: what was not judged, and why.

    Args:
        result: The judgement.
        messages: One for each evaluation that failed, or that a limit stopped.
        places: As above.
    """
    failed = [*(f"- {_shorten(message)}" for message in messages[:_MOST_LISTED]), *_more(messages)]
    others = [row for row in result.missing if not messages or row.verdict is not Verdict.NOT_EVALUATED]
    next_step = (
        f"Next: eval-dagster run --suite {result.suite} (finished work is not computed again)\n"
        f'To take it as it is: eval-dagster accept {result.suite} --eval EVAL --model MODEL --why "..."'
    )
    counts = Counter(row.verdict for row in result.missing)
    counted = [f"{counts[verdict]} {verdict.value}" for verdict in reversed(GAPS) if counts[verdict]]
    of_aggregates = len(result.missing_aggregates)
    counted += [f"{of_aggregates} {'aggregate' if of_aggregates == 1 else 'aggregates'} not comparable"] if of_aggregates else []
    what = ", ".join(counted) or "nothing was judged"
    own = [f"- {row.aggregate} · {row.model}: {row.reason}" for row in result.missing_aggregates if not row.missing]
    parts = [*failed, _gaps(others), *own[:_MOST_LISTED], *places, next_step]
    return f"{result.suite}: incomplete, {what}", "\n".join(filter(None, parts))


def unproven_notice(result: GateResult, places: Sequence[str] = ()) -> tuple[str, str]:
    """Title and body for a suite without the proof that it requires, from the judgement and the lines of `places` as above."""
    rows = result.unproven
    lines = [f"- {row.eval} · {row.model} · {row.metric}: {proof_text(row)}" for row in rows[:_MOST_LISTED]]
    next_step = "Next: eval-dagster sql regressions (margin, margin_p_value and unproven_reason of each result)"
    what = f"{counted(len(rows), 'critical result')} not proven" if rows else "the mean of the supporting evals is not proven"
    return f"{result.suite}: {what}", "\n".join(filter(None, [verdict_line(result), *lines, *_more(rows), *places, next_step]))


def failure_notice(suite: str, failures: Sequence[str], places: Sequence[str] = ()) -> tuple[str, str]:
    """Title and body for a suite with failed evaluations, from one message for each failure, and the lines of `places` as above."""
    lines = [f"- {_shorten(message)}" for message in failures[:_MOST_LISTED]]
    what = counted(len(failures), "failure")
    next_step = f"Next: eval-dagster run --suite {suite} (finished work is not computed again)"
    return f"{suite}: {what}", "\n".join(filter(None, [*lines, *_more(failures), *places, next_step]))


def not_evaluated_notice(suite: str, messages: Sequence[str], places: Sequence[str] = ()) -> tuple[str, str]:
    """Title and body for a suite with evals that a cap kept from being evaluated, from one message for each."""
    lines = [f"- {_shorten(message)}" for message in messages[:_MOST_LISTED]]
    return f"{suite}: {len(messages)} not evaluated", "\n".join(filter(None, [*lines, *_more(messages), *places]))


def skipped_notice(suite: str, reason: str) -> tuple[str, str]:
    """Title and body for a run of a suite that did not start, with the reason as a sentence."""
    return f"{suite}: a run was skipped", f"{reason}\nNext: wait for the next one, or start it now: eval-dagster run --suite {suite}"


def failed_night_notice(
    suite: str, night: str, messages: Sequence[str], places: Sequence[str] = (), *, verdict: str | None = None
) -> tuple[str, str]:
    """Title and body for a night that failed before its gate could say so: the reasons, if the run is, and what to do.

    `verdict` is what the gate had found, if it had judged.
    """
    lines = [f"- {_shorten(message)}" for message in messages[:_MOST_LISTED]]
    next_step = f"Next: mend the cause, then judge the suite: eval-dagster run --suite {suite} (finished work is not computed again)"
    judged = [f"Judged before it failed: {_shorten(verdict)}"] if verdict else []
    title = f"{suite}: the night of {night_words(night)} failed" + (" after it was judged" if verdict else ", and nothing was judged")
    return title, "\n".join([*judged, *lines, *_more(messages), *places, next_step])


def missed_nights_notice(suite: str, nights: Sequence[str], cause: str, cure: str) -> tuple[str, str]:
    """Title and body for nights of which no judgement came, the oldest first, with the cause and what to do about it."""
    last = night_words(nights[-1])
    if len(nights) == 1:
        return f"{suite}: the night of {last} was not judged", f"{cause}\nNext: {cure}"
    listed = _named(list(map(night_words, nights)))
    return f"{suite}: {len(nights)} nights were not judged, the last of {last}", f"{cause}\nNot judged: {listed}\nNext: {cure}"


def night_words(night: str) -> str:
    """The time of a night, as people write it."""
    return f"{datetime.fromisoformat(night).astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def trial_notice(suite: str) -> tuple[str, str]:
    """Title and body of a test notice."""
    return f"{suite}: this is a test", f"Failures and regressions of the suite {suite} will be reported here."


def _gaps(rows: Sequence[Regression]) -> str:
    """The results that were not judged, a line for each verdict."""
    lines = []
    for verdict in reversed(GAPS):
        names = [f"{row.eval}|{row.model} ({row.reason})" for row in rows if row.verdict is verdict]
        lines += [f"{verdict.value.capitalize()}: {_named(names)}"] if names else []
    return "\n".join(lines)


def _number(value: float | None, sign: str = "") -> str:
    return "?" if value is None else f"{value:{sign}.3f}"


def _named(names: Sequence[str]) -> str:
    return "; ".join([*map(_shorten, names[:_MOST_LISTED]), *_more(names)])


def _more(rows: Sequence[object]) -> list[str]:
    return [f"and {len(rows) - _MOST_LISTED} more"] if len(rows) > _MOST_LISTED else []


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"
