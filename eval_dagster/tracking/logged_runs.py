"""Runs of results and reports, as MLflow lists them."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from mlflow.entities import Run

RESULT_KEY_TAG = "eval_dagster.result_key"
"""The tag that identifies a result's run."""
NAMED_TAG = "eval_dagster.named_at"
"""The tag with the time, in milliseconds since 1970, at which a later result was the same one and got the same run."""
REPORT_KEY = "report/"
"""The beginning of the keys of reports."""


@dataclass(frozen=True, kw_only=True)
class LoggedRun:
    """A run that a result or a report has in MLflow."""

    run_id: str
    key: str
    """Identifies the result or the report."""
    time: datetime
    """When it was written, or last became the run of a result."""
    eval_name: str
    model: str
    dagster_run_id: str
    """The run of Dagster that logged it. Empty if a server refused the tag."""
    folder: Path | None
    """The artifacts, if they are files."""
    is_report: bool

    @property
    def size(self) -> int:
        """Bytes of the artifacts; 0 if they lie elsewhere than on this machine."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file()) if self.folder else 0


def logged_run(run: "Run") -> LoggedRun:
    """A run of MLflow that has the tag of a key."""
    info, tags = run.info, run.data.tags
    times = [info.start_time or 0, info.end_time or 0, int(tags.get(NAMED_TAG, 0))]
    address = urlsplit(str(info.artifact_uri))
    return LoggedRun(
        run_id=str(info.run_id),
        key=tags[RESULT_KEY_TAG],
        time=datetime.fromtimestamp(max(times) / 1000, UTC),
        eval_name=tags.get("eval", ""),
        model=tags.get("model", ""),
        dagster_run_id=tags.get("dagster_run_id", ""),
        folder=Path(unquote(address.path)) if address.scheme == "file" else None,
        is_report=tags[RESULT_KEY_TAG].startswith(REPORT_KEY),
    )
