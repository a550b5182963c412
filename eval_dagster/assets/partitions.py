"""The partitions that evals and models have in Dagster. They are dynamic, so that a new entry needs no reload of the code location."""

from collections.abc import Sequence
from contextlib import suppress

import dagster as dg
from sqlalchemy.exc import IntegrityError

from eval_dagster.assets.names import Names
from eval_dagster.project import Project
from eval_dagster.stages.partition import StageFailure, partition_key

_TRIALS = 10


def add_partitions(instance: dg.DagsterInstance, project: Project) -> list[str]:
    """Add the evals and models of a project that Dagster does not have yet. Returns their names.

    Those that evals.yaml no longer has stay, since their history does.
    """
    names, added = Names.of(project), []
    for dimension, entries in (("eval", project.config.evals), ("model", project.config.models)):
        known = set(instance.get_dynamic_partitions(names.partitions(dimension)))
        new = [entry for entry in entries if entry not in known]
        if new:
            _add(instance, names.partitions(dimension), new)
        added += new
    return added


def _add(instance: dg.DagsterInstance, name: str, keys: Sequence[str]) -> None:
    """Add dynamic partitions. If another process adds some of them after Dagster's look at them, its insert fails as a whole."""
    for _ in range(_TRIALS - 1):
        with suppress(IntegrityError):
            instance.add_dynamic_partitions(name, keys)
            return
    instance.add_dynamic_partitions(name, keys)


def removed_partitions(instance: dg.DagsterInstance, project: Project) -> list[str]:
    """The materialized partitions of which evals.yaml no longer has the eval or the model, or never had: projects can share an instance."""
    names, config = Names.of(project), project.config
    models = {*config.models, *project.known_checkpoints}
    added = [set(instance.get_dynamic_partitions(names.partitions(dimension))) for dimension in ("eval", "model")]
    if added[0] <= set(config.evals) and added[1] <= models:
        return []
    made = [key.split("|") for key in instance.get_materialized_partitions(names.key("task_metrics"))]
    return sorted(partition_key(*key) for key in made if key[0] not in config.evals or key[1] not in models)


def removed_failures(project: Project, partitions: Sequence[tuple[str, str]], stage: str) -> list[StageFailure]:
    """A failure for each chosen partition of which evals.yaml has no eval or model, removed there or added by hand in Dagster alone."""
    models = {*project.config.models, *project.known_checkpoints}
    return [
        StageFailure(
            stage=stage,
            eval_name=eval_name,
            model=model,
            message=f"{project.config_path.name} has no {'eval' if eval_name not in project.config.evals else 'model'} "
            f"{eval_name if eval_name not in project.config.evals else model}: add it there, and its partition comes by itself; "
            "earlier results are kept",
        )
        for eval_name, model in partitions
        if eval_name not in project.config.evals or model not in models
    ]
