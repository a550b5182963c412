"""Nights without MLflow, which takes as long as the rest of a night."""

from collections.abc import Callable
from pathlib import Path

from eval_dagster.tracking.tracked_result import TrackedResult
from eval_dagster.tracking.tracker import Tracker


class NoMlflow(Tracker):
    """Tracks nothing."""

    def log(self, result: TrackedResult) -> str:
        return result.result_key

    def begin_log(self, result: TrackedResult) -> Callable[[], str]:
        return lambda: self.log(result)

    def begin_log_file(self, run_id: str, path: Path) -> Callable[[], None]:
        return lambda: self.log_file(run_id, path)

    def log_file(self, run_id: str, path: Path) -> None:
        assert run_id
        assert path.is_file()

    def exists(self, run_id: str) -> bool:
        return bool(run_id)

    def run_link(self, run_id: str, *, public: bool = False) -> str | None:
        return run_id
