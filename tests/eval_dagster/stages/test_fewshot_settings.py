"""How many examples an eval has, and which: what the task's custom and the eval's settings make of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from running_stages import run_all

from eval_dagster.lake.files import read_rows
from eval_dagster.project import Project

TASK = """
    from eval_dagster.metrics.completion import ExactMatch
    from eval_dagster.records import ResponseType
    from eval_dagster.tasks.base import BaseTask

    class Numbers(BaseTask[str]):
        NAME = "Numbers"
        DATASET_PATH = "numbers"
        SAMPLE_SPLIT = "test"
        FEWSHOT_SPLIT = "train"
        NUM_FEWSHOT = 2
        RESPONSE_TYPE = ResponseType.COMPLETION
        METRICS = [ExactMatch]
        SUBJECTS = ["all"]

        def _load_dataset(self, subject):
            return {"test": [{"n": n} for n in range(60)], "train": [{"n": n} for n in range(60, 100)]}

        def _get_instruction_text(self, item):
            return f"Say {item['n']}."

        def _get_ground_truth(self, item):
            return str(item["n"])

    class Foreign(Numbers):
        def __init__(self, num_fewshot: int = 3) -> None:
            super().__init__(num_fewshot)

    class Open(Numbers):
        def __init__(self, num_fewshot: int) -> None:
            super().__init__(num_fewshot)
"""
Prompts = list[dict[str, Any]]


@pytest.fixture
def render(open_project: Callable[..., Project], write: Callable[[str, str], Path]) -> Callable[..., tuple[Prompts, bool]]:
    """The prompts of an eval of a task of the file above, and whether they were current already."""

    def render_it(settings: str = "", task: str = "Numbers") -> tuple[Prompts, bool]:
        write("numbers_task.py", TASK)
        config = f"""
            models:
              scripted: {{backend: scripted}}
            evals:
              numbers: {{task: "numbers_task.py:{task}"{settings}}}
        """
        results, failures = run_all(open_project(config), [("numbers", "scripted")])
        assert not failures
        result = results["rendered_prompts", "numbers"]
        return read_rows(result.file.path), result.cached

    return render_it


@pytest.mark.parametrize(
    ("task", "settings", "shots"),
    [
        ("Numbers", "", 2),
        ("Numbers", ", num_fewshot: 0", 0),
        ("Numbers", ", num_fewshot: 4", 4),
        ("Foreign", "", 3),
        ("Foreign", ", num_fewshot: 1", 1),
        ("Open", "", 2),
    ],
)
def test_the_custom_of_the_task_counts_unless_the_eval_says_otherwise(
    render: Callable[..., tuple[Prompts, bool]], task: str, settings: str, shots: int
) -> None:
    rows, _ = render(settings, task)
    assert {row["num_fewshot"] for row in rows} == {shots}
    assert {len(row["fewshot_ids"]) for row in rows} == {shots}
    assert {row["prompt"].count("Say ") for row in rows} == {shots + 1}


def test_to_write_down_the_custom_changes_nothing(render: Callable[..., tuple[Prompts, bool]]) -> None:
    rows, _ = render()
    assert render(", num_fewshot: 2") == (rows, True)
