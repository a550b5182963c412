"""Logs results to MLflow."""

from eval_dagster.tracking.tracked_result import TrackedResult
from eval_dagster.tracking.tracker import UI_VARIABLE, Tracker

__all__ = ["UI_VARIABLE", "TrackedResult", "Tracker"]
