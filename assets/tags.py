"""Tags of runs. They identify a run's home and suite, since one Dagster instance can serve several projects."""

from pathlib import Path

HOME_TAG = "eval_dagster/home"
"""The home that a run writes to, as an absolute path."""
SUITE_TAG = "eval_dagster/suite"
"""The suite that a run belongs to."""
SINCE_TAG = "eval_dagster/since"
"""When the run's evaluation of a suite began, in ISO 8601. All runs of an evaluation and its gate have the same value."""
PLANNED_TAG = "eval_dagster/planned_runs"
"""Number of runs that a tick of the suite's schedule requests. The gate waits for all of them."""
MODEL_TAG = "eval_dagster/model"
"""The model that a run of a schedule evaluates."""
JUDGED_BY_TAG = "eval_dagster/judged_by"
"""`command` if the command that started the run judges the suite."""


def home_tags(home: Path | str) -> dict[str, str]:
    """The tag of all runs of a home."""
    return {HOME_TAG: str(home)}


def suite_tags(home: Path | str, suite: str) -> dict[str, str]:
    """The tags of all runs of a suite."""
    return {**home_tags(home), SUITE_TAG: suite}
