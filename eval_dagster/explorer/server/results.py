"""The files of one result: the scores of a materialization, and the prompts and responses that were scored."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from eval_dagster.errors import LakeError
from eval_dagster.explorer.server.parameters import NotFoundError
from eval_dagster.lake.file_system import url_of
from eval_dagster.lake.files import Lake, parquet_files
from eval_dagster.lake.reader import CatalogState


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

    @cached_property
    def scores(self) -> list[str]:
        """The URL of the scores, as the argument of `read_parquet`. Raises `LakeError` where they were deleted."""
        path = None if self.scores_file is None else self.lake.file(self.scores_file)
        if path is None or not path.exists():
            raise LakeError(f"the scores of {self.name} are no longer in the lake")
        return [url_of(path)]

    @cached_property
    def prompts(self) -> list[str] | None:
        """The URL of the prompts; null where they were deleted."""
        with suppress(LakeError):
            return self._of_version("prompts", self.lake.info(self.lake.root / self.metrics_file).inputs.get("rendered_prompts"))
        return None

    @cached_property
    def responses(self) -> list[str] | None:
        """The URL of the responses; null where they were deleted."""
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
        """The newest file of a version: first of the files that are here, then of those of an object store."""
        folder = self.lake.folder(table, self.eval, self.model)
        for path in reversed(parquet_files(folder)):
            if self._has_version(path, version):
                return [url_of(path)]
        if self.lake.mirror is not None:
            for path in reversed(self.lake.files(folder)):
                if self._has_version(path, version):
                    return [url_of(path)]
        return None

    def _has_version(self, path: Path, version: str | None) -> bool:
        with suppress(LakeError):
            return version is not None and self.lake.info(path).version == version
        return False


def find_result(state: CatalogState, eval_name: str, model: str, materialized_at: datetime | None = None) -> Result:
    """The result of an eval and a model at a time, the newest by default. Raises `NotFoundError` where there is none."""
    rows = state.rows(
        # `metrics_history` has the same rows without the names of the files.
        """
        select * from _metrics_files
        where eval = $eval and model = $model and subject is null
            and materialized_at = coalesce($at, (select max(materialized_at) from _metrics_files where eval = $eval and model = $model))
        -- A metric can have a mean of the samples and one of the subjects.
        qualify row_number() over (partition by metric order by coalesce(is_headline, false) desc, aggregation = 'macro') = 1
        order by coalesce(is_headline, false) desc, metric
        """,
        {"eval": eval_name, "model": model, "at": materialized_at},
    )
    if not rows:
        when = "" if materialized_at is None else f" of {materialized_at.isoformat()}"
        raise NotFoundError(
            f"there is no result{when} of {eval_name} on {model}; the leaderboard and the histories list all that there are"
        )
    newest = state.rows(
        "select max(materialized_at) as at from _metrics_files where eval = $eval and model = $model", {"eval": eval_name, "model": model}
    )
    return Result(
        lake=state.lake,
        eval=eval_name,
        model=model,
        materialized_at=rows[0]["materialized_at"].astimezone(UTC),
        metrics=rows,
        metrics_file=rows[0]["_file"],
        scores_file=rows[0]["scores_file"],
        is_current=newest[0]["at"] == rows[0]["materialized_at"],
    )


def previous_result(state: CatalogState, result: Result) -> Result | None:
    """The materialization before a result; null where there is none."""
    rows = state.rows(
        "select max(materialized_at) as at from _metrics_files where eval = $eval and model = $model and materialized_at < $at",
        {"eval": result.eval, "model": result.model, "at": result.materialized_at},
    )
    return None if rows[0]["at"] is None else find_result(state, result.eval, result.model, rows[0]["at"])
