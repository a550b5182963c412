import inspect
import os
import pickle
import sys
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from eval_dagster.errors import TaskDefinitionError
from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood
from eval_dagster.records import Row
from eval_dagster.task_defs import TASKS
from eval_dagster.task_files.loading import load_task, select_subjects
from eval_dagster.tasks.doc import doc_task
from eval_dagster.versions.hashes import code_version

TASK_FILE = """
from eval_dagster.metrics.completion import ExactMatch
from eval_dagster.records import ResponseType
from eval_dagster.tasks.base import BaseTask


class Mine(BaseTask[str]):
    NAME = "Mine"
    DATASET_PATH = "mine"
    SAMPLE_SPLIT = "test"
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS = [ExactMatch]
    SUBJECTS = ["all"]

    def _get_instruction_text(self, item):
        return "Say yes."

    def _get_ground_truth(self, item):
        return "yes"


class Incomplete(BaseTask[str]):
    NAME = "Incomplete"


NUMBER = 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(TASK_FILE)
    return tmp_path


def test_a_name_of_the_registry(tmp_path: Path) -> None:
    assert load_task("mmlu", TASKS, tmp_path) is TASKS["mmlu"]
    with pytest.raises(TaskDefinitionError, match=r"there is no task 'mlu'; did you mean 'mmlu'\?; `eval-dagster tasks` lists all names"):
        load_task("mlu", TASKS, tmp_path)


def test_a_class_in_a_file(folder: Path) -> None:
    task = load_task("mine.py:Mine", TASKS, folder)
    assert task.NAME == "Mine"
    assert sys.modules[task.__module__].__dict__["__task_file__"] is True
    assert task.__module__ == load_task("mine.py:Mine", {}, folder).__module__


def test_its_class_can_be_pickled_and_inspected(folder: Path) -> None:
    task = load_task("mine.py:Mine", TASKS, folder)
    assert pickle.loads(pickle.dumps(task)) is task
    assert "Say yes." in inspect.getsource(task)


def test_its_code_counts_for_versions(folder: Path) -> None:
    before = code_version(load_task("mine.py:Mine", TASKS, folder))
    file = folder / "mine.py"
    written = file.stat()
    file.write_text(file.read_text().replace("Say yes.", "Say yes!"))
    # An edit of the same length within the second: cached bytecode would be taken for current.
    os.utime(file, ns=(written.st_atime_ns, written.st_mtime_ns))
    task = load_task("mine.py:Mine", TASKS, folder)
    assert task()._get_instruction_text({}) == "Say yes!"
    assert code_version(task) != before


def test_files_of_one_name_do_not_meet(folder: Path) -> None:
    (folder / "other").mkdir()
    (folder / "other/mine.py").write_text(TASK_FILE.replace('"Mine"', '"Other"'))
    first, second = load_task("mine.py:Mine", TASKS, folder), load_task("other/mine.py:Mine", TASKS, folder)
    assert (first.NAME, second.NAME) == ("Mine", "Other")
    assert first.__module__ != second.__module__


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("lost.py:Mine", r"there is no task file .*lost\.py; a path is relative to the folder of evals\.yaml"),
        ("mine.py:Mien", r"mine\.py has no task 'Mien'; did you mean 'Mine'\?; its tasks are: Mine, Incomplete"),
        ("mine.py:NUMBER", r"NUMBER in .*mine\.py is no task: expected a subclass of"),
        ("mine.py:BaseTask", r"BaseTask in .*mine\.py is no task"),
        ("mine.py:Incomplete", r"task class Incomplete .* lacks DATASET_PATH, SAMPLE_SPLIT, .*_get_ground_truth\(\)"),
    ],
)
def test_what_is_not_there_is_named(folder: Path, spec: str, message: str) -> None:
    with pytest.raises(TaskDefinitionError, match=message):
        load_task(spec, TASKS, folder)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "x = 1\nimport nothing_of_this_name\n",
            r"broken\.py, line 2, cannot be imported: there is no module 'nothing_of_this_name': looked for nothing_of_this_name\.py",
        ),
        ("import sys\n\nsys.exit(3)\n", r"broken\.py, line 3, cannot be imported: SystemExit: 3"),
        ("x = 1\n\nclass (:\n", r"broken\.py, line 3, cannot be imported: SyntaxError: invalid syntax"),
    ],
)
def test_a_file_that_fails_is_named_with_its_line(tmp_path: Path, source: str, message: str) -> None:
    (tmp_path / "broken.py").write_text(source)
    before = set(sys.modules)
    with pytest.raises(TaskDefinitionError, match=message):
        load_task("broken.py:Mine", TASKS, tmp_path)
    assert not {name for name in set(sys.modules) - before if name.endswith(".broken")}


DOC_FILE = """
from lighteval.tasks.requests import Doc

from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood
from eval_dagster.tasks.doc import DocTask, doc_task


def prompt(line, task_name: str = None):
    return Doc(task_name=task_name, query=f"{line['question']} ({task_name})", choices=line["choices"], gold_index=line["gold"])


@doc_task(dataset_path="me/quiz", sample_split="test", metrics=[AccuracyLoglikelihood])
def quiz(row):
    return prompt(row, "quiz")

