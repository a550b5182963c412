"""Which results are proven not to be worse, and whether their suite is."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from eval_dagster.records.judgements import COMPARED, SOUND, Regression
from eval_dagster.statistics.noninferiority import LEVEL, NotWorse, SupportingResult, mean_not_worse, not_worse
from eval_dagster.statistics.paired import Comparison

SHARE, SHARE_OF_MANY, MANY = 0.03, 0.02, 2000
"""The margin of shares of right answers, and the one from `MANY` samples on."""
SHARE_OF_RANGE = 0.03
"""The margin of other metrics with a range, as a share of it."""
NO_MARGIN = "no margin set: the metric has no range of values; set gate.margin"
"""The reason of a metric that has no default margin."""
Against = Literal["baseline", "anchor"]
Critical = Literal["all"] | tuple[str, ...]
"""The evals of a suite that must each be proven."""


@dataclass(frozen=True, kw_only=True)
class Proof:
    """The tests that a result is not worse than its baseline and its anchor."""

    margin: float | None
    """The fall that matters, in the metric's unit. Null if none is set."""
    higher_is_better: bool
    comparisons: tuple[Comparison, ...]
    """With the baseline, and with the anchor if it is another state."""
    n_lost: tuple[int, ...]
    """For each comparison, the samples that have a value there, and an error in the result."""

    @property
    def tests(self) -> list[NotWorse]:
        """One test for each comparison; none without a margin."""
        if self.margin is None:
            return []
        return [
            not_worse(found, margin=self.margin, higher_is_better=self.higher_is_better, n_lost=lost)
            for found, lost in zip(self.comparisons, self.n_lost, strict=True)
        ]

    def on(self, row: Regression) -> Regression:
        """The row with the margin, the larger p-value, and why nothing can be proven."""
        tests = self.tests
        reason = NO_MARGIN if self.margin is None else next((each.reason for each in tests if each.reason), None)
        p_values = [each.p_value for each in tests if each.p_value is not None]
        p_value = max(p_values) if len(p_values) == len(tests) and p_values else None
        return replace(row, margin=self.margin, margin_p_value=p_value, unproven_reason=reason)

    def supporting(self) -> list[SupportingResult]:
        """The parts of the result in the mean of a suite's supporting evals, one for each comparison; none without a margin."""
        if self.margin is None:
            return []
        return [
            SupportingResult.of(found, margin=self.margin, higher_is_better=self.higher_is_better, n_lost=lost)
            for found, lost in zip(self.comparisons, self.n_lost, strict=True)
        ]


def default_margin(found: Comparison, *, is_share: bool, n_samples: int) -> float | None:
    """The margin of a metric, in its unit, if nobody has set one. None for a metric without a range.

    Args:
        found: The comparison with the baseline.
        is_share: Whether the metric is a share of right answers.
        n_samples: Samples that were asked.
    """
    if is_share:
        return SHARE if n_samples < MANY else SHARE_OF_MANY
    return None if found.width is None else SHARE_OF_RANGE * found.width


def is_proven(row: Regression) -> bool | None:
    """Whether a judged row is proven not to be worse. None if it was not compared."""
    if row.verdict not in COMPARED or row.difference is None:
        return None
    is_sound = row.verdict in SOUND and not row.is_refuted and not row.is_partial
    return is_sound and row.margin_p_value is not None and row.margin_p_value <= LEVEL


def supporting_p_value(proofs: Sequence[Proof]) -> float | None:
    """The larger p-value, against baselines and against anchors, of the mean of a suite's supporting evals at half of their margins.

    Results without an anchor of their own count with their baselines. Metrics without a margin are left out. None if none is left.
    """
    parts = [each.supporting() for each in proofs]
    parts = [each for each in parts if each]
    if not parts:
        return None
    return max(mean_not_worse([each[0] for each in parts]), mean_not_worse([each[-1] for each in parts]))
