"""Task files that import the modules beside them."""

import re
import sys
from pathlib import Path

import pytest

from eval_dagster.errors import TaskDefinitionError
from eval_dagster.stages.scores import metric_versions
from eval_dagster.task_files.loading import load_task
from eval_dagster.versions.hashes import code_version

METRIC = """
from eval_dagster.metrics.base import CompletionMetric


class Shout(CompletionMetric):
    NAME = "shout"

    def calculate(self, response):
        return float(response.completion_text.upper() == WORD)


WORD = "{word}"
"""
TASK = """
from eval_dagster.records import ResponseType
from eval_dagster.tasks.base import BaseTask
{imports}


class Mine(BaseTask[str]):
    NAME = "Mine"
    DATASET_PATH = "own"
    SAMPLE_SPLIT = "test"
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS = [{metric}]
    SUBJECTS = ["all"]

    def _load_dataset(self, subject):
        return {{"test": [{{"question": "Say yes."}}]}}

    def _get_instruction_text(self, item):
        return item["question"]

    def _get_ground_truth(self, item):
        {truth}
"""


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def task_file(imports: str, metric: str = "Shout", truth: str = 'return "yes"') -> str:
    return TASK.format(imports=imports, metric=metric, truth=truth)


@pytest.mark.parametrize(
    ("imports", "metric"),
    [
        ("from mymetric import Shout", "Shout"),
        ("from mymetric import *", "Shout"),
        ("from .mymetric import Shout", "Shout"),
        ("import mymetric", "mymetric.Shout"),
        ("import mymetric as m", "m.Shout"),
        ("from parts.loud import Shout", "Shout"),
        ("from parts import loud", "loud.Shout"),
        ("import parts.loud", "parts.loud.Shout"),
        ("import parts.loud as loud", "loud.Shout"),
        ("from plain.loud import Shout", "Shout"),
        ("from again import Shout", "Shout"),
    ],
)
def test_a_neighbour_is_imported_as_a_script_would(tmp_path: Path, imports: str, metric: str) -> None:
    files = {"mymetric.py": METRIC.format(word="YES"), "parts/__init__.py": "", "again.py": "from mymetric import Shout\n"}
    files |= {"parts/loud.py": METRIC.format(word="YES"), "plain/loud.py": "from mymetric import Shout\n"}
    write(tmp_path, {**files, "mine.py": task_file(imports, metric)})
    path = list(sys.path)
    task = load_task("mine.py:Mine", {}, tmp_path)
    assert [each.NAME for each in task.METRICS] == ["shout"]
    assert sys.path == path
    assert not {"mymetric", "parts", "plain", "again"} & sys.modules.keys()


def test_neighbours_of_one_name_in_two_folders_do_not_mix(tmp_path: Path) -> None:
    lazy = "from mymetric import WORD; return WORD"
    for word in ("YES", "NO"):
        write(tmp_path / word, {"mymetric.py": METRIC.format(word=word), "mine.py": task_file("from mymetric import Shout", truth=lazy)})
    tasks = {word: load_task(f"{word}/mine.py:Mine", {}, tmp_path) for word in ("YES", "NO")}
    assert {word: task()._get_ground_truth({}) for word, task in tasks.items()} == {"YES": "YES", "NO": "NO"}
    assert tasks["YES"].METRICS[0].__module__ != tasks["NO"].METRICS[0].__module__


@pytest.mark.parametrize("where", ["the class", "a function"])
def test_the_code_of_a_neighbour_counts(tmp_path: Path, where: str) -> None:
    parts = {
        "inner.py": "WORD = '1'\n",
        "mymetric.py": METRIC.format(word="YES") + "import inner\nWORD += inner.WORD\n",
        "unrelated.py": "X = 1\n",
    }
    lazy = task_file("from eval_dagster.metrics.completion import ExactMatch", "ExactMatch", "import mymetric; return mymetric.WORD")
    write(tmp_path, {**parts, "mine.py": task_file("from mymetric import Shout") if where == "the class" else lazy})

    def versions() -> list[str]:
        task = load_task("mine.py:Mine", {}, tmp_path)
        return [code_version(task), *([code_version(task.METRICS[0])] if where == "the class" else [])]

    first = versions()
    assert versions() == first
    write(tmp_path, {"unrelated.py": "X = 2\n"})
    assert versions() == first
    for change in ({"mymetric.py": METRIC.format(word="SURE") + "import inner\nWORD += inner.WORD\n"}, {"inner.py": "WORD = '2'\n"}):
        before = versions()
        write(tmp_path, change)
        assert not set(versions()) & set(before)


