"""Of which rows the score of a benchmark is, and which of them belong together."""

from pathlib import Path

import pytest
import yaml
from rendered_tasks import fixture_of, needs_fixture

from eval_dagster.task_defs import TASKS


def test_no_score_of_gpqa_mixes_sets_that_contain_one_another() -> None:
    subjects = {name: task.SUBJECTS for name, task in TASKS.items() if task.DATASET_PATH == "Idavidrein/gpqa"}
    assert subjects == {
        "gpqa": ("gpqa_diamond",),
        "gpqa_cot": ("gpqa_diamond",),
        "gpqa_extended": ("gpqa_extended",),
        "gpqa_idk": ("gpqa_diamond",),
        "gpqa_main": ("gpqa_main",),
    }


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.DATASET_PATH == "Rowan/hellaswag"])
def test_endings_of_one_text_are_one_cluster(name: str) -> None:
    assert TASKS[name].CLUSTER_FIELD == "source_id"


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.CLUSTER_FIELD and needs_fixture(task)])
def test_the_rows_have_the_field_of_their_cluster(name: str) -> None:
    task = TASKS[name]
    file: Path = fixture_of(task)
    assert all(task.CLUSTER_FIELD in row for row in yaml.safe_load(file.read_text("utf-8"))[task.SAMPLE_SPLIT])
