"""Which results are proven not to be worse, and whether their suite is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from eval_dagster.records.judgements import COMPARED, SOUND, Regression
from eval_dagster.statistics.noninferiority import LEVEL, NotWorse, ResultPart, mean_not_worse, not_worse
from eval_dagster.statistics.paired import Comparison

SHARE, SHARE_OF_MANY, MANY = 0.03, 0.02, 2000
"""The margin of shares of right answers, and the one from `MANY` samples on."""
SHARE_OF_RANGE = 0.03
"""The margin of other metrics with a range, as a share of it."""
NO_MARGIN = "no margin set, since the metric has no range of values; set one"
"""The reason of a metric of single samples that has no default margin."""
OF_ALL_SAMPLES = "no margin set: it is a metric of all samples together, about which nothing can be proven"
"""The reason of metrics such as BLEU."""
_STOPPED = "a result stopped early: its answers decided when, which this test does not know"
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
    problem: str | None = None
    """Why nothing can be proven, besides what the comparisons say: the anchor cannot be read."""

    def result(self) -> NotWorse:
        """The test with the larger p-value; without one if nothing can be proven."""
        if self.margin is None:
            is_of_all = self.comparisons[0].heaviest is None
            return NotWorse(margin=None, p_value=None, reason=OF_ALL_SAMPLES if is_of_all else NO_MARGIN)
        tests = [
            not_worse(found, margin=self.margin, higher_is_better=self.higher_is_better, n_lost=lost)
            for found, lost in zip(self.comparisons, self.n_lost, strict=True)
        ]
        reason = self.problem or next((each.reason for each in tests if each.reason), None)
        return NotWorse(margin=self.margin, p_value=None if reason else max(each.p_value or 0.0 for each in tests), reason=reason)

    def on(self, row: Regression) -> Regression:
        """The row with the margin, the larger p-value, and why nothing can be proven."""
        found = self.result()
        return replace(row, margin=found.margin, margin_p_value=found.p_value, unproven_reason=found.reason)

    def parts(self) -> list[ResultPart]:
        """The result in the mean of a suite's supporting evals, one part for each comparison. Raises `ValueError` without a range."""
        if self.margin is None or self.problem is not None:
            raise ValueError(self.problem or NO_MARGIN)
        return [
            ResultPart.of(found, margin=self.margin, higher_is_better=self.higher_is_better, n_lost=lost)
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


def proof_of_pair(
    found: Comparison, *, margin: float | None, is_share: bool, higher_is_better: bool, n_samples: int, n_lost: int, is_part: bool
) -> NotWorse:
    """The test that one of two results is not worse than the other, outside of a suite.

    Args:
        found: The result as a, the other one as b.
        margin: The fall that matters, in the metric's unit. None: `default_margin`.
        is_share: Whether the metric is a share of right answers.
        higher_is_better: Whether a fall is a negative difference.
        n_samples: Samples that a has, or would have if it had not stopped early.
        n_lost: Samples with a value in b that are errors in a.
        is_part: Whether one of them stopped early.
    """
    fall = margin or default_margin(found, is_share=is_share, n_samples=n_samples)
    if fall is None:
        return NotWorse(margin=None, p_value=None, reason=OF_ALL_SAMPLES if found.heaviest is None else NO_MARGIN)
    if is_part:
        return NotWorse(margin=fall, p_value=None, reason=_STOPPED)
    return not_worse(found, margin=fall, higher_is_better=higher_is_better, n_lost=n_lost)


def is_proven(row: Regression) -> bool | None:
    """Whether a judged row is proven not to be worse. None if it was not compared."""
    if row.verdict not in COMPARED or row.difference is None:
        return None
    is_sound = row.verdict in SOUND and not row.is_refuted and not row.is_partial
    return is_sound and row.margin_p_value is not None and row.margin_p_value <= (row.margin_level or LEVEL)


def supporting_p_value(proofs: Mapping[str, Sequence[Proof]]) -> float | None:
    """The larger p-value, against baselines and against anchors, of the mean of supporting evals at half of their margins.

    Results without an anchor of their own count with their baselines, and evals without a margin are left out. A single result is tested by
    itself, at half of its margin.

    Args:
        proofs: The proofs of each eval.

    Returns:
        None if no eval has a margin, or if one of those that have cannot be tested, or if so few samples prove nothing.
    """
    known = {name: [each for each in of_eval if each.margin is not None] for name, of_eval in proofs.items()}
    each_eval = [of_eval for of_eval in known.values() if of_eval]
    if len(each_eval) == 1 and len(each_eval[0]) == 1:
        (alone,) = each_eval[0]
        return replace(alone, margin=(alone.margin or 0.0) / 2).result().p_value
    try:
        parts = [[each.parts() for each in of_eval] for of_eval in each_eval]
    except ValueError:
        return None
    tests = [mean_not_worse([[each[place] for each in of_eval] for of_eval in parts]) for place in (0, -1)] if parts else []
    p_values = [each.p_value for each in tests if each.p_value is not None]
    return max(p_values) if tests and len(p_values) == len(tests) else None
