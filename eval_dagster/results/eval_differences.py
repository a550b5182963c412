"""The part of each sample in the difference of an eval between two states, for aggregates of several evals."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from eval_dagster.results.comparison import scores_or_statistics
from eval_dagster.results.materializations import Materialization, overall
from eval_dagster.results.paired_scores import Floats, PairedScores, numbers_of_texts
from eval_dagster.statistics.aggregate_differences import EvalDifference
from eval_dagster.statistics.aggregates import influences
from eval_dagster.statistics.paired import Comparison


@dataclass(frozen=True, kw_only=True)
class SampleParts:
    """The samples behind a comparison of two states of an eval, with the columns of `EvalDifference`."""

    comparison: Comparison
    samples: pa.ChunkedArray
    """Their ids."""
    clusters: pa.ChunkedArray
    """The cluster of each, with a name that is the same in all evals."""
    contributions: Floats | None
    centred: Floats | None

    @classmethod
    def of(
        cls, a: Materialization, b: Materialization, metric: str, comparison: Comparison, *, clusters_of: str | None = None
    ) -> "SampleParts":
        """The common samples of two states.

        Args:
            a: The result in question.
            b: The earlier state, scored by the metric of the result.
            metric: Name of the metric.
            comparison: What `compare_metric` found about them.
            clusters_of: The dataset whose own clusters the samples are in. None: a cluster is a row, which any dataset can have.

        Raises:
            LakeError: The scores of a state were deleted.
        """
        rows = [scores_or_statistics(point, metric) for point in (a, b)]
        paired = PairedScores.of(*rows, is_sorted=True)
        of_a, of_b = (paired.values(of_a=side) for side in (True, False))
        # Samples of a metric of all samples together have no value.
        is_mean = comparison.heaviest is not None
        common = np.isfinite(of_a) & np.isfinite(of_b) if is_mean else paired.has(of_a=True) & paired.has(of_a=False)
        chosen = paired.at(np.flatnonzero(common))
        samples = pa.chunked_array([chosen.samples])
        clusters = pc.coalesce(chosen.either("cluster"), samples)
        if clusters_of is not None:
            clusters = pc.binary_join_element_wise(clusters_of, clusters, "\n")
        contributions = centred = None
        if is_mean:
            differences = (of_a - of_b)[common]
            is_macro = overall(a)[metric]["aggregation"] == "macro"
            subjects = chosen.labels("subject") if is_macro else np.zeros(len(differences), dtype=np.intp)
            centred = influences(differences, subjects.astype(np.uint64))
            sizes = np.bincount(subjects)
            contributions = differences / (np.count_nonzero(sizes) * sizes[subjects])
        return cls(comparison=comparison, samples=samples, clusters=clusters, contributions=contributions, centred=centred)


def with_common_numbers(parts: Sequence[SampleParts]) -> list[EvalDifference]:
    """The same differences with samples and clusters as numbers, which are equal in all of them for equal names."""
    ends = np.cumsum([len(each.samples) for each in parts])[:-1]
    samples, clusters = (
        np.split(numbers_of_texts(pa.chunked_array([chunk for column in columns for chunk in column.chunks], pa.string())), ends)
        for columns in ([each.samples for each in parts], [each.clusters for each in parts])
    )
    return [
        EvalDifference(
            comparison=each.comparison, samples=of_samples, clusters=of_clusters, contributions=each.contributions, centred=each.centred
        )
        for each, of_samples, of_clusters in zip(parts, samples, clusters, strict=True)
    ]
