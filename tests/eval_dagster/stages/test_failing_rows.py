"""A row on which a task's own code fails is an error of its sample. The next run makes its prompt again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from running_stages import run_all

from eval_dagster.freshness import partition_states
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.project import Project

CONFIG = """
    models:
      scripted: {backend: scripted, function: "answer.py:answer"}
    evals:
      quiz: {task: "quiz_task.py:Quiz", num_fewshot: %d}
"""
TASK = """
    import sys
    from pathlib import Path
    from eval_dagster import AccuracyLoglikelihood, BaseTask, ResponseType

    def fail(item):
        %s

    class Quiz(BaseTask[str]):
        NAME = "Quiz"
        DATASET_PATH = "rows"
        SAMPLE_SPLIT = "test"
        FEWSHOT_SPLIT = "train"
        RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS
        METRICS = [AccuracyLoglikelihood]
        SUBJECTS = ["a", "b"]

        def _load_dataset(self, subject):
            return {split: [{"split": split, "of": subject, "i": i, "gold": " yes"} for i in range(3)] for split in ("test", "train")}

        def _get_instruction_text(self, item):
            %s
            return f"{item['split']} {item['of']}{item['i']}?"

        def _get_ground_truth(self, item):
            return item["gold"]

        def _get_fewshot_target_text(self, item):
            %s
            return item["gold"]

        def _get_possible_completions(self, item):
            return [" yes", " no"]
