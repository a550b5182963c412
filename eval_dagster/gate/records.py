"""The result of a gate: the rows of `regressions`, `sample_changes`, `looks` and `acceptances`."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Literal, TypeAlias

from eval_dagster.results.comparison import ChangedSample
from eval_dagster.statistics.verdicts import Verdict

Severity = Literal["error", "warn"]
"""Whether a regression fails the gate or is only reported."""
NO_EARLIER_RESULT = "there is no earlier result to compare with; later results are compared with this one"
"""The reason of a first result. It names neither eval nor model, so all first results have the same reason."""
NO_RESULT = "there is no result yet; evaluate it first"
"""The reason of a result that was never evaluated."""
NEW_METRIC = "the baseline has no such metric; later results are compared with this one"
"""The reason of the first result of a metric."""
Against = Literal["baseline", "anchor"]
"""The state that a result is worse than: the newest state that passed, or the anchor that drift is judged against."""
Confirmation = Literal["unconfirmed", "confirmed", "refuted"]
"""Whether fresh answers show a fall: they were not asked for or not available; they show it; they do not show it."""
RED = (Verdict.REGRESSED, Verdict.ERRORS)
"""The verdicts of results that got worse."""
GAPS = (Verdict.NOT_COMPARABLE, Verdict.NOT_EVALUATED)
"""The verdicts of results that were not judged."""
COMPARED = (*RED, Verdict.IMPROVED, Verdict.NO_CHANGE_SEEN)
"""The verdicts of results that were judged."""
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
    PASSED = "passed"
    """Everything that the suite requires was judged, and nothing is red."""


_ROUNDING = 1e-9
"""Tolerance for the product of a share and a number of results."""


@dataclass(frozen=True, kw_only=True)
class Regression:
    """One metric of an eval and a model against its baseline. Missing data is null, never 0."""

    suite: str
    eval: str
    model: str
    metric: str | None = None
    """Null if the eval has no result at all."""
    value: float | None = None
    """On the samples that both have, like all fields below."""
    baseline: str | None = None
    """The state it is compared with, as `eval-dagster compare` takes it: model@time."""
    baseline_value: float | None = None
    """By the metric of the result. If that differs from the baseline's own metric, the baseline's answers are scored again."""
    stored_baseline_value: float | None = None
    """The baseline's value by its own metric; null if that is also the metric of the result."""
    difference: float | None = None
    """`value` - `baseline_value`, regardless of which direction is better."""
    stderr: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    p_value: float | None = None
    p_adjusted: float | None = None
    """By Holm's correction for all comparisons of the suite."""
    test: str | None = None
    n_common: int = 0
    n_only_value: int = 0
    """Samples for which the baseline has no value. Left out."""
    n_only_baseline: int = 0
    """Samples for which only the baseline has a value. Left out."""
    n_new: int | None = None
    """Samples that the baseline was not asked."""
    n_gone: int | None = None
    """Samples that only the baseline was asked."""
    min_detectable: float | None = None
    """The smallest difference that would have been found with the probability 0.8."""
    noise_floor: float | None = None
    """The difference between two runs of the same model if answers are drawn at random; null if unknown."""
    higher_is_better: bool | None = None
    is_headline: bool | None = None
    """Whether the leaderboard shows this metric, or showed it in the result that this one is compared with."""
    n_errors: int | None = None
    """The errors of the worst of three counts: among the samples that the baseline, or the anchor, could evaluate, and among all."""
    n_evaluable: int | None = None
    """The number of samples that `n_errors` counts."""
    anchor: str | None = None
    """The state that drift is judged against, as `eval-dagster compare` takes it: model@time; null if it is the baseline, or gone."""
    anchor_value: float | None = None
    """On the samples that result and anchor have in common, like `drift` and its p-value."""
    drift: float | None = None
    """The result minus `anchor_value`, regardless of which direction is better."""
    drift_p_value: float | None = None
    drift_p_adjusted: float | None = None
    """By Holm's correction for all comparisons of the suite, including the comparisons with baselines."""
    verdict: Verdict
    """A gap (`not comparable` or `not evaluated`) does not pass."""
    against: Against | None = None
    """The state it is worse than; null if it is not worse."""
    is_passed: bool = False
    """Whether later results are compared with this state."""
    confirmation: Confirmation | None = None
    """Whether the model's fresh answers show the fall that a test found; null without such a fall, or if answers cannot differ."""
    fall_level: float | None = None
    """Two-sided level of the judgement that found the fall; null if `confirmation` is null."""
    n_fresh: int | None = None
    """Samples that were asked again and have a value."""
    fresh_difference: float | None = None
    """The difference, estimated by fresh answers without the selection by the first test."""
    fresh_stderr: float | None = None
    fresh_p_value: float | None = None
    """One-sided: the probability of such a fall among fresh answers if nothing has changed."""
    fresh_level: float | None = None
    """A `fresh_p_value` below this confirms the fall."""
    cause: str | None = None
    """The differences from the baseline, separated by commas: `data`, `samples`, `prompt`, `model`, `engine`, `endpoint`, `metric`; empty
    if nothing differs. `mixed answers` and `mixed baseline`: the result, or the baseline, has answers of several models or states of a
    server.
    """
    reason: str | None = None
    """Why the result was not judged, what it drifted from, or why it is still worse."""
    materialized_at: datetime | None = None
    baseline_materialized_at: datetime | None = None
    anchor_materialized_at: datetime | None = None
    """Null if the state itself is the anchor of later states."""

    @property
    def marks(self) -> tuple[str, ...]:
        """Differences from the baseline besides the model's answers: the metric, and the samples that were asked."""
        ruler = [(self.stored_baseline_value, self.baseline_value), (self.baseline_value, self.value)]
        metric, model = (f"{_figure(before)} → {_figure(after)}" for before, after in ruler)
        is_other = self.stored_baseline_value is not None
        moved = [f"{count} {how}" for count, how in ((self.n_new, "came"), (self.n_gone, "went")) if count]
        return (
            *([f"metric: {metric}, model: {model}"] if is_other else []),
            *([f"samples: {' and '.join(moved)}"] if moved else []),
        )

    @property
    def is_gap(self) -> bool:
        """Whether it was not judged, and nobody accepted that."""
        return self.verdict in GAPS

    @property
    def is_refuted(self) -> bool:
        """Whether fresh answers do not show a fall that was found. Such a state is not red, and does not pass either."""
        return self.confirmation == "refuted"

    @property
    def is_red(self) -> bool:
        """Whether it got worse, or has too many errors."""
        return self.verdict in RED

    @property
    def is_partial(self) -> bool:
        """Whether it was compared on less than half of the baseline's samples."""
        return self.n_common < self.n_only_baseline


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """A state or a gap that a person accepted.

    Later results are compared with an accepted state, as baseline and as anchor. An accepted gap does not keep its suite from passing,
    until the eval and the model are judged again, or the reason of the gap changes.
    """

    suite: str
    eval: str
    model: str
    metric: str | None = None
    """The metric of a gap; null for a state, and for a gap of all metrics."""
    materialized_at: datetime | None
    """The time at which the accepted state was materialized; null for a gap without a state."""
    verdict: Verdict
    """The verdict of the gate before the acceptance."""
    reason: str | None = None
    """Why the accepted gap was not judged. Null for a state, and in earlier releases, whose acceptances count for every reason."""
    accepted_at: datetime
    accepted_by: str
    why: str

    @property
    def is_gap(self) -> bool:
        """Whether a person accepted a missing judgement."""
        return self.verdict in GAPS


