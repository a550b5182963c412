"""Tells whether a result is from the last evaluation, or older because the last evaluation failed."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime

from eval_dagster.gate.records import GateResult, minute
from eval_dagster.lake.tables.columns import Attempt
from eval_dagster.records.judgements import Verdict
from eval_dagster.stages.partition import STAGES, partition_key

_ORDER = list(STAGES)


class Attempts:
    """How each eval was last evaluated with each model."""

    def __init__(self, attempts: Sequence[Attempt], *, since: datetime | None = None) -> None:
        """Take attempts, the oldest first. With `since`, only attempts that ended at or after this time count."""
        self._since = since
        self._by_partition: dict[tuple[str, str], list[Attempt]] = defaultdict(list)
        for attempt in attempts:
            if since is None or attempt.finished_at >= since:
                self._by_partition[attempt.eval, attempt.model].append(attempt)

    def problem(self, eval_name: str, model: str) -> str | None:
        """The reason that the current result is not from the last evaluation. None if it is.

        A failure counts until the failed stage, or a later one, succeeds. So does a limit that kept requests from being sent.
        """
        attempts = self._by_partition[eval_name, model]
        failure: Attempt | None = None
        for attempt in attempts:
            if attempt.status != "ok":
                failure = attempt
            elif failure is not None and _ORDER.index(attempt.stage) >= _ORDER.index(failure.stage):
                failure = None
        if failure is not None:
            how = f"failed at {failure.stage}" if failure.status == "failed" else "was not evaluated"
            return f"{how} on {minute(failure.finished_at)}: {failure.message}"
        if self._since is not None and not any(attempt.stage == _ORDER[-1] for attempt in attempts):
            return f"was not evaluated in this run (since {minute(self._since)}): the last result, if there is one, is older"
        return None


def excused(result: GateResult | None, attempts: Sequence[Attempt]) -> set[str]:
    """The beginnings, before the colon, of the failure messages that a suite tolerates.

    They belong to accepted gaps and to gaps that `require` allows. A message begins with the stage, and the eval with or without a model.
    Without a judgement, none is tolerated.
    """
    rows = result.regressions if result else ()
    gaps = [row for row in rows if row.verdict is Verdict.ACCEPTED_GAP or (result and row.is_gap and row not in result.missing)]
    known = {(row.eval, row.model) for row in gaps}
    failed = [each for each in attempts if each.status == "failed"]
    counted = {each.eval for each in failed if (each.eval, each.model) not in known}
    found = [each for each in failed if (each.eval, each.model) in known]
    snapshots = {f"{each.stage} {each.eval}" for each in found if each.eval not in counted}
    return {f"{each.stage} {partition_key(each.eval, each.model)}" for each in found} | snapshots
