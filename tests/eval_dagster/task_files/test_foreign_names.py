"""Files that import what only another package has: one sentence says so, and how they run there."""

import re
import sys
from pathlib import Path
from textwrap import dedent

import dagster as dg
import pytest
import typer
from commands import run_command

from eval_dagster.assets.definitions import build_definitions
from eval_dagster.cli.status import show_states
from eval_dagster.cli.task_page import show_task
from eval_dagster.errors import TaskDefinitionError
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.project import Project
from eval_dagster.task_files.loading import load_task

EVAL_FRAMEWORK = (
    "which only eval-framework has; run it there: eval-dagster environments add eval_framework, then task: eval_framework:mine.py:Mine"
)
LIGHTEVAL = "which only lighteval has; run it there: eval-dagster environments add lighteval, then task: lighteval:mine.py:Mine"
BASE = "from eval_framework.tasks.base import BaseTask\n"
CONFIG = "from lighteval.tasks.lighteval_task import LightevalTaskConfig\n"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            f"{BASE}from eval_framework.metrics.completion.math_minerva import MathMinerva\n",
            f"eval_framework.metrics.completion.math_minerva, {EVAL_FRAMEWORK}",
        ),
        ("import eval_framework.metrics.completion.f1 as f1\n", f"eval_framework.metrics.completion.f1, {EVAL_FRAMEWORK}"),
        (
            "from eval_framework.metrics.completion import drop_completion\n",
            f"eval_framework.metrics.completion.drop_completion, {EVAL_FRAMEWORK}",
        ),
        (
            "from eval_framework.metrics.llm.graders.language import Language\n",
            f"eval_framework.metrics.llm.graders.language, {EVAL_FRAMEWORK}",
        ),
        ("from eval_framework.tasks.task_style import MCStyle\n", f"eval_framework.tasks.task_style, {EVAL_FRAMEWORK}"),
        ("from eval_framework.tasks.utils import get_n_letters\n", f"eval_framework.tasks.utils, {EVAL_FRAMEWORK}"),
        ("from eval_framework.tasks.benchmarks.gsm8k import GSM8K\n", f"eval_framework.tasks.benchmarks.gsm8k, {EVAL_FRAMEWORK}"),
        (
            "from eval_framework.shared.types import BaseMetricContext, Completion\n",
            f"`BaseMetricContext` of `eval_framework.shared.types`, {EVAL_FRAMEWORK}",
        ),
        (
            "import eval_framework.tasks.base as base\n\n\nclass Mine(base.BaseTask):\n    STYLE = base.TaskStyle\n",
            f"`TaskStyle` of `eval_framework.tasks.base`, {EVAL_FRAMEWORK}",
        ),
        (
            "from template_formatting.formatter import Message, ConcatFormatter\n" + BASE,
            f"`ConcatFormatter` of `template_formatting.formatter`, {EVAL_FRAMEWORK}",
        ),
        (
            f"from llm_sandbox import SandboxSession\n{BASE}",
            EVAL_FRAMEWORK.replace("which only eval-framework has", "llm_sandbox, which comes with eval-framework"),
        ),
        (f"{CONFIG}TASKS_TABLE = []\n", f"lighteval.tasks.lighteval_task, {LIGHTEVAL}"),
        ("from lighteval.metrics.metrics import Metrics, SampleLevelMetric\n", f"lighteval.metrics.metrics, {LIGHTEVAL}"),
        ("from lighteval.tasks.templates.qa import get_qa_prompt_function\n", f"lighteval.tasks.templates.qa, {LIGHTEVAL}"),
        (f"from aenum import extend_enum\n{CONFIG}", LIGHTEVAL.replace("which only lighteval has", "aenum, which comes with lighteval")),
        (
            f"from inspect_ai.dataset import Sample\n{CONFIG}",
            LIGHTEVAL.replace("which only lighteval has", "inspect_ai.dataset, which comes with lighteval"),
        ),
    ],
)
def test_the_sentence(tmp_path: Path, code: str, said: str) -> None:
    (tmp_path / "mine.py").write_text(code)
    with pytest.raises(TaskDefinitionError, match=f"^{re.escape(f'mine.py imports {said}')}$"):
        load_task("mine.py:Mine", {}, tmp_path)


