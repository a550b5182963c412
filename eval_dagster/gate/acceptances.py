"""Acceptances: states and gaps that did not pass the gate but that a person accepts, with name, time and reason."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime

from eval_dagster.config.values import LAST_PASSED
from eval_dagster.errors import LakeError, UsageError
from eval_dagster.gate.records import GateResult, minute
from eval_dagster.gate.results import current_result
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.files import Lake, table_of
from eval_dagster.lake.format.parquet_files import FileInfo, new_name, read_rows
from eval_dagster.lake.tables.rows import fields_in
from eval_dagster.project import Project
from eval_dagster.records.judgements import Acceptance, Regression, Verdict
from eval_dagster.results.materializations import history, materialization_at, n_values

_TABLE = "acceptances"
_VARIES = re.compile(r"[\d/\\]")
"""Marks words of a reason that may differ from night to night: a number, a time, an id or a path."""


def read_acceptances(lake: Lake, suite: str) -> list[Acceptance]:
    """All acceptances of a suite, the oldest first. Damaged files are left out, as in the catalog."""
    found: list[Acceptance] = []
    for path in lake.readable_files(lake.root / _TABLE / f"suite={suite}"):
        with suppress(LakeError):
            found += [Acceptance(**fields_in(row, Acceptance) | {"verdict": Verdict(row["verdict"])}) for row in read_rows(path)]
    return sorted(found, key=lambda acceptance: acceptance.accepted_at)


def accept_states(project: Project, suite: str, *, evals: Sequence[str], models: Sequence[str], by: str, why: str) -> list[Acceptance]:
    """Accept states and gaps of a suite like `accept`, and publish the acceptances.

    Raises:
        UsageError: A name is unknown, the suite names its baseline itself and no gap is named, or as in `accept`.
        LakeError: The last judgement is damaged.
    """
    baseline = project.suite(suite).baseline
    project.select(suite=suite, evals=evals, models=models)
    is_named = baseline != LAST_PASSED
    if is_named and not (evals or models):
        raise UsageError(
            f"the baseline of the suite {suite} is {baseline!r}, which acceptances do not change; expected {LAST_PASSED!r} in evals.yaml, "
            "or a result that was not judged, named by its eval and its model"
        )
    accepted = accept(project.lake, suite, evals=evals, models=models, by=by, why=why, gaps_alone=is_named)
    publish(project.lake)
    return accepted


def acceptance_line(accepted: Acceptance) -> str:
    """An acceptance in one line."""
    state = "" if accepted.materialized_at is None else f" of {minute(accepted.materialized_at)}"
    metric = f" ({accepted.metric})" if accepted.metric else ""
    return f"{accepted.eval} on {accepted.model}{metric}{state}: {accepted.verdict.value}, by {accepted.accepted_by}"


def accept(
    lake: Lake, suite: str, *, evals: Sequence[str], models: Sequence[str], by: str, why: str, gaps_alone: bool = False
) -> list[Acceptance]:
    """Accept the last judged states of a suite as baseline and anchor of later results, and its gaps. The report shows `by` and `why`.

    Without names, the red states are accepted. A gap has to be named by its eval or its model. A gap is a result that was not evaluated or
    is not comparable.

    Args:
        lake: The lake with the judgements.
        suite: Name of the suite.
        evals: Names of evals; empty: all.
        models: Names of models; empty: all.
        by: Name of the person.
        why: The reason.
        gaps_alone: Whether only gaps can be accepted, because the suite names its baseline itself.

    Raises:
        UsageError: The reason is missing, nothing can be accepted, or a red state has no value.
        LakeError: The last judgement is damaged.
    """
    if not why.strip() or not by.strip():
        raise UsageError("found an empty `why` or `by`; expected the reason and the name that people read in the report")
    result = current_result(lake, suite)
    if result is None:
        raise UsageError(f"there is nothing to accept: the suite {suite} was never judged; first: eval-dagster run --suite {suite}")
    now = datetime.now(UTC)
    chosen = [row for row in _chosen(result, read_acceptances(lake, suite), evals, models) if row.is_gap or not gaps_alone]
    if not chosen:
        raise UsageError(f"there is nothing to accept in {suite}: {_why_nothing(result, evals, models, gaps_alone=gaps_alone)}")
    accepted = [
        Acceptance(
            suite=suite,
            eval=row.eval,
            model=row.model,
            metric=row.metric if row.is_gap else None,
            materialized_at=_accepted_state(lake, row),
            verdict=row.verdict,
            reason=row.reason if row.is_gap else None,
            accepted_at=now,
            accepted_by=by.strip(),
            why=why.strip(),
        )
        for row in chosen
    ]
    name = new_name("accept", now)
    info = FileInfo(fingerprint=name, version=name, run_id="accept", materialized_at=now.isoformat(timespec="microseconds"))
    lake.add(lake.root / _TABLE / f"suite={suite}" / name, table_of(_TABLE, [asdict(each) for each in accepted]), info)
    return accepted


def is_for(acceptance: Acceptance, reason: str | None) -> bool:
    """Whether a gap was accepted for this reason, ignoring numbers, times and paths."""
    return acceptance.reason is None or _kind(acceptance.reason) == _kind(reason or "")


def _kind(reason: str) -> str:
    """The words of a reason that are the same each night. Only its first part counts, because details and advice follow a semicolon."""
    first = re.split(r";\s|\n", reason.strip(), maxsplit=1)[0]
    return " ".join(word for word in first.split() if not _VARIES.search(word))


def _chosen(result: GateResult, known: Sequence[Acceptance], evals: Sequence[str], models: Sequence[str]) -> list[Regression]:
    """The named gaps, and one row for each other chosen state, a red one if it has several. Accepted ones are left out.

    Green states are chosen only if no named result is red or a gap.
    """
    states = {(each.eval, each.model, each.materialized_at) for each in known if not each.is_gap}
    gaps = {(each.eval, each.model, each.metric) for each in known if each.is_gap and each.accepted_at >= result.judged_at}
    named = [row for row in _named(result, evals, models) if row.verdict is not Verdict.ACCEPTED_GAP]
    stopped = [row for row in named if row.is_red or (row.is_gap and (evals or models))]
    found: dict[tuple[str, str, str | None, bool], Regression] = {}
    for row in stopped or (named if evals or models else ()):
        if row.is_gap and (row.eval, row.model, row.metric) not in gaps:
            found.setdefault((row.eval, row.model, row.metric, True), row)
        elif not row.is_gap and row.materialized_at is not None and (row.eval, row.model, row.materialized_at) not in states:
            found.setdefault((row.eval, row.model, None, False), row)
    return list(found.values())


def _accepted_state(lake: Lake, row: Regression) -> datetime | None:
    """The time of the accepted state. Null for a gap without a state that later results can be compared with.

    A result that was not evaluated has no state of its own; its older state does not count. Raises `UsageError` for a red state without any
    value.
    """
    if row.verdict is Verdict.NOT_EVALUATED or row.materialized_at is None:
        return None
    has_values = True
    with suppress(LakeError):  # a damaged state
        state = materialization_at(history(lake, row.eval, row.model), row.materialized_at)
        has_values = state is None or bool(n_values(state))
    if has_values:
        return row.materialized_at
    if row.is_gap:
        return None
    raise UsageError(
        f"{row.eval} on {row.model} of {minute(row.materialized_at)} has no value, since all its samples are errors; "
        "expected a state that later results can be compared with; see the errors (eval-dagster sql errors) and evaluate it again, "
        "or name other results by --eval and --model"
    )


def _named(result: GateResult, evals: Sequence[str], models: Sequence[str]) -> list[Regression]:
    """The rows of these evals and models. Without names, all rows."""
    return [row for row in result.regressions if (not evals or row.eval in evals) and (not models or row.model in models)]


def _why_nothing(result: GateResult, evals: Sequence[str], models: Sequence[str], *, gaps_alone: bool) -> str:
    judged = f"judged {minute(result.judged_at)}"
    if evals or models:
        named = _named(result, evals, models)
        if not named:
            return f"it has no result of {', '.join([*evals, *models])} ({judged})"
        if gaps_alone:
            return f"what is named was judged ({judged}), and an acceptance does not change the baseline that evals.yaml names"
        if not any(row.materialized_at for row in named):
            return f"{named[0].eval}|{named[0].model} has no result yet ({judged})"
        return f"what is named is accepted already ({judged}); a later result must be judged first"
    if result.gaps:
        named_gaps = ", ".join(dict.fromkeys(f"{row.eval} on {row.model}" for row in result.gaps))
        return f"nothing is red; name what was not judged ({named_gaps}) by --eval and --model to accept the gap ({judged})"
    return f"nothing is red, or it is accepted already ({judged}); name one by --eval and --model to make it the anchor of its drift"
