"""Progress reporting, independent of if it is displayed."""

from eval_dagster.progress.reporting import Advance, CombinedReporter, LogReporter, Reporter, SilentReporter, current_reporter, use_reporter

__all__ = ["Advance", "CombinedReporter", "LogReporter", "Reporter", "SilentReporter", "current_reporter", "use_reporter"]
