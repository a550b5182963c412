"""YAML tasks of a user's own, with functions and rows beside them, and what is refused."""

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from eval_dagster.errors import TaskDefinitionError, UsageError
from eval_dagster.lake.format.parquet_files import read_rows
from eval_dagster.peers.lm_eval import configurations
from eval_dagster.peers.lm_eval.registry import LmEvalRegistry
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.records import Check, Status
from eval_dagster.stages.findings import stored_findings
from eval_dagster.stages.partition import STAGES, Partition, StageFailure

TASK = """
task: colours
dataset_path: csv
dataset_kwargs: {data_files: {test: rows/test.csv, train: rows/train.csv}}
output_type: multiple_choice
test_split: test
fewshot_split: train
process_docs: !function utils.upper
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_choice: "{{[first, second]}}"
doc_to_target: "{{label}}"
metric_list: [{metric: acc}, {metric: f1}]
metadata: {version: 1.0}
"""
GROUP = """
group: both
task: [colours, others]
aggregate_metric_list: [{metric: acc, weight_by_size: false}]
"""
UTILS = """
def upper(rows):
    return rows.map(lambda row: {"question": row["question"].upper()})
"""
MODEL = """
def answer(request):
    if request.choices is None:
        return "white"
    return [0.0 if choice.strip() == "white" else -1.0 for choice in request.choices]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tasks = tmp_path / "tasks"
    (tasks / "rows").mkdir(parents=True)
    (tasks / "colours.yaml").write_text(TASK)
    (tasks / "utils.py").write_text(UTILS)
    (tasks / "others.yaml").write_text(TASK.replace("task: colours", "task: others"))
    (tasks / "both.yaml").write_text(GROUP)
    (tasks / "rows" / "test.csv").write_text("question,first,second,label\nsnow?,white,black,0\ncoal?,white,black,1\nmilk?,black,white,1\n")
    (tasks / "rows" / "train.csv").write_text("question,first,second,label\nsalt?,white,black,0\nink?,white,black,1\n")
    (tmp_path / "model.py").write_text(MODEL)
    _forget()
    return tmp_path


def _forget() -> None:
    """As in a new process: files are read once in each."""
    configurations._read.cache_clear()
    configurations._loaded.cache_clear()


def _project(folder: Path, **evals: Any) -> Project:
    models = {"model": {"backend": "scripted", "function": "model.py:answer"}}
    (folder / "evals.yaml").write_text(yaml.safe_dump({"models": models, "evals": evals}))
    return Project.open(config_path=folder / "evals.yaml", home=folder / "home")


def _run(project: Project, name: str) -> Partition:
    outcomes = list(evaluate(project, [(name, "model")], stages=STAGES, run_id="test", reporter=SilentReporter()))
    assert [each.message for each in outcomes if isinstance(each, StageFailure)] == []
    return Partition(project=project, eval_name=name, model="model", run_id="test")


@pytest.mark.long
def test_a_file_with_functions_and_rows_beside_it(folder: Path) -> None:
    partition = _run(_project(folder, colours={"task": "tasks/colours.yaml", "num_fewshot": 1}), "colours")
    prompts = read_rows(partition.require("rendered_prompts").path)
    assert len(prompts) == 3
    assert prompts[0]["prompt"].endswith("Question: SNOW?\nAnswer:")
    assert prompts[0]["prompt"].count("Question: ") == 2
    assert list(prompts[0]["choices"]) == [" white", " black"]
    values = {row["metric"]: row["value"] for row in read_rows(partition.require("task_metrics").path)}
    assert values["acc"] == pytest.approx(2 / 3)
    assert values["f1"] == pytest.approx(2 / 3)  # of predictions 0, 0, 1 where 0, 1, 1 are right


@pytest.mark.long
def test_a_document_on_which_the_code_fails_is_an_error_alone(folder: Path) -> None:
    asked = "def asked(doc):\n    assert doc['first'] == 'white', 'no snow'\n    return doc['question']\n"
    (folder / "tasks" / "utils.py").write_text(UTILS + asked)
    (folder / "tasks" / "colours.yaml").write_text(TASK.replace('"Question: {{question}}\\nAnswer:"', "!function utils.asked"))
    partition = _run(_project(folder, colours={"task": "tasks/colours.yaml", "num_fewshot": 1}), "colours")
    failed = "RowError: row 2 of split 'evaluated' (subject 'colours'): the task raised AssertionError: no snow"
    assert [row["error"] for row in read_rows(partition.require("rendered_prompts").path)] == [None, None, failed]
    values = {row["metric"]: (row["value"], row["n"]) for row in read_rows(partition.require("task_metrics").path)}
    assert values["acc"] == (0.5, 2)


@pytest.mark.long
def test_examples_are_told_from_the_question_whatever_its_text(folder: Path) -> None:
    (folder / "tasks" / "colours.yaml").write_text(TASK.replace('"Question: {{question}}\\nAnswer:"', '"One\\n\\n{{question}}\\n\\nis"'))
    train = folder / "tasks" / "rows" / "train.csv"
    rows = train.read_text()
    for example, is_question in (("ink?", Status.CLEAN), ("snow?", Status.FOUND)):
        train.write_text(rows.splitlines()[0] + f"\n{example},white,black,1\n")
        partition = _run(_project(folder, colours={"task": "tasks/colours.yaml", "num_fewshot": 1}), "colours")
        file = partition.require("rendered_prompts")
        prompt = read_rows(file.path)[0]
        asked = f"One\n\n{example.upper()}\n\nis black\n\nOne\n\nSNOW?\n\nis"
        assert prompt["prompt"] == asked, "as lm-eval writes it"
        assert [turn["role"] for turn in json.loads(prompt["messages"])] == ["user", "assistant", "user"]
        found = {each.check: each for each in stored_findings(file) or ()}
        assert found[Check.EXAMPLE_IS_QUESTION].status is is_question
        assert found[Check.EXAMPLES_TELL_GOLD].status is Status.CLEAN


@pytest.mark.long
def test_a_group_of_the_folder_has_its_tasks_as_subjects(folder: Path) -> None:
    partition = _run(_project(folder, both={"task": "tasks/both.yaml"}), "both")
    rows = read_rows(partition.require("task_metrics").path)
    (headline,) = [row for row in rows if row["is_headline"]]
    assert (headline["metric"], headline["aggregation"], headline["value"]) == ("acc", "macro", pytest.approx(2 / 3))
    assert {row["subject"] for row in rows} == {None, "colours", "others"}


@pytest.mark.long
def test_mutual_information_asks_for_the_choices_alone(folder: Path) -> None:
    (folder / "tasks" / "colours.yaml").write_text(TASK.replace("[{metric: acc}, {metric: f1}]", "[{metric: acc_mutual_info}]"))
    partition = _run(_project(folder, colours={"task": "tasks/colours.yaml"}), "colours")
    prompts = [row["prompt"] for row in read_rows(partition.require("rendered_prompts").path)]
    assert prompts[:2] == ["Question: SNOW?\nAnswer:", ""]
    (row,) = [each for each in read_rows(partition.require("task_metrics").path) if each["subject"] is None]
    assert (row["metric"], row["value"], row["n"]) == ("acc_mutual_info", pytest.approx(1 / 3), 3)


@pytest.mark.long
def test_an_empty_text_is_an_answer(folder: Path) -> None:
    generated = "output_type: generate_until\ngeneration_kwargs: {until: ['w']}\nmetric_list: [{metric: exact_match}]\n"
    kept = [line for line in TASK.strip().splitlines() if line.partition(":")[0] not in ("output_type", "metric_list", "doc_to_choice")]
    (folder / "tasks" / "colours.yaml").write_text("\n".join([*kept, generated]).replace('"{{label}}"', '"{{first[:0]}}"'))
    partition = _run(_project(folder, colours={"task": "tasks/colours.yaml"}), "colours")
    values = {(row["value"], row["error"]) for row in read_rows(partition.require("sample_scores").path)}
    assert values == {(1.0, None)}


@pytest.mark.long
def test_what_a_filter_took_from_a_text_explains_the_score(folder: Path) -> None:
    filters = "\n".join(
        [
            "output_type: generate_until",
            "metric_list: [{metric: exact_match}]",
            "filter_list:",
            "  - {name: first-letter, filter: [{function: regex, regex_pattern: '^(.)'}, {function: take_first}]}",
            "  - {name: whole, filter: [{function: take_first}]}",
        ]
    )
    kept = [line for line in TASK.strip().splitlines() if line.partition(":")[0] not in ("output_type", "metric_list", "doc_to_choice")]
    (folder / "tasks" / "colours.yaml").write_text("\n".join([*kept, filters]).replace('"{{label}}"', '"{{first[:1]}}"'))
    partition = _run(_project(folder, colours={"task": "tasks/colours.yaml"}), "colours")
    rows = read_rows(partition.require("sample_scores").path)
    assert {(row["metric"], row["explanation"]) for row in rows} == {
        ("exact_match/first-letter", '{"answer": ["w"]}'),
        ("exact_match/whole", None),
    }
    assert [row["value"] for row in rows if row["metric"] == "exact_match/first-letter"] == [1.0, 1.0, 0.0]


def test_a_date_in_a_row_is_refused(folder: Path) -> None:
    (folder / "tasks" / "utils.py").write_text(
        "import datetime\n\n\ndef upper(rows):\n    return rows.map(lambda row: {'day': datetime.date(2020, 1, 1)})\n"
    )
    project = _project(folder, colours={"task": "tasks/colours.yaml"})
    (failure,) = [
        each
        for each in evaluate(project, [("colours", "model")], stages=["rendered_prompts"], run_id="test", reporter=SilentReporter())
        if isinstance(each, StageFailure)
    ]
    assert "lm_eval:colours: the field 'day' holds a date; expected text, numbers, lists and mappings" in failure.message


def test_changed_code_rows_or_text_change_the_version(folder: Path) -> None:
    def stamp() -> list[Any]:
        _forget()
        project = _project(folder, colours={"task": "tasks/colours.yaml"})
        task = project.task("colours")
        return [task.VERSION, project.reader.stamp(task, project.subjects("colours"))]

    first = stamp()
    assert stamp() == first
    (folder / "tasks" / "utils.py").write_text(UTILS.replace("upper()", "lower()"))
    second = stamp()
    assert second[0] != first[0]
    (folder / "tasks" / "rows" / "test.csv").write_text("question,first,second,label\nsnow?,white,black,0\n")
    third = stamp()
    assert (third[0], third[1] != second[1]) == (second[0], True)
    (folder / "tasks" / "colours.yaml").write_text(TASK.replace("Question:", "Q:"))
    assert stamp()[0] != third[0]


def test_examples_are_an_error_where_the_configuration_forbids_them(folder: Path) -> None:
    (folder / "tasks" / "colours.yaml").write_text(f"{TASK}num_fewshot: 0\n")
    project = _project(folder, two={"task": "tasks/colours.yaml", "num_fewshot": 2}, none={"task": "tasks/colours.yaml"})
    project.check(["none"], ["model"])
    with pytest.raises(UsageError, match=r"eval two: lm_eval:colours has `num_fewshot: 0` in its configuration, .* set num_fewshot"):
        project.check(["two"], ["model"])


def test_a_missing_file_of_rows_is_named(folder: Path) -> None:
    (folder / "tasks" / "rows" / "test.csv").unlink()
    with pytest.raises(UsageError, match=r"lacks the file .*rows/test.csv, which the split 'test' names"):
        _project(folder, colours={"task": "tasks/colours.yaml"}).check(["colours"], ["model"])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("unsafe_code: true", "is refused: lm-eval runs code that the model wrote"),
        ("doc_to_image: [image]", "asks about images or sound"),
        ("output_type: generate_until\ngeneration_kwargs: {num_beams: 4}", "wants beam search"),
        (
            "output_type: generate_until\ngeneration_kwargs: {penalty: 4}",
            "has the generation_kwargs penalty",
        ),
        (
            "output_type: generate_until\nmetric_list: [{metric: f1, hf_evaluate: true}]",
            r"scores by evaluate.load\('f1'\)",
        ),
        ("output_type: generate_until\nmetric_list: [{metric: no_such_metric}]", r"scores by evaluate.load\('no_such_metric'\)"),
        ("dataset_kwargs: {data_files: {test: 'https://example.org/test.csv'}}", "expected local files or files of a dataset on the Hub"),
        ("dataset_kwargs: {data_dir: rows}", "names a folder of its dataset"),
        ("process_docs: !function missing.function", "cannot be loaded: ImportError"),
    ],
)
def test_what_is_not_supported_is_refused_with_its_reason(folder: Path, more: str, message: str) -> None:
    keys = {line.partition(":")[0] for line in more.splitlines()}
    kept = [line for line in TASK.strip().splitlines() if line.partition(":")[0] not in keys]
    (folder / "tasks" / "colours.yaml").write_text("\n".join([*kept, more, ""]))
    with pytest.raises(TaskDefinitionError, match=message):
        _project(folder, colours={"task": "tasks/colours.yaml"}).task("colours")


def test_a_name_that_is_not_there_has_a_suggestion() -> None:
    with pytest.raises(TaskDefinitionError, match=r"no task, group or tag 'hellaswg'.*hellaswag"):
        LmEvalRegistry().benchmark("hellaswg", Path())


def test_a_file_that_is_no_task(folder: Path) -> None:
    (folder / "tasks" / "rows" / "list.yaml").write_text(textwrap.dedent("a: 1"))
    with pytest.raises(TaskDefinitionError, match="defines no task of lm-eval"):
        LmEvalRegistry().benchmark("tasks/rows/list.yaml", folder)


@pytest.mark.long
@pytest.mark.parametrize("name", ["mmlu", "tmmluplus"])
def test_a_large_group_loads_in_seconds(name: str) -> None:
    benchmark = LmEvalRegistry().benchmark(name, Path())
    assert len(benchmark.subjects) > 50
    assert benchmark.version()