"""


@pytest.fixture
def doc_file(tmp_path: Path) -> Path:
    (tmp_path / "docs.py").write_text(DOC_FILE)
    return tmp_path


ROW: Row = {"question": "Red?", "choices": ["rose", "sky"], "gold": 0}


def doc_of(task: type[Any]) -> Any:
    return task().doc(ROW)


def test_a_function_in_a_file(doc_file: Path) -> None:
    task = load_task("docs.py:quiz", {}, doc_file)
    assert (task.NAME, task.DATASET_PATH) == ("quiz", "me/quiz")
    assert doc_of(task).query == "Red? (quiz)"
    assert pickle.loads(pickle.dumps(task)) is task
    before = code_version(task)
    (doc_file / "docs.py").write_text(DOC_FILE.replace("gold_index=line", "gold_index=1 - line"))
    assert code_version(load_task("docs.py:quiz", {}, doc_file)) != before


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("docs.py:qiuz", r"docs\.py has no task 'qiuz'; did you mean 'quiz'\?; its tasks are: quiz$"),
        (
            "docs.py:prompt",
            r"prompt in .*docs\.py is no task: a function becomes one under a decorator: @doc_task\(dataset_path=\.\.\., "
            r"sample_split=\.\.\., metrics=\[\.\.\.\]\) above def prompt \(from eval_dagster import doc_task\)",
        ),
        (
            "docs.py:DocTask",
            r"DocTask in .*docs\.py is no task: expected a subclass of eval_dagster\.BaseTask, or a function under",
        ),
        ("docs.py:Doc", r"Doc in .*docs\.py is no task"),
    ],
)
def test_what_is_no_task_of_a_file_is_told(doc_file: Path, spec: str, message: str) -> None:
    with pytest.raises(TaskDefinitionError, match=message):
        load_task(spec, {}, doc_file)


def test_an_unknown_name_of_another_framework_is_told_with_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "typo.py").write_text("x = 1\nfrom lighteval.tasks.requests import Dok\n")
    with pytest.raises(
        TaskDefinitionError, match=r"typo\.py, line 2: eval_dagster offers no 'Dok' of lighteval\.tasks\.requests; did you mean 'Doc'\?"
    ):
        load_task("typo.py:Quiz", {}, tmp_path)


def test_subjects_are_chosen_by_name_in_the_tasks_order() -> None:
    task = TASKS["arithmetic"]
    assert select_subjects(task, None) == ["addition", "subtraction", "multiplication"]
    assert select_subjects(task, ["multiplication", "addition", "addition"]) == ["addition", "multiplication"]
    with pytest.raises(TaskDefinitionError, match=r"task Arithmetic has no subject 'additon'; did you mean 'addition'\?"):
        select_subjects(task, ["additon"])
    with pytest.raises(TaskDefinitionError, match=r"no subject 'roots'; it has: addition, subtraction, multiplication"):
        select_subjects(task, ["roots"])


class Planet(Enum):
    RED = "mars"
    RINGED = "saturn"


def subjects_of(subjects: Any, chosen: Any) -> list[Any]:
    task = doc_task(dataset_path="x", sample_split="test", metrics=[AccuracyLoglikelihood], subjects=subjects, name="Quiz")(
        lambda row: None
    )
    return select_subjects(task, chosen)


@pytest.mark.parametrize("chosen", [["mars"], [Planet.RED], ["RED"], [" mars "], ["mars", "RED"]])
def test_members_of_an_enum_are_chosen_by_value_name_or_themselves(chosen: list[Any]) -> None:
    assert subjects_of(list(Planet), chosen) == [Planet.RED]


PAIRS = [(Planet.RED, "de"), (Planet.RED, "en"), (Planet.RINGED, "de"), (Planet.RINGED, 2)]


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (["mars,*"], PAIRS[:2]),
        (["RINGED , *"], PAIRS[2:]),
        (["*,de"], [PAIRS[0], PAIRS[2]]),
        (["*, de", "saturn,2"], [PAIRS[0], *PAIRS[2:]]),
        (["*"], PAIRS),
        (["*,*"], PAIRS),
        ([("mars", "*")], PAIRS[:2]),
        ([(Planet.RINGED, 2)], PAIRS[3:]),
        (None, PAIRS),
    ],
)
def test_subjects_of_several_parts_are_chosen_part_by_part(chosen: Any, expected: list[Any]) -> None:
    assert subjects_of(PAIRS, chosen) == expected


def test_a_star_chooses_all() -> None:
    assert subjects_of(["a", "b"], ["*"]) == ["a", "b"]


def test_a_name_may_have_commas_in_it() -> None:
    assert subjects_of(["salt, pepper", "sugar"], ["salt,pepper"]) == ["salt, pepper"]


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (["mras,de"], r"task Quiz has no subject 'mras,de'; did you mean 'mars,de'\?"),
        (["mars"], r"task Quiz has no subject 'mars'; did you mean 'mars,"),
        (["*,fr"], r"has no subject '\*,fr'"),
        ([("venus", "de")], r"has no subject 'venus,de'"),
        (["nothing"], r"has no subject 'nothing'; it has: mars,de, mars,en, saturn,de, saturn,2"),
    ],
)
def test_a_subject_that_is_not_there_is_told(chosen: Any, message: str) -> None:
    with pytest.raises(TaskDefinitionError, match=message):
        subjects_of(PAIRS, chosen)