def test_a_version_does_not_depend_on_what_else_python_can_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        tmp_path,
        {
            "shared_words.py": "WORD = 'YES'\n",
            "quizzes/mymetric.py": METRIC.format(word="YES") + "import shared_words\nWORD += shared_words.WORD\n",
        },
    )
    write(tmp_path, {"quizzes/mine.py": task_file("from mymetric import Shout")})
    alone = code_version(load_task("quizzes/mine.py:Mine", {}, tmp_path))
    for folder in ("", "quizzes"):  # as Dagster's code server and `python -m` put them there
        monkeypatch.syspath_prepend(str(tmp_path / folder))
        assert code_version(load_task("quizzes/mine.py:Mine", {}, tmp_path)) == alone
    write(tmp_path, {"shared_words.py": "WORD = 'NO'\n"})
    assert code_version(load_task("quizzes/mine.py:Mine", {}, tmp_path)) != alone


def test_a_neighbour_is_read_anew_with_each_load(tmp_path: Path) -> None:
    write(tmp_path, {"mymetric.py": METRIC.format(word="YES"), "mine.py": task_file("import mymetric", "mymetric.Shout")})
    load_task("mine.py:Mine", {}, tmp_path)
    write(tmp_path, {"mymetric.py": METRIC.format(word="SIR")})
    task = load_task("mine.py:Mine", {}, tmp_path)
    assert sys.modules[task.METRICS[0].__module__].WORD == "SIR"


@pytest.mark.parametrize(
    ("imports", "beside", "seen"),
    [
        ("from statistics import my_mean", "quizzes/statistics.py", r"ImportError: cannot import name 'my_mean' from 'statistics' \(.*\)"),
        ("import types; types.Mine", "quizzes/types.py", r"AttributeError: module 'types' has no attribute 'Mine'"),
        ("import code.loud", "quizzes/code/__init__.py", r"ModuleNotFoundError: No module named 'code\.loud'; 'code' is not a package"),
        ("from calendar import holidays", "calendar.py", r"ImportError: cannot import name 'holidays' from 'calendar' \(.*\)"),
        ("import inner", "quizzes/queue.py", r"ImportError: cannot import name 'mine' .*inner\.py, line 1\)"),
    ],
)
def test_a_neighbour_with_the_name_of_a_standard_module_is_said_to_be_unused(tmp_path: Path, imports: str, beside: str, seen: str) -> None:
    inner = {"quizzes/inner.py": "from queue import mine\n"}
    write(tmp_path, {**inner, beside: "my_mean = Mine = mine = holidays = 1\n", "quizzes/mine.py": task_file(imports)})
    unused = re.escape(str(tmp_path / beside))
    with pytest.raises(TaskDefinitionError, match=f"{seen}; {unused} is not used: it has the name of a standard module; rename it$"):
        load_task("quizzes/mine.py:Mine", {}, tmp_path)
    (tmp_path / beside).unlink()
    with pytest.raises(TaskDefinitionError) as raised:
        load_task("quizzes/mine.py:Mine", {}, tmp_path)
    assert "is not used" not in str(raised.value)


def test_a_load_that_fails_changes_nothing_of_what_is_loaded(tmp_path: Path) -> None:
    write(tmp_path, {"mymetric.py": METRIC.format(word="YES"), "mine.py": task_file("from mymetric import Shout")})
    task = load_task("mine.py:Mine", {}, tmp_path)
    write(tmp_path, {"other.py": "import mymetric\nimport lost\n"})
    with pytest.raises(TaskDefinitionError, match="no module 'lost'"):
        load_task("other.py:Mine", {}, tmp_path)
    assert sys.modules[task.METRICS[0].__module__].Shout is task.METRICS[0]
    assert sys.modules[task.__module__].Mine is task


