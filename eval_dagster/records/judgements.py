"""The records of a suite's judgement. Each is a row of a table: `regressions`, `sample_changes`, `looks`, `confirmations`, `acceptances`.

Their docstrings are the meanings of the columns in the reference page of the relations.
"""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal, NamedTuple


class Verdict(StrEnum):
    """The verdict about a result."""

    REGRESSED = "regressed"
    ERRORS = "errors"
    """More samples are errors than the suite allows, so the scores of the other samples mean little."""
    IMPROVED = "improved"
    NOT_WORSE = "not worse (proven)"
    """A fall of the margin is refuted, against the baseline and against the anchor."""
    NO_CHANGE_SEEN = "no change seen"
    """There can be a smaller change: `Comparison.min_detectable` is the smallest difference that would have been detected."""
    FIRST_RESULT = "first result"
    """There is no earlier result. Later results are compared with this one."""
    ACCEPTED_GAP = "accepted gap"
    """It was not evaluated or is not comparable, and a person accepted that."""
    NOT_COMPARABLE = "not comparable"
    """It could not be judged: fewer than two independent common samples, no value of the metric, or the baseline is gone."""
    NOT_EVALUATED = "not evaluated"
    """There is no result of the last evaluation: it failed, was kept from being evaluated, or never took place."""


Against = Literal["baseline", "anchor"]
"""The state that a result is worse than: the newest state that passed, or the anchor that drift is judged against."""
Confirmation = Literal["unconfirmed", "confirmed", "refuted"]
"""Whether fresh answers show a fall: they were not asked for or not available; they show it; they do not show it."""
RED = (Verdict.REGRESSED, Verdict.ERRORS)
"""The verdicts of results that got worse."""
GAPS = (Verdict.NOT_COMPARABLE, Verdict.NOT_EVALUATED)
"""The verdicts of results that were not judged."""
SOUND = (Verdict.IMPROVED, Verdict.NOT_WORSE, Verdict.NO_CHANGE_SEEN)
"""The verdicts of results that were judged and are not red."""
COMPARED = (*RED, *SOUND)
"""The verdicts of results that were judged."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The judgement that a row belongs to."""

    suite: str
    judged_at: datetime


@dataclass(frozen=True, kw_only=True)
class JudgedInRun(Judged):
    """The judgement that a row belongs to, with its run."""

    run_id: str


