"""The partitions that evals and models have in Dagster. They are dynamic, so that a new entry needs no reload of the code location."""

from collections.abc import Sequence

import dagster as dg

from eval_dagster.assets.names import Names
from eval_dagster.project import Project
from eval_dagster.stages.partition import StageFailure, partition_key


def add_partitions(instance: dg.DagsterInstance, project: Project) -> list[str]:
    """Add the evals and models of a project that Dagster does not have yet. Returns their names.

    Those that evals.yaml no longer has stay, since their history does.
    """
    names, added = Names.of(project), []
    for dimension, entries in (("eval", project.config.evals), ("model", project.config.models)):
        known = set(instance.get_dynamic_partitions(names.partitions(dimension)))
        new = [entry for entry in entries if entry not in known]
        if new:
            instance.add_dynamic_partitions(names.partitions(dimension), new)
        added += new
    return added


def removed_partitions(instance: dg.DagsterInstance, project: Project) -> list[str]:
    """The partitions of `task_metrics` that have a result and of which evals.yaml no longer has the eval or the model.

    A removed eval or model without any result loses its partitions.
    """
    names, config = Names.of(project), project.config
    removed = {
        dimension: [each for each in instance.get_dynamic_partitions(names.partitions(dimension)) if each not in entries]
        for dimension, entries in (("eval", config.evals), ("model", {*config.models, *project.known_checkpoints}))
    }
    if not any(removed.values()):
        return []
    made = [key.split("|") for key in instance.get_materialized_partitions(names.key("rendered_prompts"))]
    kept = {"eval": {key[0] for key in made}, "model": {key[1] for key in made}}
    for dimension, gone in removed.items():
        for each in gone:
            if each not in kept[dimension]:
                instance.delete_dynamic_partition(names.partitions(dimension), each)
    return sorted(partition_key(*key) for key in made if key[0] in removed["eval"] or key[1] in removed["model"])


def removed_failures(project: Project, partitions: Sequence[tuple[str, str]], stage: str) -> list[StageFailure]:
    """A failure for each chosen partition of which evals.yaml no longer has the eval or the model."""
    models = {*project.config.models, *project.known_checkpoints}
    return [
        StageFailure(
            stage=stage,
            eval_name=eval_name,
            model=model,
            message=f"{project.config_path.name} no longer has the {'eval' if eval_name not in project.config.evals else 'model'} "
            f"{eval_name if eval_name not in project.config.evals else model}; its earlier results are kept",
        )
        for eval_name, model in partitions
        if eval_name not in project.config.evals or model not in models
    ]
