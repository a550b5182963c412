"""Nothing is computed twice, and nothing is taken for current that is not."""

from collections.abc import Callable
from pathlib import Path

import pytest
from running_stages import CONFIG, run_all

from eval_dagster.datasets.reader import DatasetReader
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.project import Project

BOTH = [("capitals", "scripted"), ("arithmetic", "scripted")]

TASK = """
    from eval_dagster.metrics.base import CompletionMetric
    from eval_dagster.records import ResponseType
    from eval_dagster.tasks.base import BaseTask

    class Length(CompletionMetric):
        NAME = "length"

        def calculate(self, response):
            return len(response.completion_text) * FACTOR

    FACTOR = 1

    class Numbers(BaseTask[str]):
        NAME = "Numbers"
        DATASET_PATH = "numbers"
        SAMPLE_SPLIT = "test"
        RESPONSE_TYPE = ResponseType.COMPLETION
        METRICS = [Length]
        SUBJECTS = ["all"]

        def _load_dataset(self, subject):
            return {"test": [{"n": n} for n in range(100)]}

        def _get_instruction_text(self, item):
            return f"Say {item['n']}."

        def _get_ground_truth(self, item):
            return str(item["n"])
"""


@pytest.mark.long
def test_a_second_materialization_asks_no_model_and_reads_no_dataset(
    open_project: Callable[..., Project], asked: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, failures = run_all(open_project(), BOTH)
    assert not failures
    assert len(asked()) == 6 * 5 + 3 * 5
    assert not any(result.cached for result in first.values())

    monkeypatch.setattr(DatasetReader, "read", lambda *_args, **_kwargs: pytest.fail("a dataset was read"))
    second, failures = run_all(open_project(), BOTH)
    assert not failures
    assert asked() == []
    assert all(result.cached for result in second.values())
    assert [result.file.path for result in second.values()] == [result.file.path for result in first.values()]


@pytest.mark.long
def test_editing_a_metric_scores_again_and_calls_no_model(
    open_project: Callable[..., Project], write: Callable[[str, str], Path], asked: Callable[[], list[str]]
) -> None:
    config = CONFIG + '      numbers: {task: "numbers_task.py:Numbers", limit: 50}\n'
    write("numbers_task.py", TASK)
    partition = [("numbers", "scripted")]
    run_all(open_project(config), partition)
    assert len(asked()) == 50
    write("numbers_task.py", TASK.replace("FACTOR = 1", "FACTOR = 10"))
    project = open_project(config)
    again, failures = run_all(project, partition)
    assert not failures
    assert asked() == []
    assert again["model_outputs", "numbers"].cached
    assert not again["sample_scores", "numbers"].cached
    assert [row["value"] for row in read_rows(project.lake, "select value from metrics_history order by materialized_at")] == [2.0, 20.0]
    assert read_rows(project.lake, "select changed from score_history where materialization = 2") == [{"changed": ["metric"]}]


def test_a_comment_in_a_metric_changes_nothing(
    open_project: Callable[..., Project], write: Callable[[str, str], Path], asked: Callable[[], list[str]]
) -> None:
    config = CONFIG + '      numbers: {task: "numbers_task.py:Numbers", limit: 5}\n'
    write("numbers_task.py", TASK)
    run_all(open_project(config), [("numbers", "scripted")])
    write("numbers_task.py", TASK.replace("FACTOR = 1", "FACTOR = 1  # a remark"))
    again, _ = run_all(open_project(config), [("numbers", "scripted")])
    assert all(result.cached for result in again.values())


@pytest.mark.long
def test_raising_the_limit_sends_only_the_new_samples(
    open_project: Callable[..., Project], write: Callable[[str, str], Path], asked: Callable[[], list[str]]
) -> None:
    write("numbers_task.py", TASK)
    fifty = CONFIG + '      numbers: {task: "numbers_task.py:Numbers", limit: 50}\n'
    run_all(open_project(fifty), [("numbers", "scripted")])
    before = asked()
    more, _ = run_all(open_project(fifty.replace("limit: 50", "limit: 60")), [("numbers", "scripted")])
    after = asked()
    assert (len(before), len(after)) == (50, 10)
    assert not set(before) & set(after)
    assert more["dataset_snapshot", "numbers"].cached
    assert more["model_outputs", "numbers"].file.info.counts["requests"] == 60


@pytest.mark.long
def test_the_same_request_of_two_evals_is_sent_once(open_project: Callable[..., Project], asked: Callable[[], list[str]]) -> None:
    config = CONFIG + "      twin: {task: arithmetic, limit: 5}\n"
    _, failures = run_all(open_project(config), [("arithmetic", "scripted"), ("twin", "scripted")])
    assert not failures
    requests = asked()
    assert len(requests) == len(set(requests)) == 15


@pytest.mark.long
def test_a_changed_model_is_asked_again(
    open_project: Callable[..., Project], write: Callable[[str, str], Path], asked: Callable[[], list[str]], tmp_path: Path
) -> None:
    run_all(open_project(), [("arithmetic", "scripted")])
    asked()
    answer = tmp_path / "answer.py"
    answer.write_text(answer.read_text().replace('" 7"', '" 8"'))
    project = Project.open(tasks=open_project().tasks, config_path=tmp_path / "evals.yaml", home=tmp_path / "home")
    project._handles.clear()
    write("answer.py", answer.read_text())
    again, _ = run_all(_reopened(project), [("arithmetic", "scripted")])
    assert not again["model_outputs", "arithmetic"].cached


def _reopened(project: Project) -> Project:
    return Project.open(tasks=project.tasks, config_path=project.config_path, home=project.home)
