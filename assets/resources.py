"""The resource of all assets: the opened project, and the reporter of a step's progress."""

from pathlib import Path

import dagster as dg

from eval_dagster.errors import UsageError
from eval_dagster.progress.reporting import CombinedReporter, LogReporter, Reporter, current_reporter
from eval_dagster.project import Project

LIMIT_TAG = "eval_dagster/limit"
"""Run tag of earlier versions, whose shorter results replaced the published ones: refused."""


class ProjectResource(dg.ConfigurableResource[Project]):
    """The evals, models and suites of evals.yaml with the home of their results."""

    config_path: str
    """Path of evals.yaml."""
    home: str
    """Folder of all state."""

    def open(self, context: dg.AssetExecutionContext | dg.OpExecutionContext | None = None) -> Project:
        """Open the project.

        Raises:
            UsageError: The run has a tag that asks for a limit.
        """
        if context is not None and LIMIT_TAG in context.run.tags:
            raise UsageError(
                f"the run has the tag {LIMIT_TAG}, but what a run materializes is published, and so is as evals.yaml says; "
                "try fewer samples by `eval-dagster run --limit N`, whose results stand apart, or set the eval's `limit` in evals.yaml"
            )
        return Project.open(config_path=Path(self.config_path), home=Path(self.home))


def reporter_for(context: dg.AssetExecutionContext | dg.OpExecutionContext) -> Reporter:
    """Progress for whoever started the run, and as lines in its log."""
    return CombinedReporter(current_reporter(), LogReporter(context.log.info))
