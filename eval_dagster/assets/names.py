"""The names of a project's assets, jobs, schedules, sensors and partitions in Dagster. Each begins with the key prefix."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import dagster as dg

from eval_dagster.config.values import identifier

if TYPE_CHECKING:
    from eval_dagster.project import Project

REGRESSIONS = "regressions"
"""The asset that gates materialize."""
LEADERBOARD = "leaderboard"
_OF_SCHEDULE = "__anonymous_asset_job_"


@dataclass(frozen=True)
class Names:
    """The names of one project. A job's name is global to a code location, and a dynamic partition's to an instance."""

    prefix: tuple[str, ...] = ()
    """`dagster.key_prefix` of evals.yaml, or what the code location gives instead."""

    @classmethod
    def of(cls, project: "Project") -> "Names":
        """The names of a project."""
        return cls(project.config.dagster.key_prefix)

    def key(self, asset: str) -> dg.AssetKey:
        """The key of an asset."""
        return dg.AssetKey([*self.prefix, asset])

    def named(self, name: str) -> str:
        """The name of a job, a schedule, a sensor or an op: letters, digits and underscores."""
        return "_".join([*map(identifier, self.prefix), name])

    def partitions(self, dimension: str) -> str:
        """The name of the dynamic partitions of a dimension, `eval` or `model`."""
        return "/".join([*self.prefix, f"{dimension}s"])

    def suite_job(self, suite: str) -> str:
        """The name of the job that evaluates a suite."""
        return self.named(f"suite_{identifier(suite)}")

    def suite_schedule(self, suite: str) -> str:
        """The name of a suite's schedule."""
        return f"{self.suite_job(suite)}_schedule"

    def nightly_job(self, suite: str) -> str:
        """The name of the job that a suite's schedule starts: Dagster names it after the schedule."""
        return f"{_OF_SCHEDULE}{self.suite_schedule(suite)}"

    def gate_job(self, suite: str) -> str:
        """The name of the job that judges a suite."""
        return self.named(f"gate_{identifier(suite)}")

    @property
    def evaluation_job(self) -> str:
        """The name of the job that evaluates any evals and models."""
        return self.named("evaluate_all")

    @property
    def leaderboard_job(self) -> str:
        """The name of the job that refreshes the leaderboard."""
        return self.named("refresh_leaderboard")

    @property
    def accepting_job(self) -> str:
        """The name of the job by which a person accepts results."""
        return self.named("accept_result")

    @property
    def evaluation_op(self) -> str:
        """The name of the op that evaluates, in the config of its jobs."""
        return self.named("evaluate_choice")


def shown_job(name: str) -> str:
    """The name of a job in messages: a run of a suite has the same one, whether its schedule or a person started it."""
    return name.removeprefix(_OF_SCHEDULE).removesuffix("_schedule") if name.startswith(_OF_SCHEDULE) else name


def gate_check(suite: str) -> str:
    """The name of a suite's check on the asset `regressions`."""
    return f"nothing_regressed_in_{identifier(suite)}"
