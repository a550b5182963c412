"""Scores older results again: by the current metric if the metric has changed, and if their files are damaged or gone.

Two results are compared by numbers of one metric. The answers of older results are in the lake, so a changed metric scores them again
without asking a model.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from eval_dagster.errors import EvalDagsterError, LakeError
from eval_dagster.gate.records import minute
from eval_dagster.lake.files import Lake, LakeFile, table_of
from eval_dagster.lake.format.parquet_files import read_info, time_of
from eval_dagster.lake.lineage import Inputs
from eval_dagster.lake.tables.columns import MetricRow, ResponseRow, ScoreRow
from eval_dagster.project import Project
from eval_dagster.results.materializations import Materialization, history, overall
from eval_dagster.stages.aggregation import metric_rows
from eval_dagster.stages.partition import Partition
from eval_dagster.stages.rescoring import OldAnswers, find_answers, score_again
from eval_dagster.stages.score_columns import scores_in
from eval_dagster.stages.scores import content_version, scoring_versions

_MOST_POINTS = 3
"""Results whose tables stay in memory: the one in question, its baseline and its anchor."""
_OF_RULER = ("metric_version", "higher_is_better", "bound_low", "bound_high")
"""Columns of `metrics` that differ if another metric made the number. Results of earlier releases lack the last two."""


@dataclass(frozen=True, kw_only=True)
class ScoredAgain(Materialization):
    """A result whose stored answers were scored now."""

    answers: OldAnswers
    scored: Sequence[ScoreRow]
    """The rows of `scores`."""
    aggregated: Sequence[MetricRow]
    """The rows of `metrics`."""
    versions_of_code: Mapping[str, str]

    @property
    def scores_version(self) -> str:
        """Hash of the scores computed now."""
        return content_version(self.scored)

    @property
    def has_scores(self) -> bool:
        """Always true."""
        return True

    @property
    def scored_by(self) -> Mapping[str, str]:
        """Versions of the code that scored it now."""
        return self.versions_of_code

    @cached_property
    def metric_rows(self) -> Sequence[MetricRow]:
        """Its rows of `metrics`, computed now."""
        return self.aggregated

    @cached_property
    def scores(self) -> Sequence[ScoreRow]:
        """Its rows of `scores`, computed now."""
        return self.scored

    def score_tables(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Columns of its scores."""
        yield self._score_table.select(list(columns))

    @cached_property
    def _score_table(self) -> pa.Table:
        return table_of("scores", self.scored)

    @cached_property
    def inputs(self) -> Inputs:
        """Its samples, with their rows and prompts."""
        # Prompts name the row of each sample, like scores.
        path, versions = self.answers.prompts.path, self.metrics.info.inputs
        return Inputs(lake=self.lake, eval_name=self.eval_name, model=self.model, versions=versions, scores=path)

    @cached_property
    def responses(self) -> Mapping[str, ResponseRow]:
        """Its responses by sample."""
        return self.answers.responses

    def response_tables(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Columns of its responses."""
        yield table_of("responses", list(self.answers.responses.values())).select(list(columns))

    def responses_of(self, samples: Collection[str]) -> Mapping[str, ResponseRow]:
        """Its responses to some samples."""
        return {sample: self.answers.responses[sample] for sample in samples if sample in self.answers.responses}

    def refused(self, metric: str) -> list[str]:
        """The errors of a metric on answers without errors."""
        name = metric.partition("/")[0]
        of_metric = (row for row in self.scored if row["metric"].partition("/")[0] == name and row["error"] is not None)
        return [str(row["error"]) for row in of_metric if self.answers.responses[row["sample_id"]]["error"] is None]


@dataclass(frozen=True)
class Rescorer:
    """Scores older results of a project again, each once."""

    project: Project
    _known: dict[tuple[str, str, datetime], ScoredAgain | EvalDagsterError] = field(default_factory=dict)
    _points: OrderedDict[Path, Materialization] = field(default_factory=OrderedDict)

    def same(self, point: Materialization) -> Materialization:
        """The object of this result that was used last, with the tables that it has read, if it is one of the last few."""
        path = point.metrics.path
        found = self._points[path] = self._points.pop(path, point)
        while len(self._points) > _MOST_POINTS:
            self._points.popitem(last=False)
        return found

    def like(self, now: Materialization, before: Materialization, metric: str) -> Materialization:
        """An older result scored by the metric of another result. Returns it unchanged if the metric is the same.

        Raises:
            LakeError: The older answers are gone or damaged, or the code of the metric has changed since the result.
            RequirementError: A metric lacks a package, permission to run code, or a sandbox.
        """
        if metric in overall(before) and is_same_ruler(now, before, metric):
            return before
        again = self._scored(before)
        if metric in overall(again) and not is_same_ruler(now, again, metric):
            raise LakeError(
                f"the code of {metric} has changed since the result of {minute(now.materialized_at)}, so older answers cannot be scored as "
                "it was; evaluate it again (`eval-dagster run`)"
            )
        return again

    def alike(self, a: Materialization, b: Materialization, metric: str) -> tuple[Materialization, Materialization]:
        """Two results scored by one form of a metric: either result's form, or the current one. Raises the errors of `like`."""
        if metric in overall(b) and is_same_ruler(a, b, metric):
            return a, b
        again_b = self._scored(b)
        if metric not in overall(again_b):
            if metric in overall(b):
                raise LakeError(f"the task has no {metric} any more")
            return a, b
        if is_same_ruler(a, again_b, metric):
            return a, again_b
        again_a = self._scored(a)
        return again_a, b if metric in overall(b) and is_same_ruler(again_a, b, metric) else again_b

    def readable(self, eval_name: str, model: str, time: datetime) -> Materialization:
        """The result of a time, with readable scores. If a file is damaged or gone, the result is scored again from its answers.

        Raises:
            LakeError: The answers are also damaged or gone.
            RequirementError: As in `like`.
        """
        lake = self.project.lake
        point = next((each for each in history(lake, eval_name, model) if each.materialized_at == time), None)
        with suppress(LakeError):
            if point is not None and (point := self.same(point)).metric_rows and len(point.asked_table):
                return point
        return self._scored(point or _lost(lake, eval_name, model, time))

    def _scored(self, point: Materialization) -> ScoredAgain:
        if isinstance(point, ScoredAgain):
            return point
        key = point.eval_name, point.model, point.materialized_at
        if key not in self._known:
            partition = Partition(project=self.project, eval_name=point.eval_name, model=point.model, run_id="")
            try:
                if self.project.is_imported(point.eval_name):
                    when = f"{point.eval_name}|{point.model} of {minute(point.materialized_at)}"
                    raise LakeError(f"the result of {when} was imported, so that its answers cannot be scored again")
                answers = find_answers(partition, point.metrics.info.inputs)
                rows = score_again(partition, answers)
                self._known[key] = ScoredAgain(
                    lake=point.lake,
                    eval_name=point.eval_name,
                    model=point.model,
                    metrics=point.metrics,
                    answers=answers,
                    scored=rows,
                    aggregated=metric_rows(partition.task, scores_in(rows)),
                    versions_of_code=scoring_versions(partition.task),
                )
            except EvalDagsterError as error:
                self._known[key] = error
        found = self._known[key]
        if isinstance(found, EvalDagsterError):
            raise found
        return found


def is_same_ruler(now: Materialization, before: Materialization, metric: str) -> bool:
    """Whether the same code makes the numbers of a metric, and in the same direction. Values missing from older files count as equal."""
    rows = overall(now)[metric], overall(before)[metric]
    columns = [tuple(row.get(name) for row in rows) for name in _OF_RULER]
    versions = [(now.scored_by.get(name), before.scored_by.get(name)) for name in ("task", "code")]
    return all(a == b for a, b in [*columns, *versions] if a is not None and b is not None)


def _lost(lake: Lake, eval_name: str, model: str, time: datetime) -> Materialization:
    """A result with lost metrics. The versions of its inputs come from the scores, or else the answers, that were current then.

    Raises:
        LakeError: They are also lost.
    """
    for table in ("scores", "responses"):
        path = next((path for path in reversed(lake.files(lake.folder(table, eval_name, model))) if time_of(path) <= time), None)
        if path is None:
            continue
        try:
            found = read_info(path)
        except LakeError:
            continue
        inputs = {**found.inputs, **({"model_outputs": found.version} if table == "responses" else {})}
        info = replace(found, materialized_at=time.isoformat(timespec="microseconds"), inputs={"sample_scores": "", **inputs})
        return Materialization(lake=lake, eval_name=eval_name, model=model, metrics=LakeFile(path=path, info=info))
    raise LakeError(f"the result of {eval_name}|{model} of {minute(time)} is damaged or no longer in the lake, and so are its answers")