"""
OF_ONE = 'if (item["split"], item["of"], item["i"]) == ("%s", "a", 1):\n            '
"""In `fail`: for one row of a split."""
PLACE = "row 1 of split 'test' (subject 'a')"

Open = Callable[..., Project]
Write = Callable[[str, str], Path]


def quiz(open_project: Open, write: Write, fails: str, *, question: str = "fail(item)", target: str = "", num_fewshot: int = 0) -> Project:
    write("quiz_task.py", TASK % (fails, question, target))
    return open_project(CONFIG % num_fewshot)


def run(project: Project, eval_name: str = "quiz", model: str = "scripted") -> tuple[dict[tuple[str, str], Any], list[str]]:
    results, failures = run_all(project, [(eval_name, model)])
    return results, [each.message for each in failures]


def errors(project: Project) -> dict[str, str]:
    rows = read_rows(
        project.lake,
        "select distinct p.subject || s.row_index as place, e.error from errors e join prompts p using "
        "(eval, sample_id) join samples s on s.sample_id = p.source_id order by 1",
    )
    return {row["place"]: row["error"] for row in rows}


@pytest.mark.long
@pytest.mark.parametrize(
    ("fails", "said"),
    [
        ('raise ValueError("broken")', "the task raised ValueError: broken (quiz_task.py, line 8)"),
        ("sys.exit(3)", "the task raised SystemExit: 3 (quiz_task.py, line 8)"),
        ('item["gone"]', "lacks the field 'gone'"),
    ],
)
def test_a_row_on_which_a_hook_fails_is_an_error_of_its_sample(
    open_project: Open, write: Write, asked: Callable[[], list[str]], fails: str, said: str
) -> None:
    project = quiz(open_project, write, OF_ONE % "test" + fails)
    results, failures = run(project)
    assert failures == []
    assert len(asked()) == 5, "the row is not asked"
    (found,) = errors(project).items()
    assert found[0] == "a1"
    assert found[1].startswith(f"RowError: {PLACE}")
    assert said in found[1]
    (row,) = read_rows(
        project.lake, "select n, n_errors from metrics where metric = 'accuracy' and subject is null and aggregation = 'micro'"
    )
    assert (row["n"], row["n_errors"]) == (5, 1)
    assert "1 of 6 samples has an error" in results["sample_scores", "quiz"].warnings[0]


@pytest.mark.long
@pytest.mark.parametrize(
    "wrong",
    ["return None", "return 5", 'return " perhaps"'],
)
def test_a_row_whose_hook_gives_what_does_not_fit_is_an_error_of_its_sample(open_project: Open, write: Write, wrong: str) -> None:
    text = TASK.replace(
        '            return item["gold"]\n\n        def _get_fewshot',
        f"            if item['i'] == 1:\n                {wrong}\n            return item[\"gold\"]\n\n        def _get_fewshot",
    )
    write("quiz_task.py", text % ("pass", "", ""))
    project = open_project(CONFIG % 0)
    assert run(project)[1] == []
    assert errors(project).keys() == {"a1", "b1"}


@pytest.mark.parametrize(("fails", "said"), [('raise ValueError("broken")', "ValueError: broken (quiz_"), ('item["gone"]', "'gone'")])
def test_an_eval_fails_whose_task_fails_on_all_rows(open_project: Open, write: Write, fails: str, said: str) -> None:
    project = quiz(open_project, write, fails)
    results, (message,) = run(project)
    assert "eval quiz: row 0 of split 'test' (subject 'a')" in message
    assert said in message
    assert ("rendered_prompts", "quiz") not in results


def test_an_eval_with_too_few_examples_fails_though_one_subject_has_enough(open_project: Open, write: Write) -> None:
    project = quiz(open_project, write, "pass", question="", num_fewshot=3)
    write("quiz_task.py", (TASK % ("pass", "", "")).replace("range(3)", "range(3 if (split, subject) != ('train', 'b') else 1)"))
    project = open_project(CONFIG % 3)
    _, (message,) = run(project)
    assert "eval quiz: row 0 of split 'test' (subject 'b'): subject 'b' has 1 distinct few-shot examples" in message


@pytest.mark.long
@pytest.mark.parametrize(
    ("question", "target", "said"),
    [("", "fail(item)", "its few-shot example, {}: the task raised"), ("fail(item)", "", "its few-shot examples cannot be drawn: {}: ")],
)
def test_an_example_on_which_a_hook_fails_is_named_by_all_samples_that_have_it(
    open_project: Open, write: Write, question: str, target: str, said: str
) -> None:
    fails = OF_ONE % "train" + 'raise ValueError("broken")'
    project = quiz(open_project, write, fails, question=question, target=target, num_fewshot=3)
    assert run(project)[1] == []
    found = errors(project)
    assert found.keys() == {"a0", "a1", "a2"}, "those of the other subject have other examples"
    example = "row 1 of split 'train' (subject 'a')"
    for index in range(3):
        text = found[f"a{index}"]
        assert text.startswith(f"RowError: row {index} of split 'test' (subject 'a'): {said.format(example)}"), text
        assert "ValueError: broken (quiz_task.py, line 8)" in text


def _versions(results: dict[tuple[str, str], Any]) -> list[str]:
    return [results[stage, "quiz"].file.info.version for stage in ("rendered_prompts", "model_outputs", "sample_scores")]


def _causes(project: Project) -> dict[str, list[str]]:
    (state,) = partition_states(project, ["quiz"], ["scripted"])
    return {cell.stage: list(cell.causes) for cell in state.cells.values() if cell.is_made}


@pytest.mark.long
def test_a_row_that_failed_is_made_again_and_the_rest_is_cached(
    open_project: Open, write: Write, asked: Callable[[], list[str]], tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    mark.touch()
    fails = OF_ONE % "test" + f"\n            if Path({str(mark)!r}).exists():\n                raise ValueError('passing')"
    project = quiz(open_project, write, fails)
    first, _ = run(project)
    asked()
    assert _causes(project) == {"rendered_prompts": ["errors"]}
    second, failures = run(project)
    assert failures == []
    assert not second["rendered_prompts", "quiz"].cached
    assert [second[stage, "quiz"].cached for stage in ("model_outputs", "sample_scores", "task_metrics")] == [True] * 3
    assert asked() == []
    assert _versions(second) == _versions(first)
    mark.unlink()
    third, failures = run(project)
    assert failures == []
    assert len(asked()) == 1, "the row alone is asked"
    assert errors(project) == {}
    assert third["task_metrics", "quiz"].file.info.version != second["task_metrics", "quiz"].file.info.version
    assert _causes(project) == {}
    assert run(project)[0]["rendered_prompts", "quiz"].cached
