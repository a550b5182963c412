"""A sample's prompt depends on its row, the task and the seed: no limit, and no order or choice of subjects, changes it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from eval_dagster.lake.format.parquet_files import read_rows
from eval_dagster.project import Project
from eval_dagster.stages.partition import Partition
from eval_dagster.stages.prompts import materialize_prompts
from eval_dagster.stages.snapshot import materialize_snapshot

SUBJECTS = ("north", "south", "east", "west")
TASK = """
    from eval_dagster.metrics.completion import ExactMatch
    from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood
    from eval_dagster.records import ResponseType
    from eval_dagster.tasks.base import BaseTask

    class Rivers(BaseTask[str]):
        NAME = "Rivers"
        DATASET_PATH = "rivers"
        SAMPLE_SPLIT = "test"
        FEWSHOT_SPLIT = "test"
        RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS
        METRICS = [AccuracyLoglikelihood]
        SUBJECTS = {subjects}

        def _load_dataset(self, subject):
            # The first row stands in every subject, and twice in each.
            numbers = [0, *range(40), 0]
            return {{"test": [{{"number": n, "where": subject if n else "everywhere", "long": n % 3 == 0}} for n in numbers]}}

        def _get_instruction_text(self, item):
            return f"Is river {{item['number']}} ({{item['where']}}) long?\\nAnswer:"

        def _get_possible_completions(self, item):
            return [" yes", " no"]

        def _get_ground_truth(self, item):
            return " yes" if item["long"] else " no"

    class Drawn(Rivers):
        "Draws its examples itself."

        def _sample_fewshot_examples(self, item):
            return self.rnd.sample(list(self.dataset["test"]), self.num_fewshot)

    class Written(Rivers):
        RESPONSE_TYPE = ResponseType.COMPLETION
        METRICS = [ExactMatch]

        def _get_possible_completions(self, item):
            return None
"""
CONFIG = """
    models:
      scripted: {{backend: scripted, function: "answer.py:answer", generation: {{temperature: 0.5}}}}
    evals:
      rivers: {{task: "rivers.py:{task}", num_fewshot: 3, fewshot_strategy: {strategy}, seed: 7{more}}}
"""
Prompts = Mapping[str, Mapping[str, Any]]
Render = Callable[..., Prompts]


@pytest.fixture
def render(open_project: Callable[..., Project], write: Callable[[str, str], Path]) -> Render:
    """Render an eval in a fresh process's manner, and return the rows of its prompts by sample id."""

    def render_it(task: str, strategy: str, *, subjects: tuple[str, ...] = SUBJECTS, more: str = "", limit: int | None = None) -> Prompts:
        write("rivers.py", TASK.format(subjects=list(subjects)))
        project = open_project(CONFIG.format(task=task, strategy=strategy, more=more))
        project = project if limit is None else project.trial(limit)
        materialize_snapshot(project, "rivers", "test")
        result = materialize_prompts(Partition(project=project, eval_name="rivers", model="scripted", run_id="test"))
        assert not result.cached
        rows = read_rows(result.file.path)
        by_id = {row["sample_id"]: {name: value for name, value in row.items() if name != "prompt_version"} for row in rows}
        assert len(by_id) == len(rows)
        return by_id

    return render_it


KINDS = [("Rivers", "random"), ("Rivers", "first"), ("Rivers", "balanced"), ("Drawn", "random"), ("Written", "random")]


@pytest.mark.long
@pytest.mark.parametrize(("task", "strategy"), KINDS)
def test_neither_limit_nor_subjects_nor_their_order_changes_a_prompt(render: Render, task: str, strategy: str) -> None:
    whole = render(task, strategy)
    assert len(whole) == 42 * len(SUBJECTS)
    assert len({row["request_id"] for row in whole.values()}) > 40 * len(SUBJECTS) - 4
    others = {
        "a limit of 20": (render(task, strategy, limit=20), 20 * len(SUBJECTS)),
        "the class's subjects turned round": (render(task, strategy, subjects=SUBJECTS[::-1]), len(whole)),
        "the eval's subjects in another order": (render(task, strategy, more=", subjects: [west, north, east, south]"), len(whole)),
        "two subjects": (render(task, strategy, more=", subjects: [east, north]"), len(whole) // 2),
        "two subjects, turned round, and a limit": (
            render(task, strategy, subjects=SUBJECTS[::-1], more=", subjects: [north, east]", limit=5),
            5 * 2,
        ),
    }
    for what, (prompts, size) in others.items():
        assert len(prompts) == size, what
        for sample_id, row in prompts.items():
            assert row == whole[sample_id], f"{what}: {row['prompt']}"


def test_another_seed_draws_other_examples(render: Render) -> None:
    """Without this, the test above would hold for a task that draws none."""
    one, other = render("Rivers", "random"), render("Rivers", "random", more="1")
    assert one.keys() == other.keys()
    assert sum(one[name]["fewshot_ids"] != other[name]["fewshot_ids"] for name in one) > len(one) / 2
    assert all(len(row["fewshot_ids"]) == 3 and name not in row["fewshot_ids"] for name, row in one.items())
