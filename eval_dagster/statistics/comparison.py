"""What changed between two results on the samples that both have.

A comparison of the same samples leaves out what makes some of them harder than others, so it sees smaller changes than one of two scores
with their error bars does. `tests/eval_dagster/test_paired_detection.py` measures how much smaller.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from eval_dagster.statistics.estimates import Estimate, degrees_of_freedom, numbered

ALPHA = 0.05
"""Two-sided level of significance, unless a suite sets its own."""

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.intp]
Test: TypeAlias = Literal["exact McNemar", "sign flips", "paired t", "paired bootstrap"]
"""What a p-value is of: see `compare_means` and `compare_corpora`."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Result a less result b on the samples that both have a value for. Null where there is no data, never 0."""

    value_a: float | None = None
    """The metric of a on the common samples."""
    value_b: float | None = None
    """The metric of b on the common samples."""
    difference: float | None = None
    """`value_a` - `value_b`, whichever direction is the better one."""
    stderr: float | None = None
    """Standard error of the difference; null where fewer than two clusters, or nothing that varies, tell it."""
    ci_low: float | None = None
    """Lower end of the 95 % confidence interval of the difference."""
    ci_high: float | None = None
    """Upper end of the 95 % confidence interval of the difference."""
    p_value: float | None = None
    """Two-sided: how likely so large a difference is where nothing has changed. Null where fewer than two clusters are common."""
    test: Test | None = None
    """What the p-value is of."""
    min_detectable: float | None = None
    """The smallest difference that this comparison would have found with the probability 0.8; null where none, or where nothing tells."""
    n_common: int
    """Samples with a value in both: those that entered."""
    n_only_a: int
    """Samples with a value in a alone: in b they are errors, or not there. Left out."""
    n_only_b: int
    """Samples with a value in b alone. Left out."""
    n_neither: int
    """Samples with a value in neither. Left out."""
    n_clusters: int
    """Independent groups that the common samples fall into; `n_common` where every sample stands alone."""
    n_higher: int | None = None
    """Common samples whose value is higher in a; null for a corpus metric, whose samples have no value."""
    n_lower: int | None = None
    """Common samples whose value is lower in a."""


@dataclass(frozen=True, kw_only=True)
class CommonSamples:
    """The samples that both results have a value for, among those of two aligned columns."""

    mask: NDArray[np.bool_]
    """Which of the samples are common."""
    cluster: Integers
    """The clusters of the common samples, as numbers from 0."""
    n_only_a: int
    n_only_b: int
    n_neither: int

    @property
    def n_clusters(self) -> int:
        """How many clusters the common samples fall into."""
        return int(self.cluster.max(initial=-1)) + 1

    @property
    def labels(self) -> list[int] | None:
        """What `eval_dagster.statistics.estimates` takes for clusters."""
        return self.cluster.tolist() if self.n_clusters < len(self.cluster) else None

    @property
    def degrees_of_freedom(self) -> float:
        """Satterthwaite's, of a mean over the clusters, as `estimate_mean` has them."""
        return degrees_of_freedom(np.bincount(self.cluster))

    def comparison(self) -> Comparison:
        """A comparison that says how many the samples are, and nothing of their values."""
        return Comparison(
            n_common=int(self.mask.sum()),
            n_only_a=self.n_only_a,
            n_only_b=self.n_only_b,
            n_neither=self.n_neither,
            n_clusters=self.n_clusters,
        )


def common_samples(has_a: NDArray[np.bool_], has_b: NDArray[np.bool_], clusters: Sequence[Hashable] | None) -> CommonSamples:
    """Find the samples that both results have a value for.

    Raises:
        ValueError: The results, or they and the clusters, are not of one length.
    """
    if len(has_a) != len(has_b):
        raise ValueError(f"results of {len(has_a)} and {len(has_b)} samples; align them, with None where a sample is not there")
    mask = has_a & has_b
    return CommonSamples(
        mask=mask,
        cluster=numbered(clusters, mask),
        n_only_a=int((has_a & ~has_b).sum()),
        n_only_b=int((has_b & ~has_a).sum()),
        n_neither=int((~has_a & ~has_b).sum()),
    )


def with_estimate(comparison: Comparison, estimate: Estimate) -> Comparison:
    """The comparison with the estimate of its difference."""
    return replace(comparison, difference=estimate.value, stderr=estimate.stderr, ci_low=estimate.ci_low, ci_high=estimate.ci_high)
