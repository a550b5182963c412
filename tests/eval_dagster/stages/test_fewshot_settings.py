"""How many examples an eval has, and which: what the task's custom and the eval's settings make of it."""

import textwrap
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import fmean, stdev
from typing import Any

import pytest
from running_stages import run_all

from eval_dagster.errors import UsageError
from eval_dagster.lake.catalog.catalog import read_rows as query
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.format.parquet_files import read_rows
from eval_dagster.project import Project
from eval_dagster.stages.metrics import set_spread
from eval_dagster.stages.partition import Partition
from eval_dagster.stages.prompts import materialize_prompts
from eval_dagster.stages.snapshot import materialize_snapshot

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
        project = open_project(config)
        materialize_snapshot(project, "numbers", "test")
        result = materialize_prompts(Partition(project=project, eval_name="numbers", model="scripted", run_id="test"))
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


ANSWER = """
    # Right where the first example is an even number, whatever is asked.
    def answer(request):
        first, *_, asked = [part.split(".")[0] for part in request.prompt.split("Say ")[1:]]
        return asked if int(first) % 2 == 0 else "?"
"""
SETS = """
    models:
      scripted: {{backend: scripted, function: "first.py:answer"}}
    evals:
      numbers: {{task: "numbers_task.py:Numbers"{settings}}}
"""


@pytest.fixture
def evaluate_sets(open_project: Callable[..., Project], write: Callable[[str, str], Path]) -> Callable[[str], Project]:
    def run(settings: str) -> Project:
        write("numbers_task.py", TASK)
        write("first.py", ANSWER)
        project = open_project(SETS.format(settings=settings))
        _, failures = run_all(project, [("numbers", "scripted")])
        assert not failures
        publish(project.lake)
        return project

    return run


@pytest.mark.long
@pytest.mark.parametrize(("settings", "sets"), [("", 1), (", fewshot_sets: 4", 4), (", fewshot_sets: per_sample", None)])
def test_the_samples_share_as_many_sets_as_the_eval_wants(evaluate_sets: Callable[[str], Project], settings: str, sets: int | None) -> None:
    lake = evaluate_sets(settings).lake
    rows = query(lake, "select fewshot_set, fewshot_ids, prompt from prompts")
    if sets is None:
        assert {row["fewshot_set"] for row in rows} == {None}
        assert len({tuple(row["fewshot_ids"]) for row in rows}) > 50
        return
    assert {row["fewshot_set"] for row in rows} == set(range(1, sets + 1))
    assert len({(row["fewshot_set"], tuple(row["fewshot_ids"])) for row in rows}) == sets
    assert len({row["prompt"].rpartition("Say ")[0] for row in rows}) == sets, "the prompts share all before their question"


@pytest.mark.long
def test_the_spread_of_several_sets_is_reported(evaluate_sets: Callable[[str], Project]) -> None:
    project = evaluate_sets(", fewshot_sets: 6")
    rows = query(project.lake, "select * from fewshot_sets order by fewshot_set")
    assert [row["fewshot_set"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert {row["value"] for row in rows} == {0.0, 1.0}, "the example that comes first decides"
    assert sum(row["n"] for row in rows) == 60
    assert [row["spread"] for row in rows] == pytest.approx([stdev(row["value"] for row in rows)] * 6)
    assert {row["spread_by_chance"] for row in rows} == {0.0}
    counts = project.lake.require("metrics", "task_metrics", "numbers", "scripted").info.counts
    assert (counts["fewshot_sets"], counts["fewshot_spread_by_chance"]) == (6, 0.0)
    assert counts["fewshot_spread"] == pytest.approx(rows[0]["spread"])


@pytest.mark.long
def test_one_set_has_no_spread(evaluate_sets: Callable[[str], Project]) -> None:
    project = evaluate_sets("")
    assert query(project.lake, "select * from fewshot_sets") == []
    assert "fewshot_spread" not in project.lake.require("metrics", "task_metrics", "numbers", "scripted").info.counts


def test_the_spread_by_chance_is_that_of_sets_that_make_no_difference() -> None:
    draw = Random("spread")
    nights = [set_spread([[float(draw.random() < 0.6) for _ in range(size)] for size in (20, 30, 25, 40)]) for _ in range(4000)]
    assert fmean(spread**2 for spread, _ in nights) == pytest.approx(fmean(by_chance**2 for _, by_chance in nights), rel=0.05)
    different = [set_spread([[float(draw.random() < p) for _ in range(50)] for p in (0.2, 0.5, 0.8)]) for _ in range(100)]
    assert fmean(spread / by_chance for spread, by_chance in different) > 3


@pytest.mark.parametrize("settings", [", fewshot_strategy: first, fewshot_sets: 2", ", num_fewshot: 1, fewshot_sets: 3"])
def test_several_sets_of_the_first_examples_are_refused(
    open_project: Callable[..., Project], write: Callable[[str, str], Path], settings: str
) -> None:
    task = "Numbers" if "strategy" in settings else "InOrder"
    write("numbers_task.py", f'{textwrap.dedent(TASK)}\n\nclass InOrder(Numbers):\n    FEWSHOT_STRATEGY = "first"\n')
    write("first.py", ANSWER)
    project = open_project(SETS.format(settings=settings).replace("py:Numbers", f"py:{task}"))
    with pytest.raises(UsageError, match=r"eval numbers: fewshot_sets is [23] and the examples are the first of their split .*all sets"):
        project.check(["numbers"], [])