@dataclass(frozen=True, kw_only=True)
class Regression:
    """One metric of an eval and a model against its baseline. Missing data is null, never 0."""

    suite: str
    eval: str
    model: str
    metric: str | None = None
    """Name of the metric. Null if the eval has no result at all."""
    value: float | None = None
    """Value of the metric on the common samples. Null if there is none."""
    baseline: str | None = None
    """The state that the result is compared with, as `model@time`."""
    baseline_value: float | None = None
    """Value of the baseline on the common samples, by the metric of the result. If that differs from the metric of its own night, the
    baseline's answers are scored again.
    """
    stored_baseline_value: float | None = None
    """Value of the baseline by the metric of its own night. Null if that is the metric of the result."""
    difference: float | None = None
    """`value` - `baseline_value`, whichever direction is better."""
    stderr: float | None = None
    """Standard error of the difference."""
    ci_low: float | None = None
    ci_high: float | None = None
    p_value: float | None = None
    p_adjusted: float | None = None
    """P-value after Holm's correction for all comparisons of the suite."""
    test: str | None = None
    """Name of the statistical test."""
    n_common: int = 0
    """Samples that both have a value for."""
    n_only_value: int = 0
    """Samples that only the result has a value for. They are left out."""
    n_only_baseline: int = 0
    """Samples that only the baseline has a value for. They are left out."""
    n_new: int | None = None
    """Samples that the baseline was not asked."""
    n_gone: int | None = None
    """Samples that only the baseline was asked."""
    min_detectable: float | None = None
    """The smallest difference that would have been found with the probability 0.8."""
    noise_floor: float | None = None
    """Difference that 95 of 100 pairs of runs of the same model stay below, if answers are drawn at random. Null if unknown."""
    margin: float | None = None
    """The fall that matters, in the metric's unit, for the proof that the result is not worse. Null if none is set."""
    margin_p_value: float | None = None
    """One-sided: the probability of a result at least this good if the score had fallen by `margin`. The larger of the two p-values against
    baseline and anchor. Null if nothing can be proven.
    """
    is_proven: bool | None = None
    """Whether the result is proven not to be worse by `margin`: `margin_p_value` is at most `margin_level`, and it is not red. Null in rows
    of earlier releases, and if nothing was compared.
    """
    pooled_baseline: tuple[datetime, ...] = ()
    """Times of the states, equal in model, prompts, data and metric, whose mean is the baseline of the proof, the oldest first. Empty if it
    is the baseline alone.
    """
    pooled_anchor: tuple[datetime, ...] = ()
    """The same of the anchor. Empty if it is the anchor alone, or if the anchor is in `pooled_baseline` with all of its states."""
    unproven_reason: str | None = None
    """Why it cannot be proven, whatever the answers are: no margin, too few samples. Null otherwise."""
    higher_is_better: bool | None = None
    is_headline: bool | None = None
    """Whether the leaderboard shows this metric, or showed it in the result that this one is compared with."""
    n_errors: int | None = None
    """The errors of the worst of three counts: among the samples that the baseline, or the anchor, could evaluate, and among all."""
    n_evaluable: int | None = None
    """The number of samples that `n_errors` counts."""
    anchor: str | None = None
    """The state that drift is compared with, as `model@time`. Null if it is the baseline, or deleted."""
    anchor_value: float | None = None
    """Value of the anchor on the samples that result and anchor have in common."""
    drift: float | None = None
    """The result minus `anchor_value`, whichever direction is better."""
    drift_p_value: float | None = None
    """Two-sided p-value of the drift."""
    drift_p_adjusted: float | None = None
    """P-value of the drift after Holm's correction for all comparisons of the suite, including the comparisons with baselines."""
    drift_e_value: float | None = None
    """The largest evidence of a slow fall since the anchor, from all states since then; 1 at first. If nothing changes, it ever reaches x
    with at most the probability 1 / x. Null without an anchor, for metrics of all samples together, for a night that stopped early, if the
    scores of the anchor or of the result cannot be read, and in rows of earlier releases.
    """
    drift_e_limit: float | None = None
    """The evidence from which a drift is a warning: the number of the suite's results divided by 0.05."""
    drift_since: datetime | None = None
    """Time of the state after which the fall began, by the bet that won most. Null if `drift_e_value` is."""
    is_drifting: bool | None = None
    """Whether a result that is not red falls slowly: `drift_e_value` has reached `drift_e_limit`, and it is worse than the anchor with a
    p-value of at most 0.05. A warning; the result passes. Null if `drift_e_value` is.
    """
    verdict: Verdict
    """`regressed`, `errors`, `improved`, `not worse (proven)`, `no change seen`, `first result`, `accepted gap`, `not comparable` or `not
    evaluated`. The last two do not pass.
    """
    outcome: str | None = field(default=None, compare=False)
    """Outcome of the suite, the same in all rows of a judgement: `regressed`, `incomplete`, `not proven`, `passed` or `first results`. Null
    in rows of earlier releases.
    """
    is_suite_proven: bool | None = field(default=None, compare=False)
    """Whether the suite is proven not to be worse, the same in all rows of a judgement: nothing is red or missing, each critical eval is
    proven, and the others are by their mean at half of their margins. Null in rows of earlier releases.
    """
    against: Against | None = None
    """The state that the result is worse than: `baseline` or `anchor`. Null if it is not worse."""
    is_passed: bool = False
    """Whether later results are compared with this state."""
    held_by: str | None = None
    """The red aggregate that keeps a sound state from being compared with by later results. Null without one."""
    confirmation: Confirmation | None = None
    """The verdict of fresh answers on a fall that a test found: `confirmed`, `refuted`, or `unconfirmed` (none could be had). Null without
    such a fall, or if answers cannot differ.
    """
    fall_level: float | None = None
    """Two-sided level of the judgement that found the fall. Null if `confirmation` is null."""
    n_fresh: int | None = None
    """Samples that were asked again and have a value."""
    fresh_difference: float | None = None
    """The difference, estimated by fresh answers without the selection by the first test."""
    fresh_stderr: float | None = None
    """Standard error of `fresh_difference`."""
    fresh_p_value: float | None = None
    """One-sided: the probability of such a fall among fresh answers if nothing has changed."""
    fresh_level: float | None = None
    """A `fresh_p_value` below this confirms the fall."""
    cause: str | None = None
    """The differences from the baseline, separated by commas: `data`, `samples`, `prompt`, `model`, `engine`, `endpoint`, `metric`; empty
    if nothing differs. `budget`: answers that were cut off explain at least half of the difference; `format`: texts in which no answer was
    found; neither has `model` beside it. `mixed answers` and `mixed baseline`: the result, or the baseline, has answers of several models
    or states of a server.
    """
    reason: str | None = None
    """Why the result was not judged, what it drifted from, or why it is still worse."""
    n_not_asked: int | None = None
    """Samples that were not asked, because the gate stopped the eval early, or the score is an estimate. Null if all were. Such a state is
    never a baseline.
    """
    is_estimate: bool | None = None
    """Whether they were not asked because the score is an estimate, which is not judged. Null in rows of earlier releases."""
    look: int | None = None
    """The look at which it was stopped, from 1; `night_plans` has all looks. The p-value, the level of the proof and the interval are those
    of a test that is repeated at looks. Null if it was not stopped.
    """
    stop_reason: str | None = None
    """Why it was stopped. Null if it was not."""
    whole_reason: str | None = None
    """Why no look could stop it, in a suite that may stop early: its samples come in clusters, it is one of `full_every` results. Null if
    the looks decided, if it was asked by a run without the suite, if nothing was asked anew, and in rows of earlier releases.
    """
    is_unchanged: bool | None = None
    """Whether its answers are those of the baseline, so that nothing was asked anew. Null in rows of earlier releases, and if nothing was
    compared.
    """
    margin_level: float | None = None
    """The level at which `margin_p_value` is a proof: 0.05, or the part that is due at a look. Null in rows of earlier releases."""
    materialized_at: datetime | None = None
    baseline_materialized_at: datetime | None = None
    """Time of the baseline's materialization."""
    anchor_materialized_at: datetime | None = None
    """Time of the anchor's materialization. Null if this result is the anchor of later ones."""

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
    def stopped(self) -> str | None:
        """How many samples were not asked, and why. None if all were, and of an estimate, whose reason says it."""
        is_stopped = self.n_not_asked and not self.is_estimate
        return f"stopped early, {self.n_not_asked:,} samples not asked: {self.stop_reason}" if is_stopped else None

    @property
    def drifts(self) -> str | None:
        """The warning of a slow fall. None if there is none."""
        if not self.is_drifting:
            return None
        evidence = f"evidence {self.drift_e_value:,.0f} of {self.drift_e_limit:,.0f}"
        since = f"drift since {self.drift_since:%Y-%m-%d %H:%M} UTC"
        if self.n_not_asked:  # the values of a part do not show it
            return f"{since}: {evidence} in the last whole night"
        before, fall = (self.baseline_value, self.difference) if self.drift is None else (self.anchor_value, self.drift)
        values = f"{_figure(before)} → {_figure((before or 0.0) + (fall or 0.0))}"
        return f"{since}: {values}, {evidence}"

    @property
    def remarks(self) -> tuple[str, ...]:
        """The texts that belong beside the verdict: the marks, the early stop, a drift, and the reason."""
        return (*self.marks, *(said for said in (self.stopped, self.drifts, self.reason) if said))

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
    """Metric of an accepted gap. Null for a state, and for a gap of all metrics."""
    materialized_at: datetime | None
    """Time at which the accepted state was materialized. Null for a gap without a state."""
    verdict: Verdict
    """The verdict of the gate before the acceptance."""
    reason: str | None = None
    """Why the accepted gap was not judged. Null for a state, and in earlier releases, whose acceptances count for every reason."""
    accepted_at: datetime
    """Time of the acceptance."""
    accepted_by: str
    """Who accepted."""
    why: str
    """Reason of the acceptance."""

    @property
    def is_gap(self) -> bool:
        """Whether a person accepted a missing judgement."""
        return self.verdict in GAPS


