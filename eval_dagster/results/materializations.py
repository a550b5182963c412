"""Materializations of an eval's results, with the rows and versions they were computed from."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal, TypeAlias, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from eval_dagster.config.values import PREVIOUS
from eval_dagster.errors import LakeError, UsageError
from eval_dagster.lake.catalog.catalog import metrics_by_file
from eval_dagster.lake.files import Lake, LakeFile
from eval_dagster.lake.format.parquet_files import iter_tables, read_few_rows, read_info, read_rows, read_rows_with, time_of
from eval_dagster.lake.lineage import Inputs
from eval_dagster.lake.tables.columns import MetricRow, PromptRow, ResponseRow, ScoreRow
from eval_dagster.lake.tables.schemas import TABLES
from eval_dagster.stages.looks import ESTIMATED, NOT_ASKED

_MANY = 16
"""To read so many files takes longer than to ask the catalog."""
_INPUTS = {"data": "dataset_snapshot", "prompt": "rendered_prompts", "model": "model"}
"""Inputs that can change a score -> their names in the lake. Each metric also has a version of its code."""
StageTable = Literal["prompts", "responses", "scores"]
_STAGES = {"prompts": "rendered_prompts", "responses": "model_outputs"}
_PROMPT = ("sample_id", "request_id", "prompt", "choices", "gold")
_RESPONSE = ("sample_id", "text", "text_post_processed", "choice_logprobs", "finish_reason", "error")
"""Columns that comparisons read. Other columns, such as log-probabilities of tokens, are many times larger."""
_SCORE = ("sample_id", "sample_name", "subject", "cluster", "metric", "value", "text_values", "item", "explanation")
_ASKED = ("sample_id", "metric", "error")
_TIE = '"tie"'
_MAYBE_NOTHING = r'null|"(\s|\\[a-z0-9]+)*"'
"""Matches an explanation with a text that may be empty."""
Booleans: TypeAlias = NDArray[np.bool_]
_Columns: TypeAlias = Sequence[str] | None
_Samples: TypeAlias = Collection[str] | None


@dataclass(frozen=True, kw_only=True)
class Materialization:
    """The metrics of one materialization of an eval for a model, with the rows they were computed from."""

    lake: Lake
    eval_name: str
    model: str
    metrics: LakeFile

    @classmethod
    def of(cls, lake: Lake, eval_name: str, model: str, path: Path) -> "Materialization":
        """The materialization of a file of `metrics`. Raises `LakeError` if its footer is damaged."""
        return Materialization(lake=lake, eval_name=eval_name, model=model, metrics=LakeFile(path=path, info=lake.info(path)))

    @property
    def materialized_at(self) -> datetime:
        """The time of the materialization; UTC."""
        return datetime.fromisoformat(self.metrics.info.materialized_at)

    @property
    def versions(self) -> dict[str, str]:
        """Versions of its inputs: `data`, `prompt` and `model`."""
        return {what: self.metrics.info.inputs[name] for what, name in _INPUTS.items()}

    @property
    def scores_version(self) -> str:
        """Hash of its scores. Points with the same hash have no difference to test."""
        return self.metrics.info.inputs["sample_scores"]

    @property
    def model_content(self) -> str:
        """Version of weights, tokenizer and chat template."""
        return self.metrics.info.inputs["model_content"]

    @property
    def declared(self) -> tuple[str, str]:
        """Versions of the model and of its content without a server's epoch. For results without an epoch, the plain versions."""
        found = self.metrics.info.inputs
        return found.get("model_declared", found["model"]), found.get("model_content_declared", found["model_content"])

    @cached_property
    def inputs(self) -> Inputs:
        """Its samples, with their rows and prompts."""
        versions, scores = self.metrics.info.inputs, self._scores_path
        return Inputs(lake=self.lake, eval_name=self.eval_name, model=self.model, versions=versions, scores=scores)

    @cached_property
    def metric_rows(self) -> Sequence[MetricRow]:
        """Its rows of `metrics`, which are not to be changed."""
        return read_few_rows(self.metrics.path)

    @property
    def scored_by(self) -> Mapping[str, str]:
        """Versions of the code that scored it, `task` and `code`. Empty if its scores are gone or of an earlier release."""
        try:
            return read_info(self._scores_path).made_of
        except LakeError:
            return {}

    @property
    def has_scores(self) -> bool:
        """Whether its scores are still in the lake."""
        return self._scores_path.exists()

    @cached_property
    def scores(self) -> Sequence[ScoreRow]:
        """Its rows of `scores`. Raises `LakeError` if they were deleted."""
        return self.rows("scores")

    @cached_property
    def asked_table(self) -> pa.Table:
        """The columns `sample_id`, `metric` and `error` of its scores. Raises `LakeError` if they were deleted."""
        return pa.concat_tables(self.score_tables(_ASKED))

    def scores_of(self, metric: str) -> pa.Table:
        """The columns of a metric's scores that comparisons read, in the order of the file. Raises `LakeError` if they were deleted.

        The columns `is_tie` and `is_unanswered` stand for the explanations, which can be long. The last metric is kept in memory.
        """
        if metric not in self._kept_scores:
            self._kept_scores.clear()
            self._kept_scores.update(self.scores_of_all([metric]))
        return self._kept_scores[metric]

    def scores_of_all(self, metrics: Sequence[str]) -> dict[str, pa.Table]:
        """The columns of `scores_of` for several metrics, which are read together. Raises `LakeError` if the scores were deleted."""
        found: dict[str, list[pa.Table]] = {metric: [] for metric in metrics}
        for table in self.score_tables(_SCORE):
            for metric, tables in found.items():
                rows = table.filter(pc.equal(table["metric"], metric))
                texts = rows["explanation"]
                rows = rows.append_column("is_tie", pc.fill_null(pc.match_substring(texts, _TIE), False))
                rows = rows.append_column("is_unanswered", pa.array(_unanswered(texts), pa.bool_()))
                tables.append(rows.drop_columns(["metric", "explanation"]))
        return {metric: pa.concat_tables(tables).combine_chunks() for metric, tables in found.items()}  # chunks slow down `take`

    def score_tables(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Columns of its scores, a part of the rows at a time. Raises `LakeError` if they were deleted."""
        for table in iter_tables(self.path_of("scores"), columns):
            yield _with_columns(table, columns, "scores")

    @cached_property
    def _kept_scores(self) -> dict[str, pa.Table]:
        return {}

    @cached_property
    def scores_by_metric(self) -> dict[str, dict[str, ScoreRow]]:
        """Its scores by metric and sample."""
        found: dict[str, dict[str, ScoreRow]] = {}
        for row in self.scores:
            found.setdefault(row["metric"], {})[row["sample_id"]] = row
        return found

    @cached_property
    def prompts(self) -> Mapping[str, PromptRow]:
        """Its prompts by sample, with the columns that comparisons read. Raises `LakeError` if they were deleted."""
        return {row["sample_id"]: row for row in self.rows("prompts", _PROMPT)}

    @cached_property
    def responses(self) -> Mapping[str, ResponseRow]:
        """Its responses by sample, with the columns that comparisons read. Raises `LakeError` if they were deleted."""
        return {row["sample_id"]: row for row in self.rows("responses", _RESPONSE)}

    def response_tables(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Columns of its responses, a part of the rows at a time. Raises `LakeError` if they were deleted."""
        for table in iter_tables(self.path_of("responses"), columns):
            yield _with_columns(table, columns, "responses")

    def prompts_of(self, samples: Collection[str]) -> Mapping[str, PromptRow]:
        """The prompts of some samples, like `prompts`."""
        return {row["sample_id"]: row for row in self.rows("prompts", _PROMPT, samples)}

    def responses_of(self, samples: Collection[str]) -> Mapping[str, ResponseRow]:
        """The responses to some samples, like `responses`."""
        return {row["sample_id"]: row for row in self.rows("responses", _RESPONSE, samples)}

    @overload
    def rows(self, table: Literal["prompts"], columns: _Columns = None, samples: _Samples = None) -> list[PromptRow]: ...

    @overload
    def rows(self, table: Literal["responses"], columns: _Columns = None, samples: _Samples = None) -> list[ResponseRow]: ...

    @overload
    def rows(self, table: Literal["scores"], columns: _Columns = None, samples: _Samples = None) -> list[ScoreRow]: ...

    def rows(self, table: StageTable, columns: _Columns = None, samples: _Samples = None) -> list[Any]:
        """The rows of a table that it was computed from, or only some columns or samples. Raises `LakeError` if they were deleted."""
        path = self.path_of(table)
        return read_rows(path, columns) if samples is None else read_rows_with(path, "sample_id", samples, columns)

    def path_of(self, table: StageTable) -> Path:
        """The file of a table that it was computed from. Raises `LakeError` if it was deleted."""
        if table == "scores" and self.has_scores:
            return self._scores_path
        found = None if table == "scores" else self.lake.of_version(table, self.version_of(table), self.eval_name, self.model)
        if found is None:
            raise gone(table, self.eval_name, self.model, self.materialized_at)
        return found.path

    def version_of(self, table: Literal["prompts", "responses"]) -> str:
        """The version of the prompts or the responses that it was computed from."""
        return self.metrics.info.inputs[_STAGES[table]]

    @cached_property
    def _scores_path(self) -> Path:
        return self.lake.scores_of(str(self.metric_rows[0]["scores_file"]), self.scores_version)

    def name(self) -> str:
        """Model and time in the form that `MaterializationName.parse` reads."""
        return f"{self.model}@{self.materialized_at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}"


@dataclass(frozen=True, kw_only=True)
class MaterializationName:
    """A model at a time: now, then, or before its last change."""

    model: str
    until: datetime | None = None
    """Selects the newest materialization up to this time; the newest of all if null."""
    previous: bool = False
    """Whether to select the state before the last change."""

    @classmethod
    def parse(cls, text: str, models: Sequence[str]) -> "MaterializationName":
        """Read `model`, `model@2026-01-31` (the end of that day in UTC), `model@2026-01-31T02:00` or `model@previous`.

        The names of models may contain `@`.

        Raises:
            UsageError: The text after the `@` is not a time.
        """
        model, at, when = text.rpartition("@")
        if text in models or not at:
            return cls(model=text)
        if when == PREVIOUS:
            return cls(model=model, previous=True)
        return cls(model=model, until=parse_time(when, what=text))

    def find(self, lake: Lake, eval_name: str) -> Materialization | None:
        """The point of an eval. None if the model had no result at that time. Raises `LakeError` if it is damaged."""
        if self.previous:
            return previous_materialization(history(lake, eval_name, self.model))
        paths = _paths(lake, eval_name, self.model)
        found = next((path for path in reversed(paths) if self.until is None or time_of(path) <= self.until), None)
        return None if found is None else Materialization.of(lake, eval_name, self.model, found)


def parse_time(text: str, *, what: str) -> datetime:
    """Read a day or a time, in UTC if it has no zone. Raises `UsageError` if it is neither.

    A day means its end, and so does a second, because `Materialization.name` has no fractions of seconds.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            f"found {what!r}: {text!r} is no time; expected a date (2026-01-31), a time (2026-01-31T02:00) or 'previous' behind the @"
        ) from error
    if len(text) == len("2026-01-31"):
        found = datetime.combine(found, time.max)
    elif not found.microsecond:
        found = found.replace(microsecond=999_999)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def history(lake: Lake, eval_name: str, model: str) -> list[Materialization]:
    """All materializations of an eval for a model, the oldest first. Damaged ones are left out, as in the catalog.

    Raises `LakeError` if the newest is damaged, because no older one may replace it.
    """
    points: list[Materialization] = []
    paths = _paths(lake, eval_name, model)
    for path in paths:
        try:
            points.append(Materialization.of(lake, eval_name, model, path))
        except LakeError:
            if path == paths[-1]:
                raise
    return points


def with_rows(points: Sequence[Materialization]) -> list[Materialization]:
    """The same materializations of one eval and model. If they are many, their rows of metrics come from the catalog, if it has them."""
    if len(points) >= _MANY:
        first = points[0]
        known = _known_rows(first.lake.root, first.eval_name, first.model)
        missing = [point for point in points if point.metrics.path not in known]
        if len(missing) >= _MANY:
            known |= metrics_by_file(first.lake, first.eval_name, first.model, since=missing[0].materialized_at)
        for point in points:
            if (rows := known.get(point.metrics.path)) is not None:
                vars(point).setdefault("metric_rows", rows)  # as the property keeps them
    return list(points)


@lru_cache(maxsize=4)
def _known_rows(root: Path, eval_name: str, model: str) -> dict[Path, list[MetricRow]]:  # noqa: ARG001 - the key
    """The rows of files, which never change: a night has three uses for them. Few are kept, as a year of nights takes 10 MB or more."""
    return {}


def materialization_at(points: Sequence[Materialization], materialized_at: datetime | None) -> Materialization | None:
    """The materialization at a time. None if it was deleted or is damaged."""
    return next((point for point in points if point.materialized_at == materialized_at), None)


def gone(table: StageTable, eval_name: str, model: str, materialized_at: datetime) -> LakeError:
    """The error that a table of a materialization was deleted."""
    when = f"{materialized_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    return LakeError(
        f"the {table} of {eval_name}|{model} of {when} are no longer in the lake; "
        "what was compared with them can be computed again, but not read"
    )


def _with_columns(table: pa.Table, columns: Sequence[str], name: StageTable) -> pa.Table:
    """The columns of a table. Those that an older file lacks are null."""
    schema = TABLES[name]
    return pa.table(
        {each: table[each] if each in table.column_names else pa.nulls(len(table), schema.field(each).type) for each in columns}
    )


def _unanswered(explanations: pa.ChunkedArray) -> Booleans:
    """Whether the metric found an answer that is empty. Only a text that has no character but white space, or is null, is nothing."""
    found: Booleans = np.asarray(pc.fill_null(pc.match_substring_regex(explanations, _MAYBE_NOTHING), False)).copy()
    places = np.flatnonzero(found)
    for place, text in zip(places.tolist(), explanations.take(pa.array(places)).to_pylist(), strict=True):
        found[place] = not all((answer or "").strip() for answer in json.loads(text).get("answer", ()))
    return found


def _paths(lake: Lake, eval_name: str, model: str) -> list[Path]:
    return lake.files(lake.folder("metrics", eval_name, model))


def previous_materialization(points: Sequence[Materialization]) -> Materialization | None:
    """The newest materialization with another version of data, prompt or model than the last one.

    Without one, the newest with another version of a metric's code. So a change of a metric's code does not hide a change of the model. A
    materialization with values for less than half of the samples, such as a night of errors, is used only if no other has more.
    """
    if len(points) < 2:
        return None
    last = points[-1]
    others = [point for point in reversed(points) if point.versions != last.versions]
    others = others or [point for point in reversed(points) if metric_versions(point) != metric_versions(last)]
    enough = n_values(last) / 2
    return next((point for point in others if n_values(point) >= enough), others[0] if others else None)


def n_values(point: Materialization) -> int:
    """Number of samples with a value; 0 if the rows are damaged."""
    try:
        return max((row["n"] for row in point.metric_rows), default=0)
    except LakeError:
        return 0


def metric_versions(point: Materialization) -> Mapping[str, str]:
    """The version of each metric's code."""
    return {row["metric"]: row["metric_version"] for row in point.metric_rows}


def overall(point: Materialization) -> dict[str, MetricRow]:
    """The row of each metric over all subjects. If a metric has two rows, the headline."""
    found: dict[str, MetricRow] = {}
    for row in point.metric_rows:
        if row["subject"] is None and (row["is_headline"] or (row["aggregation"] != "macro" and row["metric"] not in found)):
            found[row["metric"]] = row
    return found


def is_estimate(point: Materialization) -> bool:
    """Whether the score is estimated from a part of the samples (`estimate` in evals.yaml)."""
    return ESTIMATED in point.metrics.info.inputs and bool(point.metrics.info.counts.get(NOT_ASKED))


def require_no_estimate(*points: Materialization | None) -> None:
    """Raise `LakeError` if a score is an estimate, which a gate neither judges nor takes as a baseline."""
    for point in points:
        if point is not None and is_estimate(point):
            raise LakeError(
                f"the score of {point.eval_name} on {point.model} is an estimate from a part of the samples, which the gate neither judges "
                "nor takes as a baseline; remove `estimate` from the eval in evals.yaml, and run it: what was asked is not asked again"
            )


def require_even(point: Materialization) -> None:
    """Raise `LakeError` if the asked samples were chosen by a history, so that they are not like the others."""
    note = (
        next((row["estimate_note"] for row in point.metric_rows if row.get("estimate") == "history"), None) if is_estimate(point) else None
    )
    if note is not None:
        raise LakeError(
            f"the score of {point.eval_name} on {point.model} is an estimate by history ({note}), and the samples that were asked are not "
            f"like the others, so that it cannot be compared; remove `estimate` from the eval in evals.yaml, and run it"
        )
