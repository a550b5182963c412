"""What fails fails alone, says why, and is counted."""

from collections.abc import Callable
from pathlib import Path

import pytest
from running_stages import CONFIG, run_all

from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.format.parquet_files import read_rows as read_table_rows
from eval_dagster.project import Project

ROWS = """
    import json
    from pathlib import Path
    from eval_dagster.metrics.completion import ExactMatch
    from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood
    from eval_dagster.records import ResponseType
    from eval_dagster.tasks.base import BaseTask

    class Rows(BaseTask[str]):
        NAME = "Rows"
        DATASET_PATH = "rows"
        SAMPLE_SPLIT = "test"
        RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS
        METRICS = [AccuracyLoglikelihood]
        SUBJECTS = ["all"]

        def _load_dataset(self, subject):
            return {"test": ROWS}

        def _get_instruction_text(self, item):
            return item["question"]

        def _get_ground_truth(self, item):
            return item["gold"]

        def _get_possible_completions(self, item):
            return [" yes", " no"]

    ROWS = %s
"""
GOOD = '[{"question": "a?", "gold": " yes"}, {"question": "b?", "gold": " no"}]'


def _run(open_project: Callable[..., Project], write: Callable[[str, str], Path], rows: str) -> tuple[Project, dict, list]:
    write("rows_task.py", ROWS % rows)
    project = open_project(CONFIG + '      rows: {task: "rows_task.py:Rows"}\n')
    results, failures = run_all(project, [("rows", "scripted"), ("arithmetic", "scripted")])
    return project, results, failures


@pytest.mark.long
def test_a_field_that_all_rows_lack_fails_its_eval_alone(open_project: Callable[..., Project], write: Callable[[str, str], Path]) -> None:
    _, results, failures = _run(open_project, write, '[{"other": "a?", "gold": " yes"}, {"gold": " no"}]')
    assert [failure.eval_name for failure in failures] == ["rows"]
    for part in ("eval rows", "'test'", "row 0", "'question'"):
        assert part in failures[0].message
    assert ("task_metrics", "arithmetic") in results
    assert ("task_metrics", "rows") not in results


@pytest.mark.long
def test_an_empty_choice_is_an_error_of_its_sample(open_project: Callable[..., Project], write: Callable[[str, str], Path]) -> None:
    rows = '[{"question": "a?", "gold": " yes"}, {"question": "b?", "gold": " no", "yes": ""}, {"question": "c?", "gold": " no"}]'
    write("rows_task.py", (ROWS % rows).replace('[" yes", " no"]', '[item.get("yes", " yes"), " no"]'))
    project = open_project(CONFIG + '      rows: {task: "rows_task.py:Rows"}\n')
    results, failures = run_all(project, [("rows", "scripted")])
    assert not failures
    assert "1 of 3 samples has an error" in results["sample_scores", "rows"].warnings[0]
    assert "choice 1 of 2 is empty" in results["sample_scores", "rows"].warnings[0]
    assert results["model_outputs", "rows"].file.info.counts["requests_computed"] == 2, "it is not sent"
    (row,) = read_rows(project.lake, "select n, n_errors, value from metrics where metric = 'accuracy' and subject is null")
    assert (row["n"], row["n_errors"]) == (2, 1)
    (error,) = read_rows(project.lake, "select error from errors")
    assert error["error"].startswith("RowError: row 1 of split 'test'")


@pytest.mark.long
def test_an_empty_dataset_fails_its_eval_alone(open_project: Callable[..., Project], write: Callable[[str, str], Path]) -> None:
    project, results, failures = _run(open_project, write, "[]")
    assert [failure.eval_name for failure in failures] == ["rows"]
    assert "is empty" in failures[0].message
    assert ("task_metrics", "arithmetic") in results
    assert project.lake.current("samples", "rows") is None


