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
"""The reason of a first result. It names neither eval nor model, so that all first results have the same."""
NO_RESULT = "there is no result yet; evaluate it first"
"""The reason of what was never evaluated."""
NEW_METRIC = "the baseline has no such metric; later results are compared with this one"
"""The reason of the first result of a metric."""
Against = Literal["baseline", "anchor"]
"""What a result is worse than: the newest state that passed, or the one that drift is judged against."""
Confirmation = Literal["unconfirmed", "confirmed", "refuted"]
"""What fresh answers say about a fall: they were not asked for, or could not be; they show it, too; they do not show it."""
RED = (Verdict.REGRESSED, Verdict.ERRORS)
"""The verdicts of results that got worse."""
GAPS = (Verdict.NOT_COMPARABLE, Verdict.NOT_EVALUATED)
"""The verdicts of results that were not judged."""
COMPARED = (*RED, Verdict.IMPROVED, Verdict.NO_CHANGE_SEEN)
"""The verdicts of results that were judged."""
Require: TypeAlias = Literal["all"] | float | tuple[str, ...]
"""The results that a suite has to judge: all, a share of its evals and models, or those of the named evals."""


class Outcome(StrEnum):
    """The outcome of a suite's judgement."""

    REGRESSED = "regressed"
    """At least one result regressed, or has too many errors."""
    INCOMPLETE = "incomplete"
    """Nothing is red, but nothing was judged, or less than the suite requires."""
    FIRST = "first results"
    """Nothing could be compared yet: the results are the first ones."""
    PASSED = "passed"
    """All that the suite requires was judged, and nothing is red."""


_ROUNDING = 1e-9
"""Of the product of a share and a number of results."""


@dataclass(frozen=True, kw_only=True)
class Regression:
    """One metric of an eval and a model against its baseline; null where there is no data, never 0."""

    suite: str
    eval: str
    model: str
    metric: str | None = None
    """Null where the eval has no result at all."""
    value: float | None = None
    """On the samples that both have, as all that follows."""
    baseline: str | None = None
    """What it is compared with, as `eval-dagster compare` takes it: model@time."""
    baseline_value: float | None = None
    """By the metric of the result: where that differs from the baseline's own, the baseline's answers are scored again."""
    stored_baseline_value: float | None = None
    """The baseline's value by its own metric; null where that is the metric of the result."""
    difference: float | None = None
    """`value` - `baseline_value`, whichever direction is the better one."""
    stderr: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    p_value: float | None = None
    p_adjusted: float | None = None
    """By Holm's correction for all comparisons of the suite."""
    test: str | None = None
    n_common: int = 0
    n_only_value: int = 0
    """Samples that the baseline has no value for. Left out."""
    n_only_baseline: int = 0
    """Samples that the baseline alone has a value for. Left out."""
    n_new: int | None = None
    """Samples that the baseline was not asked."""
    n_gone: int | None = None
    """Samples that the baseline alone was asked."""
    min_detectable: float | None = None
    """The smallest difference that would have been found with the probability 0.8."""
    noise_floor: float | None = None
    """What two runs of the same model differ by where answers are drawn at random; null where nothing tells."""
    higher_is_better: bool | None = None
    is_headline: bool | None = None
    """Whether the leaderboard shows this metric, or showed it in the result that this one is compared with."""
    n_errors: int | None = None
    """The errors of the worst of three counts: among the samples that the baseline, or the anchor, could evaluate, and among all."""
    n_evaluable: int | None = None
    """How many samples `n_errors` is of."""
    anchor: str | None = None
    """What drift is judged against, as `eval-dagster compare` takes it: model@time; null where it is the baseline, or gone."""
    anchor_value: float | None = None
    """On the samples that result and anchor have in common, as `drift` and its p-value."""
    drift: float | None = None
    """The result less `anchor_value`, whichever direction is the better one."""
    drift_p_value: float | None = None
    drift_p_adjusted: float | None = None
    """By Holm's correction for all comparisons of the suite, those with baselines among them."""
    verdict: Verdict
    """A gap, which is `not comparable` or `not evaluated`, does not pass."""
    against: Against | None = None
    """What it is worse than; null where it is not worse."""
    is_passed: bool = False
    """Whether later results are compared with this state."""
    confirmation: Confirmation | None = None
    """What fresh answers of the model say about the fall that a test found; null without such a fall, or where no answer can differ."""
    fall_level: float | None = None
    """Two-sided level of the judgement that found the fall; null where `confirmation` is."""
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
    """What differs from the baseline: `data`, `samples`, `prompt`, `model`, `engine`, `endpoint`, `metric`, with commas between; empty if
    nothing. `mixed answers` and `mixed baseline`: the result, or the baseline, has answers of several models or states of a server."""
    reason: str | None = None
    """Why the result was not judged, what it drifted from, or why it is still worse."""
    materialized_at: datetime | None = None
    baseline_materialized_at: datetime | None = None
    anchor_materialized_at: datetime | None = None
    """Null where the state itself is the anchor of later ones."""

    @property
    def marks(self) -> tuple[str, ...]:
        """Differences from the baseline beside the model's answers: the metric, and the samples that were asked."""
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
        """Whether a fall was found that fresh answers do not show. Such a state is not red, and does not pass either."""
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
    until the eval and the model are judged again, or the reason of the gap becomes another one.
    """

    suite: str
    eval: str
    model: str
    metric: str | None = None
    """The metric of a gap; null for a state, and for a gap of all metrics."""
    materialized_at: datetime | None
    """When the accepted state was materialized; null for a gap without a state."""
    verdict: Verdict
    """The verdict of the gate before the acceptance."""
    reason: str | None = None
    """Why the accepted gap was not judged; null for a state, and in earlier releases, whose acceptances count for every reason."""
    accepted_at: datetime
    accepted_by: str
    why: str

    @property
    def is_gap(self) -> bool:
        """Whether a person accepted that there is no judgement."""
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
    """Of the result. A metric of all samples together gives a sample no value; then all three are null."""
    baseline_value: float | None
    fresh_value: float | None
    """Null where the fresh answer is an error, or cannot be scored."""
    has_fresh_score: bool
    """Whether the fresh answer could be scored."""
    fresh_answer: str | None
    sample_name: str | None = None
    """The sample's own name. Null without one."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """A past result of a headline metric, compared with the reference that its segment of the history starts at."""

    eval: str
    model: str
    metric: str
    materialized_at: datetime
    reference_at: datetime
    """When the reference was materialized."""
    value: float | None
    """On the samples that both have, as all that follows."""
    reference_value: float | None
    difference: float | None
    p_value: float | None
    is_change_point: bool
    """Whether the score left its band here, so that a new segment starts."""
    cause: str | None
    """What differs from the result before it, as in `Regression`; null where nothing changed."""


