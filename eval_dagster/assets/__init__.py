"""The Dagster code location: each stage of an evaluation as an asset, jobs and schedules of the suites."""

from eval_dagster.assets.component import EvalsComponent
from eval_dagster.assets.definitions import evaluation_definitions
from eval_dagster.assets.resources import MlflowResource, ResultsResource

__all__ = ["EvalsComponent", "MlflowResource", "ResultsResource", "evaluation_definitions"]
