"""An earlier result, cut to the samples that a later one which was stopped early has asked."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from eval_dagster.errors import LakeError
from eval_dagster.gate.looks import is_part
from eval_dagster.lake.format.parquet_files import read_table
from eval_dagster.lake.lineage import Inputs
from eval_dagster.lake.tables.columns import MetricRow, ResponseRow, ScoreRow
from eval_dagster.results.materializations import Materialization


@dataclass(frozen=True, kw_only=True)
class AskedPart(Materialization):
    """An earlier result without the samples that a later one, which was stopped early, has not asked."""

    whole: Materialization
    left_out: pa.Array
    """The ids of the samples that were not asked."""

    @classmethod
    def like(cls, whole: Materialization, later: Materialization) -> Materialization:
        """The part of `whole` that `later` has asked; all of it if `later` was not stopped. Raises `LakeError` if its prompts are gone."""
        if not is_part(later):
            return whole
        prompts, asked = read_table(later.path_of("prompts"), ["sample_id"])["sample_id"], pc.unique(later.asked_table["sample_id"])
        left_out = pc.unique(prompts.filter(pc.invert(pc.is_in(prompts, value_set=asked))))
        return cls(lake=whole.lake, eval_name=whole.eval_name, model=whole.model, metrics=whole.metrics, whole=whole, left_out=left_out)

    @property
    def scores_version(self) -> str:
        """Hash of the scores of the whole result."""
        return self.whole.scores_version

    @property
    def has_scores(self) -> bool:
        """Whether the scores are still in the lake."""
        return self.whole.has_scores

    @property
    def scored_by(self) -> Mapping[str, str]:
        """Versions of the code that scored it."""
        return self.whole.scored_by

    @cached_property
    def metric_rows(self) -> Sequence[MetricRow]:
        """The rows of `metrics` of the whole result."""
        return self.whole.metric_rows

    @cached_property
    def scores(self) -> Sequence[ScoreRow]:
        """The rows of `scores` of the samples."""
        left_out = set(self.left_out.to_pylist())
        return [row for row in self.whole.scores if row["sample_id"] not in left_out]

    def score_tables(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Columns of its scores, a part of the rows at a time."""
        names = list(dict.fromkeys([*columns, "sample_id"]))
        for table in self.whole.score_tables(names):
            yield table.filter(pc.invert(pc.is_in(table["sample_id"], value_set=self.left_out))).select(list(columns))

    @cached_property
    def inputs(self) -> Inputs:
        """Its samples, with their rows and prompts."""
        found = replace(self.whole.inputs)
        with suppress(LakeError):  # deleted; who asks for them gets the reason
            sources = self.whole.inputs.sources
            vars(found)["sources"] = sources.filter(pc.invert(pc.is_in(sources["sample_id"], value_set=self.left_out)))
        return found

    @cached_property
    def responses(self) -> Mapping[str, ResponseRow]:
        """The responses of the whole result, by sample."""
        return self.whole.responses

    def response_tables(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Columns of the responses of the whole result."""
        return self.whole.response_tables(columns)

    def responses_of(self, samples: Collection[str]) -> Mapping[str, ResponseRow]:
        """The responses to some samples."""
        return self.whole.responses_of(samples)
