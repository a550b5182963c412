"""The definitions that Dagster loads, made from evals.yaml."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import dagster as dg
from pydantic import ValidationError

from eval_dagster.assets.automation import (
    checkpoints_sensor,
    definitions_sensor,
    killed_runs_sensor,
    leaderboard_sensor,
    suite_gates_sensor,
    suite_schedule,
)
from eval_dagster.assets.due_nights import freshness_policy
from eval_dagster.assets.evaluation import evaluation_assets, leaderboard_asset, snapshot_assets, spec_with_options
from eval_dagster.assets.failed_nights import failed_nights_sensor
from eval_dagster.assets.jobs import accepting_job, evaluating_jobs, gate_job, leaderboard_job
from eval_dagster.assets.provenance import source_specs
from eval_dagster.assets.regressions import gate_asset, suite_check
from eval_dagster.assets.runs.skipped_nights import skipped_nights_sensor
from eval_dagster.assets.trust_checks import trust_checks
from eval_dagster.config.schema import DagsterConfig
from eval_dagster.errors import ConfigError
from eval_dagster.key_prefixes import keep_key_prefix
from eval_dagster.project import Project
from eval_dagster.remembered import remember


def evaluation_definitions(
    config_path: Path | str | None = None,
    *,
    home: Path | str | None = None,
    key_prefix: str | Sequence[str] | None = None,
    group: str | None = None,
    owners: Sequence[str] | None = None,
    tags: Mapping[str, str] | None = None,
    kinds: Sequence[str] | None = None,
    untrusted: Literal["warn", "error"] | None = None,
    automation: Literal["running", "stopped"] | None = None,
) -> dg.Definitions:
    """The assets, jobs, schedules and sensors of an evals.yaml, to be merged into the definitions of another Dagster project.

    An asset of that project can depend on `leaderboard`, for instance:

        defs = dg.Definitions.merge(own, evaluation_definitions("path/to/evals.yaml", key_prefix="support"))

    The executor is the other project's. With a key prefix, all names begin with it; the definitions have no resource. An option
    that is given stands before `dagster` in the file.

    Args:
        config_path: The file; `EVAL_DAGSTER_CONFIG` or `./evals.yaml` if not given.
        home: The folder of all state; `EVAL_DAGSTER_HOME` or `.eval_dagster` beside the file where not given.
        key_prefix: The first parts of all asset keys, `support` or `team/support`. It is kept in the home, so that commands use it, too.
        group: The group of all assets.
        owners: Owners of all assets: email addresses, or `team:name`.
        tags: Tags of all assets.
        kinds: Kinds of all assets, three at most.
        untrusted: The severity of a check that finds that a result cannot be trusted.
        automation: Whether schedules and sensors run from the start.

    Raises:
        ConfigError: The file is missing or wrong, or an option.
    """
    path, folder = Path(config_path) if config_path else None, Path(home) if home else None
    project = Project.open(config_path=path, home=folder, is_kept_prefix_used=False)
    options = {
        "key_prefix": key_prefix,
        "group": group,
        "owners": owners,
        "tags": tags,
        "kinds": kinds,
        "untrusted": untrusted,
        "automation": automation,
    }
    given = {name: value for name, value in options.items() if value is not None}
    return build_definitions(with_options(project, given), executor=None)


def with_options(project: Project, given: Mapping[str, object]) -> Project:
    """The project of a code location that gives options of `dagster` itself. Its key prefix is kept in the home.

    Raises:
        ConfigError: An option is wrong.
    """
    try:
        chosen = DagsterConfig.model_validate({**project.config.dagster.model_dump(), **given})
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        raise ConfigError(f"the option {wrong['loc'][0]} of the definitions is {wrong['input']!r}: {wrong['msg']}") from None
    keep_key_prefix(project.home, chosen.key_prefix if "key_prefix" in given else None)
    return replace(project, config=project.config.model_copy(update={"dagster": chosen}))


def build_definitions(project: Project, *, executor: dg.ExecutorDefinition | None = dg.in_process_executor) -> dg.Definitions:
    """The assets, jobs, schedules and sensors of a project.

    `executor` runs the steps of jobs that name no executor of their own; Dagster's default where None.
    """
    config, options = project.config, project.config.dagster
    remember(project)
    jobs = evaluating_jobs(project)
    gates = {name: gate_job(name, project) for name in config.suites}
    nightly = [name for name, suite in config.suites.items() if suite.cron]
    with warnings.catch_warnings():
        # The partition mapping is marked as beta; there is no other way from two dimensions to one.
        warnings.simplefilter("ignore", dg.BetaWarning)
        assets = [snapshot_assets(project), evaluation_assets(project), leaderboard_asset(project), _watched(gate_asset(project), project)]
        return dg.Definitions(
            assets=[
                *(spec_with_options(spec, options) for spec in source_specs(project)),
                *(each.map_asset_specs(lambda spec: spec_with_options(spec, options)) for each in assets),
            ],
            asset_checks=[*trust_checks(project), *(suite_check(name, project) for name in config.suites)],
            jobs=[
                *jobs,
                leaderboard_job(project),
                *([accepting_job(project)] if config.suites else []),
                *gates.values(),
            ],
            schedules=[suite_schedule(name, project) for name in nightly],
            sensors=[
                leaderboard_sensor(project),
                killed_runs_sensor(project),
                definitions_sensor(project),
                *([checkpoints_sensor(project, jobs)] if project.training_runs and gates else []),
                *([suite_gates_sensor(project, gates), failed_nights_sensor(project)] if gates else []),
                *([skipped_nights_sensor(project)] if nightly else []),
            ],
            executor=executor,
        )


def _watched(asset: dg.AssetsDefinition, project: Project) -> dg.AssetsDefinition:
    """The asset of all gates, which Dagster shows as overdue if the suite that is due most often is not judged in time."""
    policy = freshness_policy(project.config.suites, datetime.now(UTC))
    return asset if policy is None else asset.map_asset_specs(lambda spec: spec.replace_attributes(freshness_policy=policy))
