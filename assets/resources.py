"""The resource of all assets: the opened project, and the reporter of a step's progress."""

from pathlib import Path

import dagster as dg

from eval_dagster.progress.reporting import CombinedReporter, LogReporter, Reporter, current_reporter
from eval_dagster.project import Project


class ProjectResource(dg.ConfigurableResource[Project]):
    """The evals, models and suites of evals.yaml with the home of their results."""

    config_path: str
    """Path of evals.yaml."""
    home: str
    """Folder of all state."""

    def open(self) -> Project:
        """Open the project."""
        return Project.open(config_path=Path(self.config_path), home=Path(self.home))


def reporter_for(context: dg.AssetExecutionContext | dg.OpExecutionContext) -> Reporter:
    """Reports progress to the starter of the run, and as lines in its log."""
    return CombinedReporter(current_reporter(), LogReporter(context.log.info))