@dataclass(frozen=True, kw_only=True)
class ChangedSample:
    """A sample that result and baseline score differently, or that only one of them has."""

    eval: str
    model: str
    metric: str
    sample_id: str
    subject: str
    value: float | None
    """Value of the metric for the sample. Null if there is none."""
    baseline_value: float | None
    """Score of the sample in the baseline. Null if the baseline has none."""
    prompt: str | None
    """The text that the model receives."""
    gold: tuple[str, ...]
    """The correct answers."""
    answer: str | None
    """The text without its reasoning, or the choice with the highest log-probability."""
    baseline_answer: str | None
    """The answer of the baseline."""
    sample_name: str | None = None

    @property
    def title(self) -> str:
        """The sample for people: its own name with its id, or only the id."""
        return f"{self.sample_name} ({self.sample_id})" if self.sample_name else self.sample_id


@dataclass(frozen=True, kw_only=True)
class FreshSample:
    """A sample that was asked again."""

    eval: str
    model: str
    metric: str
    against: Against
    """The state that the result was found to be worse than: `baseline` or `anchor`."""
    sample_id: str
    is_flipped: bool
    """Whether the result scores the sample differently. All such samples are asked again, and all or a random part of the others."""
    value: float | None
    """Score of the sample in the result. Null for a metric of all samples together, as `baseline_value` and `fresh_value`."""
    baseline_value: float | None
    """Score of the sample in that state."""
    fresh_value: float | None
    """Score of the fresh answer. Null if the answer is an error, or cannot be scored."""
    has_fresh_score: bool
    """Whether the fresh answer could be scored."""
    fresh_answer: str | None
    """The fresh answer; an error with its reason."""
    sample_name: str | None = None


