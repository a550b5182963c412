"""What assets are given: the project, opened as the run's tags ask."""

from pathlib import Path

import dagster as dg

from eval_dagster.errors import UsageError
from eval_dagster.progress import CombinedReporter, LogReporter, Reporter, current_reporter
from eval_dagster.project import Project
from task_defs import TASKS

LIMIT_TAG = "eval_dagster/limit"
"""Run tag: most samples a subject, instead of each eval's own limit."""


class ProjectResource(dg.ConfigurableResource[Project]):
    """The evals, models and suites of evals.yaml with the home of their results."""

    config_path: str
    """Path of evals.yaml."""
    home: str
    """Folder of all state."""

    def open(self, context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext | None = None) -> Project:
        """Open the project; for a run, with the limit that its tags set."""
        project = Project.open(TASKS, config_path=Path(self.config_path), home=Path(self.home))
        limit = context.run.tags.get(LIMIT_TAG) if context else None
        if limit is None:
            return project
        if not limit.isdecimal() or int(limit) < 1:
            raise UsageError(f"the run tag {LIMIT_TAG} is {limit!r}; expected a whole number of at least 1")
        return project.limited(int(limit))


def reporter_for(context: dg.AssetExecutionContext) -> Reporter:
    """Progress for whoever started the run, and as lines in its log."""
    return CombinedReporter(current_reporter(), LogReporter(context.log.info))