@dataclass(frozen=True, kw_only=True)
class GateResult:
    """A suite, judged."""

    suite: str
    judged_at: datetime
    run_id: str
    alpha: float
    """At most this share of unchanged suites turns red in 30 days."""
    level: float
    """Two-sided level of significance of this judgement: its share of `alpha`. 0 where nothing was tested."""
    severity: Severity
    require: Require = "all"
    """The results that the suite has to judge."""
    regressions: Sequence[Regression]
    changes: Sequence[ChangedSample]
    looks: Sequence[Look] = ()
    """The history of each headline score, the oldest first within an eval and a model."""
    fresh: Sequence[FreshSample] = ()
    """The samples that this judgement has asked again; not read back."""
    warnings: Sequence[str] = ()
    """Problems that do not affect the result; not kept."""

    @property
    def change_points(self) -> list[Look]:
        """Where scores left their bands."""
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
        """Whether there is not even a first result: the suite has judged nothing."""
        return not any(row.verdict in (*COMPARED, Verdict.FIRST_RESULT) for row in self.regressions)

    @property
    def gaps(self) -> list[Regression]:
        """The rows that were not judged, without those that a person accepted."""
        return [row for row in self.regressions if row.is_gap]

    @property
    def missing(self) -> list[Regression]:
        """The gaps that keep the suite from passing: those that `require` does not allow."""
        if isinstance(self.require, tuple):
            return [row for row in self.gaps if row.eval in self.require]
        if self.require == "all":
            return self.gaps
        asked = {(row.eval, row.model) for row in self.regressions if row.verdict is not Verdict.ACCEPTED_GAP}
        judged = asked - {(row.eval, row.model) for row in self.gaps}
        return [] if len(judged) >= self.require * len(asked) - _ROUNDING else self.gaps

    @property
    def red(self) -> list[Regression]:
        """The rows that regressed, and those of evals with too many errors."""
        return [row for row in self.regressions if row.is_red]

    @property
    def refuted(self) -> list[Regression]:
        """The rows whose fall fresh answers do not show."""
        return [row for row in self.regressions if row.is_refuted]

    @property
    def is_green(self) -> bool:
        """Whether nothing is red, and all that the suite requires was judged or has its first result."""
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
