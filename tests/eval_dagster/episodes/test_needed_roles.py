"""A task that needs a role is refused without a model for it."""

from typing import Any

import pytest

from eval_dagster import EpisodeTask
from eval_dagster.episodes.tools import require_episodes
from eval_dagster.errors import UsageError


class Served(EpisodeTask[Any]):
    NAME = "Served"
    ROLES = ("user",)


def test_a_task_names_the_roles_that_it_needs() -> None:
    require_episodes(Served, ["user"], 1)
    with pytest.raises(UsageError, match=r"Served needs a model in the role user.*add `roles: \{user: MODEL\}`"):
        require_episodes(Served, [], 1)