def test_of_a_file_in_a_folder_and_of_one_beside_it(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "helper.py").write_text("from lighteval.metrics.metrics import Metrics\n")
    (tmp_path / "tasks" / "mine.py").write_text("import helper\n")
    said = f"tasks/helper.py imports lighteval.metrics.metrics, {LIGHTEVAL}".replace("lighteval:mine", "lighteval:tasks/mine")
    with pytest.raises(TaskDefinitionError, match=f"^{re.escape(said)}$"):
        load_task("tasks/mine.py:Mine", {}, tmp_path)


def test_a_slip_in_a_known_name_is_a_slip(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from eval_framework.shared.types import Completoin\n")
    with pytest.raises(TaskDefinitionError, match=r"mine\.py, line 1: eval_dagster offers no 'Completoin' .*; did you mean 'Completion'\?"):
        load_task("mine.py:Mine", {}, tmp_path)


def test_a_file_of_this_project_lacks_a_package_and_no_peer_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from eval_dagster import BaseTask\nimport aenum\n")
    with pytest.raises(TaskDefinitionError, match=r"mine\.py, line 2, cannot be imported: there is no module 'aenum'") as raised:
        load_task("mine.py:Mine", {}, tmp_path)
    assert "lighteval" not in str(raised.value)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="this Python reads the file")
def test_the_syntax_of_a_later_python(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"{BASE}class Mine[Subject](BaseTask[Subject]):\n    NAME = 'mine'\n")
    said = r"Python 3\.12, and this is Python 3\.11; its environment has that: .* then task: eval_framework:mine\.py:Mine$"
    with pytest.raises(TaskDefinitionError, match=said):
        load_task("mine.py:Mine", {}, tmp_path)
    (tmp_path / "mine.py").write_text("class Mine[:\n")
    with pytest.raises(TaskDefinitionError) as raised:
        load_task("mine.py:Mine", {}, tmp_path)
    assert "3.12" not in str(raised.value)


FOREIGN = "from eval_framework.metrics.completion.math_minerva import MathMinerva\n"
SAID = f"mine.py imports eval_framework.metrics.completion.math_minerva, {EVAL_FRAMEWORK}"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with an eval that is sound, and one whose file is for eval-framework."""
    monkeypatch.setenv("EVAL_DAGSTER_CONFIG", str(tmp_path / "evals.yaml"))
    monkeypatch.setenv("EVAL_DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home" / "dagster"))
    monkeypatch.setenv("COLUMNS", "1000")
    (tmp_path / "mine.py").write_text(FOREIGN)
    config = """
        models: {four: {backend: scripted, default: "4"}}
        evals:
          sums: {task: arithmetic, limit: 2}
          foreign: {task: "mine.py:Mine"}
    """
    (tmp_path / "evals.yaml").write_text(dedent(config))
    return Project.open()


@pytest.mark.long
def test_the_page_and_the_states_say_it(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TaskDefinitionError, match=re.escape(SAID)):
        show_task("foreign", None, None)
    with pytest.raises(typer.Exit):
        show_states(suite=None, evals=[], models=[])
    printed = " ".join(capsys.readouterr().out.split())
    assert f"foreign|four: dataset broken: {SAID}" in printed
    assert "sums|four: the time is unknown" in printed


def test_the_code_location_of_dagster_has_the_other_evals(project: Project) -> None:
    definitions = build_definitions(project)
    dg.Definitions.validate_loadable(definitions)
    assert dg.AssetKey("task_metrics") in definitions.resolve_asset_graph().get_all_asset_keys()


@pytest.mark.long
def test_a_run_says_it_and_evaluates_the_others(project: Project) -> None:
    alone = run_command("run", "--eval", "foreign")
    assert (alone.returncode, alone.stderr.strip()) == (2, f"error: eval foreign: {SAID}")
    dry = run_command("run", "--dry-run")
    assert f"foreign|four: dataset broken: {SAID}" in dry.stdout + dry.stderr
    whole = run_command("run")
    assert whole.returncode == 1
    assert f"dataset_snapshot foreign: {SAID}" in whole.stderr
    assert [row["eval"] for row in read_rows(Project.open().lake, "select distinct eval from metrics")] == ["sums"]
