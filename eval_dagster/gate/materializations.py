"""Materializations of an eval's results: what there was at which time, and what it was made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time
from functools import cached_property
from pathlib import Path
from typing import Any

from eval_dagster.errors import LakeError, UsageError
from eval_dagster.lake.files import Lake, LakeFile, parquet_files, read_info, read_rows, time_of
from eval_dagster.lake.lineage import Inputs

LAST_PASSED = "last_passed"
"""The newest state that the gate of a suite let pass, or that a person accepted."""
PREVIOUS = "previous"
"""The state before the last change."""
_INPUTS = {"data": "dataset_snapshot", "prompt": "rendered_prompts", "model": "model"}
"""What can move a score, and what the lake calls its version. The metric's code has a version for each metric."""
_SHOWN = {
    "prompts": ("sample_id", "request_id", "prompt", "choices", "gold"),
    "responses": ("sample_id", "text", "text_post_processed", "choice_logprobs", "error"),
}
"""The columns that comparisons read: log-probabilities of tokens are many times as much as all of these."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """The metrics of an eval for a model, as they were materialized once, with the rows that they were computed from."""

    lake: Lake
    eval_name: str
    model: str
    metrics: LakeFile

    @property
    def materialized_at(self) -> datetime:
        """When, in UTC."""
        return datetime.fromisoformat(self.metrics.info.materialized_at)

    @property
    def versions(self) -> dict[str, str]:
        """Of what it was made: `data`, `prompt` and `model`."""
        return {what: self.metrics.info.inputs[name] for what, name in _INPUTS.items()}

    @property
    def scores_version(self) -> str:
        """Hash of its scores: two points with the same one differ in nothing that could be tested."""
        return self.metrics.info.inputs["sample_scores"]

    @property
    def model_content(self) -> str:
        """Version of weights, tokenizer and chat template."""
        return self.metrics.info.inputs["model_content"]

    @cached_property
    def inputs(self) -> Inputs:
        """Its samples, with the rows and prompts that they come from."""
        dataset, prompt = self.versions["data"], self.versions["prompt"]
        return Inputs(
            lake=self.lake,
            eval_name=self.eval_name,
            model=self.model,
            dataset_version=dataset,
            prompt_version=prompt,
            scores=self._scores_path,
        )

    @cached_property
    def metric_rows(self) -> list[dict[str, Any]]:
        """Its rows of `metrics`."""
        return read_rows(self.metrics.path)

    @property
    def has_scores(self) -> bool:
        """Whether its scores are still in the lake."""
        return self._scores_path.exists()

    @cached_property
    def scores(self) -> list[dict[str, Any]]:
        """Its rows of `scores`. Raises `LakeError` where they are gone."""
        if not self.has_scores:
            raise self._gone("scores")
        return read_rows(self._scores_path)

    @cached_property
    def scores_by_metric(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Its scores by metric and sample."""
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for row in self.scores:
            found.setdefault(row["metric"], {})[row["sample_id"]] = row
        return found

    @cached_property
    def prompts(self) -> dict[str, dict[str, Any]]:
        """What its prompts were, by sample. Raises `LakeError` where they are gone."""
        return self._by_sample("prompts", self.metrics.info.inputs["rendered_prompts"])

    @cached_property
    def responses(self) -> dict[str, dict[str, Any]]:
        """What was answered, by sample. Raises `LakeError` where they are gone."""
        return self._by_sample("responses", read_info(self._scores_path).inputs["model_outputs"])

    @cached_property
    def _scores_path(self) -> Path:
        name = str(self.metric_rows[0]["scores_file"])
        return self.lake.scores_of(name, self.scores_version)

    def _by_sample(self, table: str, version: str) -> dict[str, dict[str, Any]]:
        for file in reversed(self.lake.history(table, self.eval_name, self.model)):
            if file.info.version == version:
                return {row["sample_id"]: row for row in read_rows(file.path, _SHOWN[table])}
        raise self._gone(table)

    def _gone(self, table: str) -> LakeError:
        return LakeError(
            f"the {table} of {self.eval_name}|{self.model} of {self.materialized_at:%Y-%m-%d %H:%M} are no longer in the lake; "
            "what was compared with them can be computed again, but not read"
        )

    def name(self) -> str:
        """Model and time, as they can be given to `parse`."""
        return f"{self.model}@{self.materialized_at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}"


