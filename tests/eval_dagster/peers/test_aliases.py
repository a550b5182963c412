import importlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from eval_dagster.config.models import GenerationConfig
from eval_dagster.errors import TaskDefinitionError
from eval_dagster.peers.aliases import ALIASES, aliases
from eval_dagster.peers.eval_framework.task import EvalFrameworkTask
from eval_dagster.prompts.formatters import ConcatFormatter
from eval_dagster.prompts.rendering import Rendering, render_sample
from eval_dagster.records import GenerationSettings, ResponseType, TaskSample
from eval_dagster.task_files.loading import load_task
from eval_dagster.tasks.base import BaseTask
from eval_dagster.tasks.doc import Doc
from eval_dagster.tasks.samples import build_samples
from eval_dagster.versions.source_files import _NeighbourFinder

TOP_LEVEL = {"eval_framework", "lighteval", "template_formatting"}


def stood_in_for() -> set[str]:
    return {name for name in sys.modules if name.partition(".")[0] in TOP_LEVEL}


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """No test leaves a trace in what can be imported."""
    finders, modules = set(map(type, sys.meta_path)), stood_in_for()
    yield
    assert set(map(type, sys.meta_path)) - finders <= {_NeighbourFinder}, "of task files' neighbours alone"
    assert stood_in_for() == modules == set()


@pytest.mark.parametrize("module", ALIASES)
def test_every_name_is_there(module: str) -> None:
    with aliases():
        found = importlib.import_module(module)
        for name, target in ALIASES[module].items():
            here, _, attribute = target.partition(":")
            assert getattr(found, name) is getattr(importlib.import_module(here), attribute)


def test_all_forms_of_import() -> None:
    with aliases():
        names: dict[str, object] = {}
        code = (
            "import eval_framework.tasks.base\n"
            "import eval_framework.tasks.base as base\n"
            "from eval_framework.tasks import base as also\n"
            "from eval_framework.models.sample import Sample, ResponseType as Kind\n"
            "from lighteval.tasks.requests import *\n"
            "whole = eval_framework.tasks.base.BaseTask\n"
        )
        exec(code, names)
    assert names["base"] is names["also"]
    assert (names["whole"], names["Sample"], names["Kind"], names["Doc"]) == (EvalFrameworkTask, TaskSample, ResponseType, Doc)


def test_outside_nothing_is_stood_in_for() -> None:
    for module in ("eval_framework.tasks.base", "lighteval", "template_formatting.formatter"):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(module)


def test_what_was_there_is_there_again_whatever_happens() -> None:
    def fail() -> None:
        with aliases():
            importlib.import_module("eval_framework.tasks.base")
            sys.modules["lighteval.of_the_file"] = sys
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()


def test_inside_itself_it_changes_nothing() -> None:
    with aliases():
        outer = importlib.import_module("lighteval.tasks.requests")
        with aliases():
            assert importlib.import_module("lighteval.tasks.requests") is outer
        assert sys.modules["lighteval.tasks.requests"] is outer
        assert importlib.import_module("eval_framework.shared.types")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "from eval_framework.models.sample import Sampel",
            r"^eval_dagster offers no 'Sampel' of eval_framework\.models\.sample; did you mean 'Sample'\?; it has: ResponseType, Sample$",
        ),
        ("from eval_framework.tasks import bse", r"offers no 'bse' of eval_framework\.tasks; did you mean 'base'\?; it has: base$"),
        (
            "import eval_framework.taks.base",
            r"offers no 'taks' of eval_framework; did you mean 'tasks'\?; it has: metrics, models, shared, tasks$",
        ),
        ("import lighteval.tasks.requests.more", r"offers no 'more' of lighteval\.tasks\.requests; it has: Doc, SamplingMethod$"),
        ("import lighteval.tasks.requests as it; it.Dok", r"offers no 'Dok' of lighteval\.tasks\.requests; did you mean 'Doc'\?"),
    ],
)
def test_an_unknown_name_is_told_with_those_there_are(code: str, message: str) -> None:
    with aliases(), pytest.raises(TaskDefinitionError, match=message):
        exec(code, {})


def test_a_file_may_do_without_a_name() -> None:
    with aliases():
        names: dict[str, object] = {}
        exec("try:\n    from lighteval.metrics.metrics import Metrics\nexcept ImportError:\n    Metrics = None\n", names)
        assert names["Metrics"] is None
        assert not hasattr(importlib.import_module("lighteval"), "__path_of_nobody__")


