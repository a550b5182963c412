"""What workspace.yaml names: the definitions of the checkout's own evals.yaml, or of the one that `EVAL_DAGSTER_CONFIG` names."""

from eval_dagster.assets.definitions import build_definitions
from eval_dagster.project import Project

defs = build_definitions(Project.open())
