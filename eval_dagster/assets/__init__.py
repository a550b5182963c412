"""The Dagster code location: each stage of an evaluation as an asset, jobs and schedules of the suites."""

from eval_dagster.assets.definitions import evaluation_definitions

__all__ = ["evaluation_definitions"]
