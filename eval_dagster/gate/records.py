"""The result of a gate: the rows of `regressions`, `sample_changes`, `looks` and `acceptances`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Literal, TypeAlias

from eval_dagster.gate.proof import Critical
from eval_dagster.records.aggregate_judgements import AggregateRegression
from eval_dagster.records.judgements import COMPARED, ChangedSample, FreshSample, Look, Regression, Verdict
from eval_dagster.statistics.noninferiority import LEVEL

Severity = Literal["error", "warn"]
"""Whether a regression fails the gate or is only reported."""
NO_EARLIER_RESULT = "there is no earlier result to compare with; later results are compared with this one"
"""The reason of a first result. It names neither eval nor model, so all first results have the same reason."""
NO_RESULT = "there is no result yet; evaluate it first"
"""The reason of a result that was never evaluated."""
NEW_METRIC = "the baseline has no such metric; later results are compared with this one"
"""The reason of the first result of a metric."""
Require: TypeAlias = Literal["all"] | float | tuple[str, ...]
"""The results that a suite has to judge: all, a share of its evals and models, or the results of the named evals."""


class Outcome(StrEnum):
    """The outcome of a suite's judgement."""

    REGRESSED = "regressed"
    """At least one result regressed, or has too many errors."""
    INCOMPLETE = "incomplete"
    """Nothing is red, but nothing was judged, or less than the suite requires."""
    FIRST = "first results"
    """Nothing could be compared yet, because the results are the first ones."""
    NOT_PROVEN = "not proven"
    """Nothing is red or missing, but the proof that the suite requires is missing."""
    PASSED = "passed"
    """Everything that the suite requires was judged, and nothing is red."""


_ROUNDING = 1e-9
"""Tolerance for the product of a share and a number of results."""
_MINUTES = re.compile(r" on \d{4}-\d\d-\d\d \d\d:\d\d UTC")


