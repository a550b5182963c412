"""The definitions that Dagster loads, made from evals.yaml."""

import warnings
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg

from eval_dagster.assets.automation import definitions_sensor, killed_runs_sensor, leaderboard_sensor, suite_gates_sensor, suite_schedule
from eval_dagster.assets.due_nights import freshness_policy
from eval_dagster.assets.evaluation import evaluation_assets, leaderboard, snapshot_assets
from eval_dagster.assets.failed_nights import failed_nights_sensor
from eval_dagster.assets.jobs import accepting_job, evaluation_job, gate_job, leaderboard_job, suite_job
from eval_dagster.assets.provenance import source_specs
from eval_dagster.assets.regressions import gate_asset, gate_check
from eval_dagster.assets.resources import ProjectResource
from eval_dagster.assets.runs.skipped_nights import skipped_nights_sensor
from eval_dagster.project import Project, remember


def evaluation_definitions(config_path: Path | str | None = None, *, home: Path | str | None = None) -> dg.Definitions:
    """The assets, jobs, schedules and sensors of an evals.yaml, to be merged into the definitions of another Dagster project.

    An asset of that project can depend on `leaderboard`, for instance:

        defs = dg.Definitions.merge(own, evaluation_definitions("path/to/evals.yaml"))

    The executor is the other project's. These names must be free in that project: of the assets (`dataset_snapshot`, `rendered_prompts`,
    `model_outputs`, `sample_scores`, `task_metrics`, `leaderboard`, `regressions`), of their sources (`dataset_definition`,
    `prompt_definition`, `output_definition`, `score_definition`, `metric_definition`, `judgement_definition`), and of the resource
    (`project`).

    Args:
        config_path: The file; `EVAL_DAGSTER_CONFIG` or `./evals.yaml` if not given.
        home: The folder of all state; `EVAL_DAGSTER_HOME` or `.eval_dagster` beside the file where not given.

    Raises:
        ConfigError: The file is missing or wrong.
    """
    return build_definitions(
        Project.open(config_path=Path(config_path) if config_path else None, home=Path(home) if home else None), executor=None
    )


def build_definitions(project: Project, *, executor: dg.ExecutorDefinition | None = dg.in_process_executor) -> dg.Definitions:
    """The assets, jobs, schedules and sensors of a project.

    `executor` runs the steps of jobs that name no executor of their own; Dagster's default where None.
    """
    config = project.config
    remember(project)
    gates = {name: gate_job(name, project) for name in config.suites}
    nightly = [name for name, suite in config.suites.items() if suite.cron]
    with warnings.catch_warnings():
        # The partition mapping is marked as beta; there is no other way from two dimensions to one.
        warnings.simplefilter("ignore", dg.BetaWarning)
        return dg.Definitions(
            assets=[
                *source_specs(config),
                snapshot_assets(config),
                evaluation_assets(config),
                leaderboard,
                _watched(gate_asset(config), project),
            ],
            asset_checks=[gate_check(name, suite) for name, suite in config.suites.items()],
            jobs=[
                evaluation_job(project),
                leaderboard_job(project),
                *(suite_job(name, project) for name in config.suites),
                *([accepting_job(project)] if config.suites else []),
                *gates.values(),
            ],
            schedules=[suite_schedule(name, project) for name in nightly],
            sensors=[
                leaderboard_sensor(project),
                killed_runs_sensor,
                definitions_sensor,
                *([suite_gates_sensor(project, gates), failed_nights_sensor(project)] if gates else []),
                *([skipped_nights_sensor] if nightly else []),
            ],
            resources={"project": ProjectResource(config_path=str(project.config_path), home=str(project.home))},
            executor=executor,
        )


def _watched(asset: dg.AssetsDefinition, project: Project) -> dg.AssetsDefinition:
    """The asset of all gates, which Dagster shows as overdue if the suite that is due most often is not judged in time."""
    policy = freshness_policy(project.config.suites, datetime.now(UTC))
    return asset if policy is None else asset.map_asset_specs(lambda spec: spec.replace_attributes(freshness_policy=policy))
