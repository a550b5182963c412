"""The record of an aggregate in a suite's judgement: a row of the table `aggregate_regressions`."""

from dataclasses import dataclass
from datetime import datetime

from eval_dagster.records.judgements import GAPS, Against, Verdict


@dataclass(frozen=True, kw_only=True)
class AggregateRegression:
    """An aggregate of a suite for a model, against the states that its evals are compared with. Missing data is null, never 0."""

    suite: str
    aggregate: str
    """Name of the aggregate in evals.yaml."""
    model: str
    definition: str
    """How it was made of which evals, in words."""
    evals: tuple[str, ...]
    """The evals that it is made of."""
    value: float | None = None
    """Value by the results, on the samples that each eval has in common with its baseline. Null if it was not compared."""
    baseline_value: float | None = None
    """Value by the baselines of its evals, on the same samples."""
    difference: float | None = None
    """`value` - `baseline_value`, whichever direction is better."""
    stderr: float | None = None
    """Standard error of the difference, in which samples that several evals ask count once."""
    ci_low: float | None = None
    ci_high: float | None = None
    p_value: float | None = None
    p_adjusted: float | None = None
    """P-value after Holm's correction for all comparisons of the suite, those of its evals and of its aggregates."""
    test: str | None = None
    """Name of the statistical test."""
    n_common: int = 0
    """Different samples that an eval and its baseline both have a value for."""
    n_only_value: int = 0
    """Samples that only a result has a value for, summed over the evals. They are left out."""
    n_only_baseline: int = 0
    """Samples that only a baseline has a value for, summed over the evals. They are left out."""
    min_detectable: float | None = None
    """The smallest difference that would have been found with the probability 0.8."""
    noise_floor: float | None = None
    """Difference that 95 of 100 pairs of runs of the same model stay below, if answers are drawn at random. Null if unknown."""
    higher_is_better: bool | None = None
    oldest_baseline_at: datetime | None = None
    """Time of the oldest of its evals' baselines."""
    newest_baseline_at: datetime | None = None
    """Time of the newest of its evals' baselines."""
    anchor_value: float | None = None
    """Value by the anchors of its evals. Null if all of these are their baselines."""
    drift: float | None = None
    """The value minus `anchor_value`, on the samples that results and anchors have in common, whichever direction is better."""
    drift_p_value: float | None = None
    """Two-sided p-value of the drift."""
    drift_p_adjusted: float | None = None
    """P-value of the drift after Holm's correction for all comparisons of the suite."""
    oldest_anchor_at: datetime | None = None
    """Time of the oldest of its evals' anchors. Null if all of these are their baselines."""
    verdict: Verdict
    """`regressed`, `improved`, `no change seen`, `first result`, `accepted gap` or `not comparable`. The first makes its suite red, and the
    last one makes it incomplete, unless the suite does without the evals in `missing`.
    """
    against: Against | None = None
    """The states that it is worse than: the evals' `baseline` or `anchor`. Null if it is not worse."""
    red_since: datetime | None = None
    """Time of the judgement in which it regressed first. Null if it is not red."""
    missing: tuple[str, ...] = ()
    """The evals that keep it from being compared. Empty if it was compared."""
    reason: str | None = None
    """Why it was not compared, what it drifted from, or why it is still worse."""

    @property
    def is_red(self) -> bool:
        """Whether it got worse."""
        return self.verdict is Verdict.REGRESSED

    @property
    def is_gap(self) -> bool:
        """Whether it was not judged, and nobody accepted that."""
        return self.verdict in GAPS
