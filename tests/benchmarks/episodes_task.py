"""A task with episodes of ten turns: nine calls of a tool, and an answer. The variable `EPISODES` has their number."""

import os

from eval_dagster.metrics.completion import ExactMatch
from eval_dagster.records import Row
from eval_dagster.tasks.episodes import EpisodeTask


def add(x: int, y: int) -> int:
    """Add two numbers."""
    return x + y


class Adding(EpisodeTask[str]):
    """Nine calls of a tool, and an answer."""

    NAME = "Adding"
    DATASET_PATH = "adding"
    SAMPLE_SPLIT = "test"
    METRICS = (ExactMatch,)
    TOOLS = (add,)

    def _load_dataset(self, subject: str) -> dict[str, list[Row]]:
        return {"test": [{"n": number} for number in range(int(os.environ["EPISODES"]))]}

    def _get_instruction_text(self, item: Row) -> str:
        return f"Question {item['n']}: add one nine times."

    def _get_ground_truth(self, item: Row) -> str:
        return "9"
