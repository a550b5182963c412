"""Writes the pages of results to the home and to MLflow."""

from collections.abc import Generator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from eval_dagster.errors import TrackingError
from eval_dagster.lake.files import Lake
from eval_dagster.pages.samples.page import MOST_BYTES, MOST_BYTES_OF_ALL, page_stamp, result_page
from eval_dagster.pages.samples.places import PAGE, page_path
from eval_dagster.project import Project
from eval_dagster.results.materializations import Materialization
from eval_dagster.results.samples import MOST_SAMPLES, collect_samples
from eval_dagster.stages.partition import StageResult, partition_key
from eval_dagster.stores.whole_files import replaced

_MOST_BEFORE_STAMP = 300
"""Bytes of a page in which its stamp is."""


def with_page(project: Project, result: StageResult) -> Generator[None, None, StageResult]:
    """The result of `task_metrics` with the page of its samples, which is written unless it is there. Yields while MLflow stores it.

    The page does not belong to the result: a failure is a warning, and no cache depends on it. Trials have none, and neither have current
    results of a shared lake that another machine computed.
    """
    if project.lake.is_trial or result.model is None:
        return result
    path = page_path(project.home, result.eval_name, result.model)
    unsent = path.with_suffix(".unsent")
    materialized_at = datetime.fromisoformat(result.file.info.materialized_at)
    is_current = _is_current(path, materialized_at, any_version=result.cached)
    if result.cached and not is_current and project.lake.mirror is not None:
        return result
    warnings: list[str] = []
    try:
        if not is_current:
            write_page(path, project.lake, result.eval_name, result.model, materialized_at)
            unsent.touch()
        if unsent.exists():
            if run := result.file.info.inputs.get("mlflow_run"):
                logged = project.tracker.begin_log_file(run, path)
                yield
                logged()
            unsent.unlink(missing_ok=True)  # a run at the same time may have sent it, too
    except TrackingError as error:
        warnings.append(f"the page of the samples of {partition_key(result.eval_name, result.model)} is not in MLflow: {error}")
    except Exception as error:  # the boundary between a result and its page
        warnings.append(f"no page of the samples of {partition_key(result.eval_name, result.model)}: {type(error).__name__}: {error}")
        return replace(result, warnings=(*result.warnings, *warnings))
    links = {"samples_in_mlflow": f"{result.links['mlflow_run']}/artifacts/{PAGE}"} if "mlflow_run" in result.links and not warnings else {}
    return replace(result, files={"samples_page": path}, links={**result.links, **links}, warnings=(*result.warnings, *warnings))


def write_page(
    path: Path,
    lake: Lake,
    eval_name: str,
    model: str,
    materialized_at: datetime,
    *,
    against: Materialization | Literal["previous"] | None = "previous",
    whole: bool = False,
) -> None:
    """Write the page of a result, with the arguments of `collect_samples`. An existing page is replaced.

    With `whole`, it has all samples, and can be larger than MLflow shows.

    Raises:
        LakeError: The result, or a part of it, is not in the lake.
    """
    most, most_bytes = (None, MOST_BYTES_OF_ALL) if whole else (MOST_SAMPLES, MOST_BYTES)
    page = result_page(collect_samples(lake, eval_name, model, materialized_at, against=against, most=most), most_bytes)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as temporary:
        temporary.write_bytes(page)


def _is_current(path: Path, materialized_at: datetime, *, any_version: bool) -> bool:
    """Whether there is a page of this materialization, as this version of the package makes it, or any."""
    stamp = page_stamp(materialized_at.astimezone(UTC))
    try:
        with path.open("rb") as page:
            return (stamp.partition(" ")[0] if any_version else stamp).encode() in page.read(_MOST_BEFORE_STAMP)
    except OSError:
        return False