@pytest.mark.long
def test_a_gold_answer_that_is_no_choice_fails_its_eval_alone(
    open_project: Callable[..., Project], write: Callable[[str, str], Path]
) -> None:
    _, results, failures = _run(open_project, write, '[{"question": "a?", "gold": " perhaps"}]')
    assert "perhaps" in failures[0].message
    assert " yes" in failures[0].message
    assert ("task_metrics", "arithmetic") in results


@pytest.mark.long
def test_a_damaged_file_is_named_and_made_again_without_a_request(
    open_project: Callable[..., Project],
    write: Callable[[str, str], Path],
    asked: Callable[[], list[str]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    project, results, failures = _run(open_project, write, GOOD)
    assert not failures
    asked()
    for stage in ("dataset_snapshot", "rendered_prompts", "model_outputs", "sample_scores", "task_metrics"):
        damaged = results[stage, "rows"].file
        damaged.path.write_bytes(damaged.path.read_bytes()[:100])
        caplog.clear()
        results, failures = run_all(project, [("rows", "scripted"), ("arithmetic", "scripted")])
        assert not failures, stage
        (message,) = {message for message in caplog.messages if "is damaged" in message}
        assert f"{damaged.path} is damaged" in message
        assert "delete it" in message
        assert "This run writes a new file" in message
        assert results[stage, "rows"].file.path != damaged.path
        assert results[stage, "rows"].file.info.version == damaged.info.version
        assert asked() == [], f"{stage}: the answers are in the cache"


@pytest.mark.long
def test_a_damaged_cache_file_is_named_and_heals_by_deleting_it(
    open_project: Callable[..., Project], write: Callable[[str, str], Path], asked: Callable[[], list[str]]
) -> None:
    project, results, _ = _run(open_project, write, GOOD)
    asked()
    [cache_file] = (project.lake.root / "response_cache").rglob("*.parquet")
    cache_file.write_bytes(b"PAR1 nonsense")
    results["model_outputs", "rows"].file.path.unlink()
    _, failures = run_all(project, [("rows", "scripted"), ("arithmetic", "scripted")])
    assert [failure.eval_name for failure in failures] == ["rows"]
    assert str(cache_file) in failures[0].message
    cache_file.unlink()
    _, failures = run_all(project, [("rows", "scripted")])
    assert not failures
    assert len(asked()) == 2


def test_a_sample_that_the_model_cannot_answer_is_an_error_row_and_a_count(
    open_project: Callable[..., Project], write: Callable[[str, str], Path], tmp_path: Path
) -> None:
    project = open_project()
    write("answer.py", "def answer(request):\n    if ' 1' in request.prompt: raise RuntimeError('no ones')\n    return ' 7'\n")
    results, failures = run_all(project, [("arithmetic", "scripted")])
    assert not failures
    [row] = read_rows(project.lake, "select * from leaderboard")
    assert row["n_errors"] > 0
    assert row["n"] + row["n_errors"] == 15
    errors = read_rows(project.lake, "select * from errors")
    assert len(errors) == row["n_errors"]
    assert "RuntimeError: no ones" in errors[0]["error"]
    assert results["model_outputs", "arithmetic"].file.info.counts["errors"] == row["n_errors"]


@pytest.mark.long
def test_an_error_that_may_pass_is_asked_again(
    open_project: Callable[..., Project], write: Callable[[str, str], Path], tmp_path: Path
) -> None:
    project = open_project()
    flag = tmp_path / "broken"
    flag.touch()
    answer = """
        from pathlib import Path

        def answer(request):
            if Path(__file__).with_name("broken").exists():
                raise RuntimeError("down")
            return " 7"
    """
    write("answer.py", answer)
    run_all(project, [("arithmetic", "scripted")])
    assert read_rows(project.lake, "select n, n_errors from leaderboard") == [{"n": 0, "n_errors": 15}]
    flag.unlink()
    run_all(project, [("arithmetic", "scripted")])
    assert read_rows(project.lake, "select n, n_errors from leaderboard") == [{"n": 15, "n_errors": 0}]


@pytest.mark.long
def test_a_metric_that_fails_is_an_error_row(open_project: Callable[..., Project], write: Callable[[str, str], Path]) -> None:
    metric = """
    class Broken(AccuracyLoglikelihood):
        NAME = "broken"
        def calculate(self, response):
            raise ZeroDivisionError("half of nothing")
    """
    text = ROWS.replace("    class Rows", metric + "\n    class Rows").replace("[AccuracyLoglikelihood]", "[AccuracyLoglikelihood, Broken]")
    write("rows_task.py", text % GOOD)
    project = open_project(CONFIG + '      rows: {task: "rows_task.py:Rows"}\n')
    _, failures = run_all(project, [("rows", "scripted")])
    assert not failures
    found = {row["metric"]: row for row in read_rows(project.lake, "select * from metrics where subject is null")}
    assert found["accuracy"]["n"] == 2
    assert (found["broken"]["value"], found["broken"]["n"], found["broken"]["n_errors"]) == (None, 0, 2)
    assert "ZeroDivisionError: half of nothing" in read_rows(project.lake, "select error from errors")[0]["error"]


def test_a_row_that_cannot_be_sent_leaves_the_same_question_of_other_rows_alone(
    open_project: Callable[..., Project], write: Callable[[str, str], Path], asked: Callable[[], list[str]]
) -> None:
    rows = [{"question": "a?", "gold": gold} for gold in ("7", "\ud83d", "8", "\ud83d\ud83d")]
    text = ROWS % repr(rows)
    for old, new in (
        ("LOGLIKELIHOODS", "COMPLETION"),
        ("[AccuracyLoglikelihood]", "[ExactMatch]"),
        ('return [" yes", " no"]', "return None"),
    ):
        text = text.replace(old, new)
    write("rows_task.py", text)
    project = open_project(CONFIG + '      rows: {task: "rows_task.py:Rows"}\n')
    results, failures = run_all(project, [("rows", "scripted")])
    assert not failures
    assert len(asked()) == 1
    prompts = {row["sample_id"]: row["error"] for row in read_table_rows(results["rendered_prompts", "rows"].file.path)}
    assert sum(error is not None for error in prompts.values()) == 2
    assert len(set(prompts.values())) == 3
    file = results["model_outputs", "rows"].file
    assert {row["sample_id"]: row["error"] for row in read_table_rows(file.path)} == prompts
    assert [file.info.counts[name] for name in ("requests", "errors", "requests_computed", "requests_cached")] == [4, 2, 1, 1]
    scores = {row["sample_id"]: (row["value"], row["error"]) for row in read_table_rows(results["sample_scores", "rows"].file.path)}
    assert sorted(value for value, error in scores.values() if error is None) == [0.0, 1.0]
    assert {name: error for name, (_, error) in scores.items()} == prompts


@pytest.mark.long
def test_what_an_answer_took_is_counted_where_its_question_could_be_sent(
    open_project: Callable[..., Project], write: Callable[[str, str], Path]
) -> None:
    for name, gold in (("bad", "\ud83d"), ("good", "7")):
        text = ROWS % repr([{"question": "a?", "gold": gold}])
        for old, new in (("LOGLIKELIHOODS", "COMPLETION"), ("[AccuracyLoglikelihood]", "[ExactMatch]"), ('[" yes", " no"]', "None")):
            text = text.replace(old, new)
        write(f"{name}_task.py", text)
    project = open_project(CONFIG + "".join(f'      {name}: {{task: "{name}_task.py:Rows"}}\n' for name in ("bad", "good")))
    results, failures = run_all(project, [("bad", "scripted"), ("good", "scripted")])
    assert not failures
    bad, good = (results["model_outputs", name].file.info.counts for name in ("bad", "good"))
    assert good["worker_s_computed"] > 0
    assert not bad.get("worker_s_computed")