@dataclass(frozen=True, kw_only=True)
class PointName:
    """A model, and when: now, at a time, or before its last change."""

    model: str
    until: datetime | None = None
    """The newest materialization that is not later; the newest of all where not given."""
    previous: bool = False
    """Whether the newest one is meant that was made of something else than the current one."""

    @classmethod
    def parse(cls, text: str, models: Sequence[str]) -> "PointName":
        """Read `model`, `model@2026-01-31` (the end of that day in UTC), `model@2026-01-31T02:00` or `model@previous`.

        Args:
            text: What the user wrote.
            models: Names that there are; one with an `@` of its own is understood, too.

        Raises:
            UsageError: What follows the `@` is no time.
        """
        model, at, when = text.rpartition("@")
        if text in models or not at:
            return cls(model=text)
        if when == PREVIOUS:
            return cls(model=model, previous=True)
        return cls(model=model, until=parse_time(when, what=text))

    def find(self, lake: Lake, eval_name: str) -> Point | None:
        """The point of an eval; None where the model has none then. Raises `LakeError` where it is damaged."""
        if self.previous:
            return previous_point(history(lake, eval_name, self.model))
        paths = _paths(lake, eval_name, self.model)
        found = next((path for path in reversed(paths) if self.until is None or time_of(path) <= self.until), None)
        return None if found is None else _point(lake, eval_name, self.model, found)


def parse_time(text: str, *, what: str) -> datetime:
    """A day or a time, in UTC where no zone is given; a day means its end, and a second too, as `Point.name` names what was made in it.

    Raises:
        UsageError: It is neither.
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


def history(lake: Lake, eval_name: str, model: str) -> list[Point]:
    """All materializations of an eval for a model, the oldest first. Damaged ones are left out, as they are in the catalog.

    Raises:
        LakeError: The newest is damaged: an older one would pass for it.
    """
    points: list[Point] = []
    paths = _paths(lake, eval_name, model)
    for path in paths:
        try:
            points.append(_point(lake, eval_name, model, path))
        except LakeError:
            if path == paths[-1]:
                raise
    return points


def point_at(points: Sequence[Point], materialized_at: datetime | None) -> Point | None:
    """The materialization of that time; None where it is gone or damaged."""
    return next((point for point in points if point.materialized_at == materialized_at), None)


def _paths(lake: Lake, eval_name: str, model: str) -> list[Path]:
    return parquet_files(lake.folder("metrics", eval_name, model))


def _point(lake: Lake, eval_name: str, model: str, path: Path) -> Point:
    return Point(lake=lake, eval_name=eval_name, model=model, metrics=LakeFile(path=path, info=read_info(path)))


def previous_point(points: Sequence[Point]) -> Point | None:
    """The newest materialization that was made of other data, another prompt or another model version than the last one.

    Where there is none, the newest one whose metrics had other code: a metric that is tidied is not to hide what became of the model. One
    that has values for less than half of the samples, as a trial with a limit or a night of errors leaves, counts only where none has more:
    it would hide what became of the model, too.
    """
    if not points:
        return None
    last = points[-1]
    others = [point for point in reversed(points) if point.versions != last.versions]
    others = others or [point for point in reversed(points) if metric_versions(point) != metric_versions(last)]
    enough = n_values(last) / 2
    return next((point for point in others if n_values(point) >= enough), others[0] if others else None)


def n_values(point: Point) -> int:
    """How many samples of a point have a value; none where its rows are damaged."""
    try:
        return max((row["n"] for row in point.metric_rows), default=0)
    except LakeError:
        return 0


def metric_versions(point: Point) -> Mapping[str, str]:
    """The version of each metric's code."""
    return {row["metric"]: row["metric_version"] for row in point.metric_rows}
