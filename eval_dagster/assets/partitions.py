"""The partitions that evals and models have in Dagster. They are dynamic, so that a new entry needs no reload of the code location."""

import dagster as dg

from eval_dagster.assets.names import Names
from eval_dagster.project import Project


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
