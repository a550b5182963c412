"""Comparisons of two results on the samples that both have.

Some samples are harder than others. A comparison of the same samples leaves this variance out, so it detects smaller changes than a
comparison of two scores with their error bars. `tests/eval_dagster/statistics/test_paired_detection.py` measures how much smaller.
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
"""The test of a p-value: see `compare_means` and `compare_corpora`."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Result a minus result b on the samples that both have a value for. Null without data, never 0."""

    value_a: float | None = None
    """The metric of a on the common samples."""
    value_b: float | None = None
    """The metric of b on the common samples."""
    difference: float | None = None
    """`value_a` - `value_b`, whichever direction is the better one."""
    stderr: float | None = None
    """Standard error of the difference; null if there are fewer than two clusters, or if nothing varies."""
    ci_low: float | None = None
    """Lower end of the 95 % confidence interval of the difference."""
    ci_high: float | None = None
    """Upper end of the 95 % confidence interval of the difference."""
    p_value: float | None = None
    """Two-sided: the probability of a difference at least this large if nothing has changed. Null for fewer than two common clusters."""
    test: Test | None = None
    """The test of the p-value."""
    min_detectable: float | None = None
    """The smallest difference that this comparison would have detected with the probability 0.8; null if there is none or it is unknown."""
    n_common: int
    """Samples with a value in both. Only these are compared."""
    n_only_a: int
    """Samples with a value in a only: in b they are errors or missing."""
    n_only_b: int
    """Samples with a value in b only."""
    n_neither: int
    """Samples with a value in neither."""
    n_clusters: int
    """Independent groups of the common samples; `n_common` if every sample is a group of its own."""
    n_higher: int | None = None
    """Common samples whose value is higher in a; null for a corpus metric, whose samples have no value."""
    n_lower: int | None = None
    """Common samples whose value is lower in a."""


@dataclass(frozen=True, kw_only=True)
class CommonSamples:
    """The samples of two aligned columns that both results have a value for."""

    mask: NDArray[np.bool_]
    """Which of the samples are common."""
    cluster: Integers
    """The clusters of the common samples, as numbers from 0."""
    n_only_a: int
    n_only_b: int
    n_neither: int

    @property
    def n_clusters(self) -> int:
        """Number of clusters of the common samples."""
        return int(self.cluster.max(initial=-1)) + 1

    @property
    def labels(self) -> list[int] | None:
        """The clusters as `eval_dagster.statistics.estimates` takes them; None if every sample is a cluster of its own."""
        return self.cluster.tolist() if self.n_clusters < len(self.cluster) else None

    @property
    def degrees_of_freedom(self) -> float:
        """Satterthwaite's degrees of freedom of a mean over the clusters, as in `estimate_mean`."""
        return degrees_of_freedom(np.bincount(self.cluster))

    def comparison(self) -> Comparison:
        """A comparison with the numbers of samples, and without values."""
        return Comparison(
            n_common=int(self.mask.sum()),
            n_only_a=self.n_only_a,
            n_only_b=self.n_only_b,
            n_neither=self.n_neither,
            n_clusters=self.n_clusters,
        )


def common_samples(has_a: NDArray[np.bool_], has_b: NDArray[np.bool_], clusters: Sequence[Hashable] | None) -> CommonSamples:
    """Find the samples that both results have a value for. Raises `ValueError` if results and clusters have different lengths."""
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