@dataclass(frozen=True, kw_only=True)
class FreshSample:
    """A sample that was asked again."""

    eval: str
    model: str
    metric: str
    against: Against
    sample_id: str
    is_flipped: bool
    """Whether it is scored differently than before. All such samples were asked again, and all or a random part of the others."""
    value: float | None
    """The result's value. A metric of all samples together gives a sample no value; then all three values are null."""
    baseline_value: float | None
    fresh_value: float | None
    """Null if the fresh answer is an error, or cannot be scored."""
    has_fresh_score: bool
    """Whether the fresh answer could be scored."""
    fresh_answer: str | None
    sample_name: str | None = None
    """The sample's own name, if any."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """A past result of a headline metric, compared with the reference at the start of its segment of the history."""

    eval: str
    model: str
    metric: str
    materialized_at: datetime
    reference_at: datetime
    """The time at which the reference was materialized."""
    value: float | None
    """On the samples that both have, like all fields below."""
    reference_value: float | None
    difference: float | None
    p_value: float | None
    is_change_point: bool
    """Whether the score left its band here and a new segment starts."""
    cause: str | None
    """The differences from the result before it, as in `Regression`; null if nothing changed."""


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
    regressions: Sequence[Regression]
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
        if self.red:
            return Outcome.REGRESSED
        if self.missing or self.is_empty:
            return Outcome.INCOMPLETE
        return Outcome.PASSED if any(row.verdict in COMPARED for row in self.regressions) else Outcome.FIRST

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
    def red(self) -> list[Regression]:
        """The rows that regressed or have too many errors."""
        return [row for row in self.regressions if row.is_red]

    @property
    def refuted(self) -> list[Regression]:
        """The rows with a fall that fresh answers do not show."""
        return [row for row in self.regressions if row.is_refuted]

    @property
    def is_green(self) -> bool:
        """Whether nothing is red, and everything that the suite requires was judged or has its first result."""
        return self.outcome in (Outcome.PASSED, Outcome.FIRST)

    @property
    def is_failed(self) -> bool:
        """Whether the gate fails: it is not green, and the suite's severity is `error`."""
        return self.severity == "error" and not self.is_green


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def minute(time: datetime) -> str:
    """A time as messages show it: to the minute, with its zone."""
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
