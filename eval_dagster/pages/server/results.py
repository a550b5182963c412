"""The files of one result: the scores of a materialization, and the prompts and responses that were scored."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

from eval_dagster.errors import LakeError
from eval_dagster.lake.catalog.catalog import CatalogState
from eval_dagster.lake.catalog.sessions import held_url_of
from eval_dagster.lake.files import Lake
from eval_dagster.lake.format.parquet_files import parquet_files, time_of
from eval_dagster.pages.server.parameters import NotFoundError
from eval_dagster.results.materializations import gone


@dataclass(frozen=True, kw_only=True)
class Result:
    """An eval and a model at one materialization."""

    lake: Lake
    eval: str
    model: str
    materialized_at: datetime
    """UTC."""
    metrics: Sequence[Mapping[str, Any]]
    """Its rows of `metrics_history` without subject, the headline metric first."""
    metrics_file: str
    """The file of the metrics, relative to the lake."""
    scores_file: str | None
    """The file of the scores, relative to the lake."""
    is_current: bool

    @property
    def has_scores(self) -> bool:
        """Whether its scores are still in the lake."""
        return self.scores_file is not None and self.lake.file(self.scores_file).exists()

    @cached_property
    def scores(self) -> list[str]:
        """The URL of the scores, as the argument of `read_parquet`. Raises `LakeError` if they were deleted."""
        if self.scores_file is None or not self.has_scores:
            raise gone("scores", self.eval, self.model, self.materialized_at)
        return [held_url_of(self.lake.root / self.scores_file)]

    @cached_property
    def prompts(self) -> list[str] | None:
        """The URL of the prompts; null if they were deleted."""
        with suppress(LakeError):
            return self._of_version("prompts", self.lake.info(self.lake.root / self.metrics_file).inputs.get("rendered_prompts"))
        return None

    @cached_property
    def responses(self) -> list[str] | None:
        """The URL of the responses; null if they were deleted."""
        with suppress(LakeError):
            if self.scores_file is not None:
                return self._of_version("responses", self.lake.info(self.lake.root / self.scores_file).inputs.get("model_outputs"))
        return None

    @property
    def name(self) -> str:
        """Eval, model and time for people."""
        return f"{self.eval} on {self.model} of {self.materialized_at:%Y-%m-%d %H:%M} UTC"

    @property
    def metric_names(self) -> list[str]:
        """Its metrics, the headline metric first."""
        return [row["metric"] for row in self.metrics]

    def metric(self, name: str | None) -> Mapping[str, Any]:
        """The row of a metric; by default of the headline metric. Raises `NotFoundError` for another name."""
        found = next((row for row in self.metrics if name in (None, row["metric"])), None)
        if found is None:
            raise NotFoundError(f"{self.name} has no metric {name!r}; it has {', '.join(self.metric_names) or 'none'}")
        return found

    def _of_version(self, table: str, version: str | None) -> list[str] | None:
        """A file of a version: a local one first, then one of an object store. They all have the same rows."""
        folder = self.lake.folder(table, self.eval, self.model)
        for list_files in (parquet_files, *([self.lake.files] if self.lake.mirror is not None else [])):
            # Newest first: scores are mostly computed from the newest file before them.
            paths = sorted(list_files(folder), key=lambda path: (time_of(path) <= self.materialized_at, path.name), reverse=True)
            for path in paths:
                if self._has_version(path, version):
                    return [held_url_of(path)]
        return None

    def _has_version(self, path: Path, version: str | None) -> bool:
        with suppress(LakeError):
            return version is not None and self.lake.info(path).version == version
        return False


def find_result(state: CatalogState, eval_name: str, model: str, materialized_at: datetime | None = None) -> Result:
    """The result of an eval and a model at a time, the newest by default. Raises `NotFoundError` if there is none."""
    found = _results(state, "model = $model", {"eval": eval_name, "model": model, "at": materialized_at})
    if not found:
        when = "" if materialized_at is None else f" of {materialized_at.isoformat()}"
        raise NotFoundError(
            f"there is no result{when} of {eval_name} on {model}; the leaderboard and the histories list all that there are"
        )
    return found[0]


def previous_result(state: CatalogState, result: Result) -> Result | None:
    """The materialization before a result; null if there is none."""
    rows = state.rows(
        "select max(materialized_at) as at from _metrics_files where eval = $eval and model = $model and materialized_at < $at",
        {"eval": result.eval, "model": result.model, "at": result.materialized_at},
    )
    return None if rows[0]["at"] is None else find_result(state, result.eval, result.model, rows[0]["at"])


def other_results(state: CatalogState, result: Result, most: int) -> list[Result]:
    """The newest results of other models at the same eval, in the order of their names."""
    where = "model in (select distinct model from _metrics_files where eval = $eval and model != $model order by model limit $most)"
    return _results(state, where, {"eval": result.eval, "model": result.model, "most": most, "at": None})


def _results(state: CatalogState, where: str, values: Mapping[str, Any]) -> list[Result]:
    """The results of one eval: of each chosen model that at a time, or the newest."""
    rows = state.rows(
        # `metrics_history` has the same rows without the names of the files.
        f"""
        with chosen as (
            select *, max(materialized_at) over (partition by model) as newest_at
            from _metrics_files where eval = $eval and {where} and subject is null
        )
        select * from chosen
        where materialized_at = coalesce($at, newest_at)
        -- A metric can have a mean of the samples and one of the subjects.
        qualify row_number() over (partition by model, metric order by coalesce(is_headline, false) desc, aggregation = 'macro') = 1
        order by model, coalesce(is_headline, false) desc, metric
        """,
        values,
    )
    return [_result(state.lake, list(found)) for _, found in groupby(rows, key=lambda row: row["model"])]


def _result(lake: Lake, rows: Sequence[Mapping[str, Any]]) -> Result:
    first = rows[0]
    return Result(
        lake=lake,
        eval=first["eval"],
        model=first["model"],
        materialized_at=first["materialized_at"].astimezone(UTC),
        metrics=rows,
        metrics_file=first["_file"],
        scores_file=first["scores_file"],
        is_current=first["newest_at"] == first["materialized_at"],
    )
