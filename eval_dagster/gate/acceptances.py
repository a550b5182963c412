"""Acceptances: states that a person accepts although the gate did not let them pass, with name, time and reason."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime

from eval_dagster.errors import LakeError, UsageError
from eval_dagster.gate.materializations import history, n_values, point_at
from eval_dagster.gate.records import Acceptance, GateResult, Regression
from eval_dagster.gate.results import current_result
from eval_dagster.lake.files import FileInfo, Lake, new_name, read_rows, table_of
from eval_dagster.lake.rows import fields_in
from eval_dagster.statistics.verdicts import Verdict

_TABLE = "acceptances"


def read_acceptances(lake: Lake, suite: str) -> list[Acceptance]:
    """All acceptances of a suite, the oldest first. Damaged files are left out, as in the catalog."""
    found: list[Acceptance] = []
    for path in lake.files(lake.root / _TABLE / f"suite={suite}"):
        with suppress(LakeError):
            found += [Acceptance(**fields_in(row, Acceptance) | {"verdict": Verdict(row["verdict"])}) for row in read_rows(path)]
    return sorted(found, key=lambda acceptance: acceptance.accepted_at)


def accept(lake: Lake, suite: str, *, evals: Sequence[str], models: Sequence[str], by: str, why: str) -> list[Acceptance]:
    """Accept the last judged states of a suite as baseline and anchor of later results.

    These are the states of the named evals and models, or the red ones if none is named. The report shows `by` and `why`.

    Raises:
        UsageError: There is no reason, nothing to accept, or a state without any value.
        LakeError: The last judgement is damaged.
    """
    if not why.strip() or not by.strip():
        raise UsageError("found an empty --why or --by; expected the reason and the name that people read in the report")
    result = current_result(lake, suite)
    if result is None:
        raise UsageError(f"there is nothing to accept: the suite {suite} was never judged; first: eval-dagster run --suite {suite}")
    now = datetime.now(UTC)
    accepted = [
        Acceptance(
            suite=suite,
            eval=row.eval,
            model=row.model,
            materialized_at=row.materialized_at,
            verdict=row.verdict,
            accepted_at=now,
            accepted_by=by.strip(),
            why=why.strip(),
        )
        for row in _chosen(result, read_acceptances(lake, suite), evals, models)
        if row.materialized_at is not None
    ]
    if not accepted:
        raise UsageError(f"there is nothing to accept in {suite}: {_why_nothing(result, evals, models)}")
    _require_values(lake, accepted)
    name = new_name("accept", now)
    info = FileInfo(fingerprint=name, version=name, run_id="accept", materialized_at=now.isoformat(timespec="microseconds"))
    lake.add(lake.root / _TABLE / f"suite={suite}" / name, table_of(_TABLE, [asdict(each) for each in accepted]), info)
    return accepted


def _chosen(result: GateResult, known: Sequence[Acceptance], evals: Sequence[str], models: Sequence[str]) -> list[Regression]:
    """One row for each chosen state, a red one if there are several. Accepted states are left out."""
    done = {(each.eval, each.model, each.materialized_at) for each in known}
    found: dict[tuple[str, str], Regression] = {}
    for row in sorted(_named(result, evals, models), key=lambda row: not row.is_red):
        if (evals or models or row.is_red) and (row.eval, row.model, row.materialized_at) not in done:
            found.setdefault((row.eval, row.model), row)
    return list(found.values())


def _named(result: GateResult, evals: Sequence[str], models: Sequence[str]) -> list[Regression]:
    """The rows of these evals and models; of all where none is named."""
    return [row for row in result.regressions if (not evals or row.eval in evals) and (not models or row.model in models)]


def _require_values(lake: Lake, accepted: Sequence[Acceptance]) -> None:
    """Raise `UsageError` if a state has no value: nothing could be compared with it."""
    for each in accepted:
        state = point_at(history(lake, each.eval, each.model), each.materialized_at)
        if state is not None and not n_values(state):
            raise UsageError(
                f"{each.eval} on {each.model} of {each.materialized_at:%Y-%m-%d %H:%M} UTC has no value, since all its samples are errors; "
                "expected a state that later results can be compared with; see the errors (eval-dagster sql errors) and evaluate it again, "
                "or name other results by --eval and --model"
            )


def _why_nothing(result: GateResult, evals: Sequence[str], models: Sequence[str]) -> str:
    judged = f"judged {result.judged_at:%Y-%m-%d %H:%M} UTC"
    if evals or models:
        named = _named(result, evals, models)
        if not named:
            return f"it has no result of {', '.join([*evals, *models])} ({judged})"
        if not any(row.materialized_at for row in named):
            return f"{named[0].eval}|{named[0].model} has no result yet ({judged})"
        return f"what is named is accepted already ({judged}); a later result must be judged first"
    return f"nothing is red, or it is accepted already ({judged}); name one by --eval and --model to make it the anchor of its drift"