def test_an_installed_package_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "installed/lighteval"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("REAL = True\n")
    (installed / "tasks.py").write_text("class Task:\n    pass\n")
    (tmp_path / "quiz.py").write_text("from lighteval.tasks import Task\nclass Quiz(Task):\n    pass\n")
    (tmp_path / "other.py").write_text("import lighteval.tasks.requests\n")
    monkeypatch.syspath_prepend(installed.parent)
    with aliases():
        assert importlib.import_module("lighteval").REAL
        assert importlib.import_module("eval_framework.tasks.base").BaseTask is EvalFrameworkTask
    with pytest.raises(
        TaskDefinitionError,
        match=r"Quiz in .*quiz\.py is no task: .* installed package lighteval, which .* or write task: lighteval:quiz\.py:Quiz",
    ):
        load_task("quiz.py:Quiz", {}, tmp_path)
    with pytest.raises(
        TaskDefinitionError, match=r"other\.py, line 1, cannot be imported: there is no module 'lighteval\.tasks\.requests'"
    ):
        load_task("other.py:Quiz", {}, tmp_path)
    for name in stood_in_for():
        del sys.modules[name]


def test_a_folder_of_that_name_is_no_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lighteval").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    folder = importlib.import_module("lighteval")
    with aliases():
        assert importlib.import_module("lighteval.tasks.requests").Doc is Doc
    assert sys.modules.pop("lighteval") is folder


def test_threads_wait_for_each_other_and_see_their_own_alone() -> None:
    seen: list[object] = []
    inside, done = threading.Event(), threading.Event()

    def first() -> None:
        with aliases():
            inside.set()
            done.wait(10)
            seen.append(importlib.import_module("eval_framework.tasks.base").BaseTask)

    def second() -> None:
        with aliases():
            seen.append(importlib.import_module("lighteval.tasks.requests").Doc)

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert inside.wait(10)
    threads[1].start()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("template_formatting.formatter")
    done.set()
    for thread in threads:
        thread.join(10)
    assert seen == [EvalFrameworkTask, Doc]


def test_a_task_file_of_another_framework(tmp_path: Path) -> None:
    (tmp_path / "quiz.py").write_text(
        "from typing import Any\n"
        "from eval_framework.metrics.base import BaseMetric, MetricResult\n"
        "from eval_framework.shared.types import Completion\n"
        "from eval_framework.tasks.base import NO_SUBJECT, BaseTask, Language, ResponseType\n"
        "class Shouted(BaseMetric[Completion]):\n"
        "    NAME = 'Shouted'\n"
        "    def calculate(self, response: Completion) -> list[MetricResult]:\n"
        "        return [MetricResult(metric_name=self.NAME, value=1.0, higher_is_better=True)]\n"
        "class Quiz(BaseTask[str]):\n"
        "    NAME = 'Quiz'\n"
        "    DATASET_PATH = 'quiz'\n"
        "    HF_REVISION = '" + "0" * 40 + "'\n"
        "    SAMPLE_SPLIT = 'test'\n"
        "    FEWSHOT_SPLIT = 'train'\n"
        "    RESPONSE_TYPE = ResponseType.COMPLETION\n"
        "    METRICS = [Shouted]\n"
        "    SUBJECTS = [NO_SUBJECT]\n"
        "    LANGUAGE = Language.ENG\n"
        "    PERTURBATION_UNMODIFIABLE_WORDS = ['Question']\n"
        "    def __init__(self, num_fewshot: int = 0) -> None:\n"
        "        super().__init__(num_fewshot)\n"
        "        self.stop_sequences = None\n"
        "        self.max_tokens = None\n"
        "    def _get_instruction_text(self, item: dict[str, Any]) -> str:\n"
        "        return item['question']\n"
        "    def _get_ground_truth(self, item: dict[str, Any]) -> str | None:\n"
        "        return item['answer']\n"
    )
    task = load_task("quiz.py:Quiz", {}, tmp_path)
    assert (task.DATASET_REVISION, task.RESPONSE_TYPE, task.SUBJECTS) == ("0" * 40, ResponseType.COMPLETION, ["no_subject"])
    made = task(num_fewshot=2)
    assert (made.num_fewshot, made.stop_sequences, made.max_tokens) == (2, None, None)
    (sample,) = build_samples({"test": [{"question": "Who?", "answer": "I"}]}, "no_subject")
    for own in (None, 4096):
        generation = GenerationConfig(max_tokens=own)
        (prompt,) = render_sample(Rendering(task=task(), formatter=ConcatFormatter(), generation=generation), sample, None)
        assert prompt.request.generation == GenerationSettings(max_tokens=own)
    assert issubclass(task, BaseTask)
