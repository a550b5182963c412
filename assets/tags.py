"""Tags of runs: what a run belongs to. Runs are looked up by them, since one Dagster instance may serve several projects."""

from pathlib import Path

HOME_TAG = "eval_dagster/home"
"""The home that a run writes to, as an absolute path. Runs of another home, or of none, are left alone."""
SUITE_TAG = "eval_dagster/suite"
"""The suite that a run belongs to."""
SINCE_TAG = "eval_dagster/since"
"""When the evaluation of the suite began that a run belongs to, as ISO 8601. Its runs and its gate share it."""
PLANNED_TAG = "eval_dagster/planned_runs"
"""How many runs a tick of the suite's schedule asks for. The gate waits for all of them."""
MODEL_TAG = "eval_dagster/model"
"""The model that a run of a schedule evaluates."""
JUDGED_BY_TAG = "eval_dagster/judged_by"
"""`command` where the command that started the run judges the suite itself."""


def home_tags(home: Path | str) -> dict[str, str]:
    """The tag of all runs of a home."""
    return {HOME_TAG: str(home)}


def suite_tags(home: Path | str, suite: str) -> dict[str, str]:
    """The tags of all runs of a suite."""
    return {**home_tags(home), SUITE_TAG: suite}