def test_folders_of_rows_hide_no_installed_package_and_no_file_hides_the_standard_library(tmp_path: Path) -> None:
    write(tmp_path, {"datasets/quiz/test.jsonl": "{}\n", "json.py": "raise RuntimeError\n", "eval_dagster.py": "raise RuntimeError\n"})
    imports = (
        "from eval_dagster.metrics.completion import ExactMatch\nimport json\nfrom datasets import Dataset\njson.dumps, Dataset.from_list"
    )
    write(tmp_path, {"mine.py": task_file(imports, "ExactMatch")})
    assert load_task("mine.py:Mine", {}, tmp_path).NAME == "Mine"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"mine.py": "import os\nfrom mymetrc import Shout\n"},
            r"mine\.py, line 2, cannot be imported: there is no module 'mymetrc': looked for mymetrc\.py and mymetrc/ in (\S+)/quizzes and "
            r"\1, and for an installed package; did you mean 'mymetric'\?$",
        ),
        (
            {"mine.py": "from parts.lost import Shout\n", "parts/__init__.py": ""},
            r"there is no module 'parts\.lost': looked for parts/lost\.py and parts/lost/ in ",
        ),
        (
            {"mine.py": "\nimport inner\n", "inner.py": "import os\n\nimport lost\n"},
            r"mine\.py, line 2, cannot be imported: there is no module 'lost': .* \(\S+/quizzes/inner\.py, line 3\)$",
        ),
        (
            {"mine.py": "import importlib\nimportlib.import_module('mymetric')\n"},
            r"mine\.py, line 2, cannot be imported: .*'mymetric': .* importlib finds installed modules alone; write `import mymetric`$",
        ),
        (
            {"mine.py": "from mymetric import Shuot\n"},
            r"mine\.py, line 1, cannot be imported: ImportError: cannot import name 'Shuot' from 'mymetric' \(\S+/mymetric\.py\)$",
        ),
        (
            {"mine.py": "\n\nimport inner\n", "inner.py": "X = 1\nY = Z\n"},
            r"mine\.py, line 3, cannot be imported: NameError: name 'Z' is not defined \(\S+/inner\.py, line 2\)$",
        ),
        (
            {"mine.py": "import inner\n", "inner.py": "X = 1\n\nclass (:\n"},
            r"mine\.py, line 1, cannot be imported: SyntaxError: .*\(\S+/inner\.py, line 3\)$",
        ),
    ],
)
def test_what_cannot_be_imported_is_named_with_its_place(tmp_path: Path, files: dict[str, str], message: str) -> None:
    write(tmp_path / "quizzes", {"mymetric.py": METRIC.format(word="YES"), **files})
    with pytest.raises(TaskDefinitionError, match=message) as raised:
        load_task("quizzes/mine.py:Mine", {}, tmp_path)
    assert "user_files_" not in str(raised.value)


FACTORY = """
def make(base, metrics, instruction):
    class Made(base):
        METRICS = metrics

        def _get_instruction_text(self, item):
            return instruction

    return Made


def within(base, limit):
    class Within(base):
        NAME = "within"

        def calculate(self, response):
            return float(len(response.completion_text) <= limit)

    return Within
"""


@pytest.mark.parametrize("where", ["in the file", "beside it"])
@pytest.mark.parametrize(("old", "new", "moved"), [("5", "50", "metric"), ("Answer. ", "REPLY NOW. ", "task")])
def test_what_a_factory_is_given_counts(where: str, old: str, new: str, moved: str, tmp_path: Path) -> None:
    imports = FACTORY if where == "in the file" else "from factory import make, within"
    text = task_file(f"from eval_dagster.metrics.base import CompletionMetric\n{imports}", "") + (
        '\n\nMade = make(Mine, [within(CompletionMetric, 5)], "Answer. ")\n'
    )
    versions = []
    for name, source in (("a", text), ("b", text.replace(old, new))):
        folder = write(tmp_path / name, {"factory.py": FACTORY, "task.py": source})
        task = load_task("task.py:Made", {}, folder)
        assert task(num_fewshot=0)._get_instruction_text({}) == ("REPLY NOW. " if source != text and moved == "task" else "Answer. ")
        versions.append((code_version(task), metric_versions(task)))
    assert versions[0][0] != versions[1][0]
    if moved == "metric":
        assert versions[0][1] != versions[1][1]