@dataclass(frozen=True, kw_only=True)
class GateResult:
    """The judgement of a suite."""

    suite: str
    judged_at: datetime
    run_id: str
    alpha: float
    """At most this share of unchanged suites turns red in 30 days."""
    level: float
    """Two-sided level of significance of this judgement: its share of `alpha`. 0 if nothing was tested."""
    severity: Severity
    require: Require = "all"
    """The results that the suite has to judge."""
    critical: Critical = "all"
    """The evals that must each be proven not to be worse."""
    require_proof: bool = False
    """Whether a suite that is not proven fails."""
    supporting_p_value: float | None = None
    """The p-value of the mean of the other evals. Null if there are none with a margin."""
    regressions: Sequence[Regression]
    aggregates: Sequence[AggregateRegression] = ()
    """The aggregates of the suite."""
    changes: Sequence[ChangedSample]
    looks: Sequence[Look] = ()
    """The history of each headline score, the oldest first within an eval and a model."""
    fresh: Sequence[FreshSample] = ()
    """The samples that this judgement asked again. Not read back."""
    warnings: Sequence[str] = ()
    """Problems that do not affect the result. Not stored."""

    @property
    def change_points(self) -> list[Look]:
        """The looks at which scores left their bands."""
        return [look for look in self.looks if look.is_change_point]

    def with_verdict(self, verdict: Verdict) -> list[Regression]:
        """The rows of one verdict."""
        return [row for row in self.regressions if row.verdict is verdict]

    @property
    def outcome(self) -> Outcome:
        """The outcome of the suite."""
        if self.red or self.red_aggregates:
            return Outcome.REGRESSED
        if self.missing or self.missing_aggregates or self.is_empty:
            return Outcome.INCOMPLETE
        if not any(row.verdict in COMPARED for row in self.regressions):
            return Outcome.FIRST
        return Outcome.NOT_PROVEN if self.require_proof and (self.unproven or not self.is_mean_proven) else Outcome.PASSED

    @property
    def is_first(self) -> bool:
        """Whether all rows are first results, as in the first night of a suite."""
        return bool(self.regressions) and all(row.verdict is Verdict.FIRST_RESULT for row in self.regressions)

    @property
    def is_empty(self) -> bool:
        """Whether the suite has judged nothing, without even a first result."""
        return not any(row.verdict in (*COMPARED, Verdict.FIRST_RESULT) for row in self.regressions)

    @property
    def gaps(self) -> list[Regression]:
        """The rows that were not judged, without accepted ones."""
        return [row for row in self.regressions if row.is_gap]

    @property
    def missing(self) -> list[Regression]:
        """The gaps that keep the suite from passing, because `require` does not allow them."""
        if isinstance(self.require, tuple):
            return [row for row in self.gaps if row.eval in self.require]
        if self.require == "all":
            return self.gaps
        asked = {(row.eval, row.model) for row in self.regressions if row.verdict is not Verdict.ACCEPTED_GAP}
        judged = asked - {(row.eval, row.model) for row in self.gaps}
        return [] if len(judged) >= self.require * len(asked) - _ROUNDING else self.gaps

    @property
    def unproven(self) -> list[Regression]:
        """The headline results of critical evals that are not proven, and what of these evals was not judged.

        First results and accepted gaps are left out.
        """
        gaps = (row for row in self.gaps if self.critical == "all" or row.eval in self.critical)
        compared = (row for row in self.regressions if self.is_critical(row) and row.verdict in COMPARED and not row.is_proven)
        return [*compared, *gaps]

    @property
    def without_margin(self) -> list[Regression]:
        """The compared headline results of evals that are not critical, of which nothing can be proven since they have no margin."""
        return [row for row in self.regressions if self._is_supporting(row) and row.margin is None]

    @property
    def is_mean_proven(self) -> bool:
        """Whether the mean of the evals that are not critical is proven, or none of them has a margin. Evals without one are left out."""
        if all(row.margin is None for row in self.regressions if self._is_supporting(row)):
            return True
        return self.supporting_p_value is not None and self.supporting_p_value <= LEVEL

    @property
    def is_proven(self) -> bool:
        """Whether the suite is proven not to be worse: nothing is red or missing, each critical eval is proven, and the mean of others."""
        if not self.regressions or any(row.verdict not in COMPARED or row.is_red for row in self.regressions):
            return False
        if self.red_aggregates or self.missing_aggregates:
            return False
        return not self.unproven and self.is_mean_proven and any(row.is_proven for row in self.regressions)

    def is_critical(self, row: Regression) -> bool:
        """Whether a row is a headline result of an eval that must be proven by itself."""
        return bool(row.is_headline) and (self.critical == "all" or row.eval in self.critical)

    def _is_supporting(self, row: Regression) -> bool:
        return bool(row.is_headline) and row.verdict in COMPARED and not self.is_critical(row)

    @property
    def red(self) -> list[Regression]:
        """The rows that regressed or have too many errors."""
        return [row for row in self.regressions if row.is_red]

    @property
    def red_aggregates(self) -> list[AggregateRegression]:
        """The aggregates that regressed."""
        return [row for row in self.aggregates if row.is_red]

    @property
    def missing_aggregates(self) -> list[AggregateRegression]:
        """The aggregates that were not judged and keep the suite from passing: one of their evals does, or they have their own reason.

        So an aggregate is left out with the evals that `require` allows to be missing, and in a night in which its evals stopped early.
        """
        absent = {(row.eval, row.model) for row in self.missing}
        return [
            row for row in self.aggregates if row.is_gap and not (row.missing and absent.isdisjoint((e, row.model) for e in row.missing))
        ]

    @property
    def refuted(self) -> list[Regression]:
        """The rows with a fall that fresh answers do not show."""
        return [row for row in self.regressions if row.is_refuted]

    @property
    def drifting(self) -> list[Regression]:
        """The rows that are not red and fall slowly. They pass, with a warning."""
        return [row for row in self.regressions if row.is_drifting]

    @property
    def is_green(self) -> bool:
        """Whether nothing is red, and everything that the suite requires was judged or has its first result."""
        return self.outcome in (Outcome.PASSED, Outcome.FIRST)

    @property
    def is_failed(self) -> bool:
        """Whether the gate fails: it is not green, and the suite's severity is `error`."""
        return self.severity == "error" and not self.is_green


def minute(time: datetime) -> str:
    """A time as messages show it: to the minute, with its zone."""
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def without_minutes(text: str) -> str:
    """A message without the times that `minute` wrote, so that one failure of several models is one reason."""
    return _MINUTES.sub("", text)
