"""Two jobs a suite, to evaluate it and to judge it; one for the leaderboard."""

from typing import TYPE_CHECKING

import dagster as dg

from assets.evaluation import STAGE_ASSETS
from eval_dagster.config import SuiteConfig, identifier

if TYPE_CHECKING:  # what `define_asset_job` returns has no public name
    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

SUITE_TAG = "eval_dagster/suite"
"""Run tag: the suite that a run belongs to."""
SINCE_TAG = "eval_dagster/since"
"""Run tag: when the evaluation of the suite began that a run belongs to, as ISO 8601. Its runs and its gate share it."""
PLANNED_TAG = "eval_dagster/planned_runs"
"""Run tag: how many runs a tick of the suite's schedule asks for. The gate waits for all of them."""
MODEL_TAG = "eval_dagster/model"
"""Run tag: the model that a run of a schedule evaluates."""
LEADERBOARD_JOB = "refresh_leaderboard"
EVALUATION_JOB = "evaluate_all"
REGRESSIONS = "regressions"
"""The asset that the gates make."""


def suite_job_name(suite: str) -> str:
    """The name of a suite's job; Dagster allows letters, digits and underscores."""
    return f"suite_{identifier(suite)}"


def gate_job_name(suite: str) -> str:
    """The name of the job that judges a suite."""
    return f"gate_{identifier(suite)}"


def gate_check_name(suite: str) -> str:
    """The name of a suite's check on the asset `regressions`."""
    return f"nothing_regressed_in_{identifier(suite)}"


def suite_job(name: str, suite: SuiteConfig) -> "UnresolvedAssetJobDefinition":
    """The job that takes a suite's evals and models from dataset to metrics."""
    return _evaluation_job(
        suite_job_name(name),
        f"Evaluate the suite {name}: {', '.join(suite.evals)} on {', '.join(suite.models)}.",
        tags={SUITE_TAG: name},
    )


def evaluation_job() -> "UnresolvedAssetJobDefinition":
    """The job for any choice of evals and models."""
    return _evaluation_job(EVALUATION_JOB, "Evaluate any evals on any models: choose the partitions.", tags={})


def gate_job(name: str, suite: SuiteConfig) -> "UnresolvedAssetJobDefinition":
    """The job that compares a suite with its baseline; it fails where something regressed and the suite takes that for an error."""
    check = dg.AssetCheckKey(dg.AssetKey(REGRESSIONS), gate_check_name(name))
    return dg.define_asset_job(
        gate_job_name(name),
        selection=dg.AssetSelection.assets(REGRESSIONS).without_checks() | dg.AssetSelection.checks(check),
        description=f"Compare the suite {name} with its baseline: {suite.baseline}.",
        tags={SUITE_TAG: name},
    )


def leaderboard_job() -> "UnresolvedAssetJobDefinition":
    """The job that refreshes the leaderboard."""
    return dg.define_asset_job(LEADERBOARD_JOB, selection=dg.AssetSelection.assets("leaderboard"))


def _evaluation_job(name: str, description: str, tags: dict[str, str]) -> "UnresolvedAssetJobDefinition":
    return dg.define_asset_job(
        name,
        selection=dg.AssetSelection.assets(*STAGE_ASSETS),
        description=description,
        tags=tags,
    )
