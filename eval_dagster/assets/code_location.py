"""The module that workspace.yaml names: the definitions of ./evals.yaml, or of the file in `EVAL_DAGSTER_CONFIG`."""

from eval_dagster.assets.definitions import build_definitions
from eval_dagster.project import Project

defs = build_definitions(Project.open())
