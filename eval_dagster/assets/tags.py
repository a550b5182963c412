"""Tags of runs. They identify a run's home and suite, since one Dagster instance can serve several projects."""

from pathlib import Path

HOME_TAG = "eval_dagster/home"
"""The home that a run writes to, as an absolute path."""
MACHINE_TAG = "eval_dagster/machine"
"""The machine on which a run computes, and the folder of its locks."""
SUITE_TAG = "eval_dagster/suite"
"""The suite that a run belongs to."""
SINCE_TAG = "eval_dagster/since"
"""When the run's evaluation of a suite began, in ISO 8601. All runs of an evaluation and its gate have the same value."""
PLANNED_TAG = "eval_dagster/planned_runs"
"""Number of runs that a tick of the suite's schedule requests. The gate waits for all of them."""
MODEL_TAG = "eval_dagster/model"
"""The model of a run that evaluates one. A limit of the queue on this tag keeps a model from running twice at once."""
ENDPOINT_TAG = "eval_dagster/endpoint"
"""The host of the served model of a run that evaluates one. Models of one server share it."""
LAUNCH_TAG = "eval_dagster/launch"
"""Hash of the suite, evals and models of the command that launched a run, by which the same command finds it again."""
JUDGED_BY_TAG = "eval_dagster/judged_by"
"""`command` if the command that started the run judges the suite."""


def home_tags(home: Path | str) -> dict[str, str]:
    """The tag of all runs of a home."""
    return {HOME_TAG: str(home)}


def suite_tags(home: Path | str, suite: str) -> dict[str, str]:
    """The tags of all runs of a suite."""
    return {**home_tags(home), SUITE_TAG: suite}
