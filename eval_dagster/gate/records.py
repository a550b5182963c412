"""What a gate found: the rows of `regressions` and `sample_changes`, and all that tells people about them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from eval_dagster.paired_suites import Verdict

Severity = Literal["error", "warn"]
"""Whether a regression fails the gate, or is only said."""
NO_EARLIER_RESULT = "there is no earlier result to compare with; later results are compared with this one"
"""The reason of a first result. It names neither eval nor model, so that all first results have the same."""


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
    min_detectable: float | None = None
    """The smallest difference that would have been found with the probability 0.8."""
    noise_floor: float | None = None
    """What two runs of the same model differ by where answers are drawn at random; null where nothing tells."""
    higher_is_better: bool | None = None
    verdict: Verdict
    cause: str | None = None
    """What differs from the baseline: `data`, `prompt`, `model`, `engine`, `metric`, with commas between them; empty where nothing does."""
    reason: str | None = None
    """Why it is not comparable."""
    materialized_at: datetime | None = None
    baseline_materialized_at: datetime | None = None

    @property
    def is_first(self) -> bool:
        """Whether this is a result that has nothing to be compared with because there is none before it."""
        return self.verdict is Verdict.NOT_COMPARABLE and self.reason == NO_EARLIER_RESULT


@dataclass(frozen=True, kw_only=True)
class ChangedSample:
    """A sample that result and baseline score differently, or that one of them does not have."""

    suite: str
    eval: str
    model: str
    metric: str
    sample_id: str
    subject: str
    value: float | None
    baseline_value: float | None
    prompt: str | None
    gold: tuple[str, ...]
    answer: str | None
    """What the model wrote, or the choice that it found most probable."""
    baseline_answer: str | None


@dataclass(frozen=True, kw_only=True)
class Look:
    """A past result of a headline metric, compared with the reference that its segment of the history starts at."""

    suite: str
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
    severity: Severity
    regressions: Sequence[Regression]
    changes: Sequence[ChangedSample]
    looks: Sequence[Look] = ()
    """How each score got where it is, the oldest first within an eval and a model."""
    warnings: Sequence[str] = ()
    """What went wrong beside the result; not kept."""

    @property
    def change_points(self) -> list[Look]:
        """Where scores left their bands."""
        return [look for look in self.looks if look.is_change_point]

    def with_verdict(self, verdict: Verdict) -> list[Regression]:
        """The rows of one verdict."""
        return [row for row in self.regressions if row.verdict is verdict]

    @property
    def is_first(self) -> bool:
        """Whether all rows are first results, as in the first night of a suite."""
        return bool(self.regressions) and all(row.is_first for row in self.regressions)

    @property
    def is_failed(self) -> bool:
        """Whether something regressed, in a suite in which that is an error."""
        return self.severity == "error" and bool(self.with_verdict(Verdict.REGRESSED))
