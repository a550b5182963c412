"""Tells whether a result is from the last evaluation, or older because the last evaluation failed."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime

from eval_dagster.gate.records import minute
from eval_dagster.lake.attempts import Attempt
from eval_dagster.stages.results import STAGES

_ORDER = list(STAGES)


class Attempts:
    """How each eval was last evaluated with each model."""

    def __init__(self, attempts: Sequence[Attempt], *, since: datetime | None = None) -> None:
        """Take attempts, the oldest first. If `since` is given, only attempts that ended then or later count."""
        self._since = since
        self._by_partition: dict[tuple[str, str], list[Attempt]] = defaultdict(list)
        for attempt in attempts:
            if since is None or attempt.finished_at >= since:
                self._by_partition[attempt.eval, attempt.model].append(attempt)

    def problem(self, eval_name: str, model: str) -> str | None:
        """Why the current result is not from the last evaluation; None if it is.

        A failure counts until the stage that failed, or a later one, succeeds. So does a limit that kept requests from being sent.
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