@dataclass(frozen=True, kw_only=True)
class Look:
    """A past result of a headline metric, compared with the reference at the start of its segment of the history."""

    eval: str
    model: str
    metric: str
    materialized_at: datetime
    reference_at: datetime
    """Time of the result that the segment of the history starts at."""
    value: float | None
    """Value of the metric on the common samples. Null if there is none."""
    reference_value: float | None
    """Value of that result on the common samples."""
    difference: float | None
    """`value` - `reference_value`, whichever direction is better."""
    p_value: float | None
    """Two-sided p-value."""
    is_change_point: bool
    """Whether the score left its band here and a new segment starts."""
    cause: str | None
    """The differences from the result before it, as in `regressions`. Null if nothing changed."""


class PlanKey(NamedTuple):
    """The requests that a plan is for, and the states that their answers are compared with."""

    eval: str
    model: str
    prompt_version: str
    model_version: str
    baseline_at: datetime | None
    anchor_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class NightPlan:
    """How an eval and a model are asked in a night of a suite that may stop early. It is fixed before the first answer."""

    suite: str
    eval: str
    model: str
    run_id: str
    planned_at: datetime
    """Time of the plan."""
    prompt_version: str
    """Version of the prompts that are asked."""
    model_version: str
    """Version of the model that is asked."""
    reason: str | None = None
    """Why all samples are asked. Null if the gate may stop it early."""
    metric: str | None = None
    """The metric by which it may stop. Null if all samples are asked, as are the columns that follow."""
    baseline_materialized_at: datetime | None = None
    """Time of the baseline's materialization."""
    anchor_materialized_at: datetime | None = None
    """Time of the anchor's materialization. Null if it is the baseline."""
    looks: tuple[int, ...] = ()
    """Samples that are asked up to each look. The last number is all of them."""
    margin: float | None = None
    """The fall that a proof refutes. Null if only a fall stops the eval, since others have to be proven in its place."""
    fall_level: float | None = None
    """One-sided level of the test for a fall, over all looks."""
    proof_power: float | None = None
    """The level of the proof is spent with this power of the share of samples that are known."""
    flips: float | None = None
    """Share of the samples that flipped between earlier states. Null if it is not known."""

    @property
    def key(self) -> PlanKey:
        """Its key. A night that was interrupted has the same key, and goes on by this plan."""
        return PlanKey(
            eval=self.eval,
            model=self.model,
            prompt_version=self.prompt_version,
            model_version=self.model_version,
            baseline_at=self.baseline_materialized_at,
            anchor_at=self.anchor_materialized_at,
        )


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
