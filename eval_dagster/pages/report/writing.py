"""Writes reports to the home and to MLflow: a page for each judgement, and the newest one as `latest.html`."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from eval_dagster.errors import EvalDagsterError
from eval_dagster.gate.records import GateResult
from eval_dagster.gate.wording import tone, verdict_line
from eval_dagster.pages.report.contents import Contents, collect
from eval_dagster.pages.report.evidence import ResultMetric, write_sample_pages
from eval_dagster.pages.report.histories import history_file
from eval_dagster.pages.report.page import bare_page, missing_page, render
from eval_dagster.project import Project
from eval_dagster.stores.whole_files import replaced
from eval_dagster.tracking.logged_runs import REPORT_KEY

LATEST = "latest.html"
"""The newest page of a suite."""
PICTURE = "score_history.svg"
"""The artifact of a result's MLflow run."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """The places of a report."""

    page: Path | None
    """Null if it could not be written."""
    mlflow_link: str | None
    """Its run in MLflow; null if MLflow cannot be reached, or the address of its pages is not known."""
    warnings: Sequence[str]
    """What went wrong."""


def report(project: Project, result: GateResult, *, run_ids: Sequence[str] = ()) -> Report:
    """Write the page of a result, and log it to MLflow. A failure is a warning, because the result is valid without a report.

    Args:
        project: The project. Its lake is read.
        result: The judgement of the suite.
        run_ids: Runs whose cost is shown; the last evaluation of each eval and model if not given.
    """
    try:
        page, contents, problem = _write(project, result, run_ids)
    except Exception as error:  # the boundary between a result and its report
        return Report(page=None, mlflow_link=None, warnings=[f"no report of {result.suite}: {_said(error)}"])
    if contents is None:
        return Report(page=page, mlflow_link=None, warnings=[f"the report of {result.suite} has the verdicts alone: {problem}"])
    try:
        return Report(page=page, mlflow_link=_track(project, result, page.name, contents), warnings=[])
    except Exception as error:  # as above
        return Report(page=page, mlflow_link=None, warnings=[f"the report of {result.suite} is not in MLflow: {_said(error)}"])


def write_report(project: Project, result: GateResult, *, run_ids: Sequence[str] = ()) -> Path:
    """Write the page to `<home>/reports/<suite>/<time of the judgement>.html`, and a copy to `latest.html` beside it.

    The arguments as of `report`. An existing page is replaced. A page that cannot be drawn has the verdicts alone, and says why.
    Returns the path of the page.
    """
    return _write(project, result, run_ids)[0]


def write_missing(project: Project, suite: str, due: datetime, cause: str, cure: str) -> None:
    """Replace `latest.html` of a suite by a page that says that the last night was not judged, until the next judgement replaces it.

    Args:
        project: The project.
        suite: The suite.
        due: When the night was due.
        cause: Why it was not judged.
        cure: What to do.
    """
    folder = project.home / "reports" / suite
    last = max((path.name for path in folder.glob("*.html") if path.name != LATEST), default=None)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replaced(folder / LATEST) as temporary:
            temporary.write_text(missing_page(suite, due, cause, cure, last), "utf-8", errors="replace")
    except OSError:
        (folder / LATEST).unlink(missing_ok=True)  # no page is better than that of an earlier judgement


def page_of(project: Project, result: GateResult) -> Path:
    """The place of a result's page, which need not exist."""
    return project.home / "reports" / result.suite / f"{result.judged_at.astimezone(UTC):%Y-%m-%dT%H-%M-%S-%fZ}.html"


def _write(project: Project, result: GateResult, run_ids: Sequence[str]) -> tuple[Path, Contents | None, str]:
    """Write the page as `write_report` does.

    Returns:
        Its path, what it shows, and why that is nothing but the verdicts.
    """
    path = page_of(project, result)
    contents: Contents | None = None
    problem = ""
    try:
        with project.lake.steady():
            pages = write_sample_pages(project.lake, result, path.with_suffix(""))
            contents = collect(project, result, run_ids=run_ids)
        page = _encoded(contents, pages)
    except Exception as error:  # the boundary between verdicts and their page
        contents, problem = None, _said(error)
        page = bare_page(result, problem).encode("utf-8", errors="replace")
    latest = path.with_name(LATEST)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for each in (path, latest):
            with replaced(each) as temporary:
                temporary.write_bytes(page)
    except OSError:
        latest.unlink(missing_ok=True)  # no page is better than that of an earlier judgement
        raise
    return path, contents, problem


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, EvalDagsterError) else f"{type(error).__name__}: {error}"


def _encoded(contents: Contents, sample_pages: Mapping[ResultMetric, str] | None = None) -> bytes:
    return render(contents, sample_pages).encode("utf-8", errors="replace")


def _track(project: Project, result: GateResult, name: str, contents: Contents) -> str | None:
    """Log the page as a separate run, `<suite> · report`, and log the picture of each new history to the run of its result.

    The run has the suite's aggregates as metrics. The copy has no links to pages of samples, which lie beside the page in the home alone.

    Returns:
        The address of the report's run; None if the address of MLflow's pages is unknown.

    Raises:
        TrackingError: MLflow cannot be reached or refuses something.
    """
    judged_at = result.judged_at.astimezone(UTC).isoformat()
    tags = {"suite": result.suite, "judged_at": judged_at, "verdict": verdict_line(result), "tone": tone(result).value}
    tags["dagster_run_id"] = result.run_id
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / name
        page.write_bytes(_encoded(contents))
        metrics: dict[str, float | None] = {}
        for row in contents.aggregates:
            name = f"{row['aggregate']}/{row['model']}"
            metrics |= {name: row["value"], f"{name}.stderr": row["stderr"]}
        run_id = project.tracker.log_page(
            page, key=f"{REPORT_KEY}{result.suite}/{judged_at}", run_name=f"{result.suite} · report", tags=tags, metrics=metrics
        )
        picture = Path(folder) / PICTURE
        for history in contents.new_histories:
            if history.mlflow_run is not None:
                picture.write_text(history_file(history), "utf-8")
                project.tracker.log_file(history.mlflow_run, picture)
    return project.tracker.run_link(run_id)
