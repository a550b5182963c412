"""Evals of a registry whose package lives in an environment of its own: configuration, stages, and the command that makes one."""

import os
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from eval_dagster.cli.registries import list_environments
from eval_dagster.errors import ConfigError, RequirementError, UsageError
from eval_dagster.peers.processes.environments import interpreter, make_environment
from eval_dagster.peers.processes.registry import ProcessRegistry
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, StageFailure, StageResult
from tests.eval_dagster.peers.conftest import QuizEnvironment
from tests.eval_dagster.peers.quiz_registry import QuizRegistry

CONFIG = """
    environments:
      quiz: quiz-environment/bin/python
    models:
      two: {backend: scripted, default: " 2"}
      crashing: {backend: scripted, answers: {"0 + 1": "1", "1 + 1": "crash"}, default: " 3"}
    evals:
      sums: {task: "quiz:sums"}
      many: {task: "quiz:many", limit: 300}
    sandbox: {allow_code_execution: true}
"""


def project(folder: Path, config: str = CONFIG) -> Project:
    (folder / "evals.yaml").write_text(textwrap.dedent(config))
    return Project.open(config_path=folder / "evals.yaml", home=folder / "home")


def run(opened: Project, *partitions: tuple[str, str]) -> dict[tuple[str, str], StageResult]:
    outcomes = list(evaluate(opened, list(partitions), stages=set(STAGES), run_id="test", reporter=SilentReporter()))
    assert not [each for each in outcomes if isinstance(each, StageFailure)]
    return {(each.stage, each.eval_name): each for each in outcomes if isinstance(each, StageResult)}


def scores(opened: Project, eval_name: str) -> dict[str, float | None]:
    from eval_dagster.lake.format.parquet_files import read_rows
    from eval_dagster.stages.partition import Partition

    current = Partition(project=opened, eval_name=eval_name, model="two", run_id="look").current("task_metrics")
    assert current is not None
    return {row["metric"]: row["value"] for row in read_rows(current.path)}


@pytest.mark.long
def test_an_eval_runs_through_the_environment_and_is_cached(quiz: QuizEnvironment, tmp_path: Path) -> None:
    opened = project(tmp_path)
    opened.check(["sums", "many"], ["two"])
    first = run(opened, ("sums", "two"), ("many", "two"))
    assert not any(each.cached for each in first.values())
    assert scores(opened, "sums") == {"right": pytest.approx(1 / 3), "longest": 1.0}
    again = run(project(tmp_path), ("sums", "two"), ("many", "two"))
    assert all(each.cached for each in again.values())
    quiz.write("2")
    changed = run(project(tmp_path), ("sums", "two"))
    assert not changed["sample_scores", "sums"].cached
    assert changed["model_outputs", "sums"].cached  # the prompts are the same


@pytest.mark.long
def test_scores_that_a_dead_process_left_out_are_computed_by_the_next_run(quiz: QuizEnvironment, tmp_path: Path) -> None:
    first = run(project(tmp_path), ("sums", "crashing"))["sample_scores", "sums"]
    again = run(project(tmp_path), ("sums", "crashing"))["sample_scores", "sums"]
    assert first.warnings
    assert "status 7" in str(first.warnings)
    assert not again.cached


@pytest.mark.parametrize(
    ("environments", "problem"),
    [
        ("{quizz: quiz-environment/bin/python}", "found the name 'quizz'; expected that of a registry: .* did you mean 'quiz'"),
        ("{quiz: 3}", "found 3; expected text"),
    ],
)
def test_mistakes_under_environments_are_reported_with_their_line(
    quiz: QuizEnvironment, tmp_path: Path, environments: str, problem: str
) -> None:
    with pytest.raises(ConfigError, match=rf"evals.yaml:\d+: environments.*: .*{problem}"):
        project(tmp_path, f"environments: {environments}\nmodels: {{}}\nevals: {{}}\n")


def test_an_eval_without_its_environment_says_what_to_do(quiz: QuizEnvironment, tmp_path: Path) -> None:
    opened = project(tmp_path, CONFIG.replace("quiz: quiz-environment/bin/python", "{}"))
    with pytest.raises(UsageError, match="`eval-dagster environments add quiz` makes one"):
        opened.check(["sums"], ["two"])


def test_environments_are_listed_with_their_state(
    quiz: QuizEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVAL_DAGSTER_CONFIG", raising=False)

    class Context:
        invoked_subcommand = None

    list_environments(Context())  # type: ignore[arg-type]
    printed = " ".join(capsys.readouterr().out.split())
    assert "quiz" in printed
    assert "ready" in printed
    assert "lighteval" in printed


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A package that pip installs without an index."""
    file = tmp_path / "quizbook-1-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("quizbook/__init__.py", "VERSION = '1'\nQUIZZES = {'sums': [('0 + 1', '1')]}\n")
        archive.writestr("quizbook-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: quizbook\nVersion: 1\n")
        archive.writestr("quizbook-1.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("quizbook-1.dist-info/RECORD", "")
    return file


@pytest.mark.long
def test_an_environment_is_made_with_the_package_and_git_ignores_it(quiz: QuizEnvironment, tmp_path: Path, wheel: Path) -> None:
    class OfWheel(QuizRegistry):
        DISTRIBUTION = str(wheel)

    name, made = make_environment(OfWheel, tmp_path, None)
    assert (name, made) == ("quiz", Path(".environments/quiz/bin/python"))
    assert (tmp_path / ".environments" / ".gitignore").read_text() == "*\n"
    assert QuizRegistry().within(tmp_path / made).benchmark("sums", tmp_path).description == "A quiz."


@pytest.mark.long
def test_what_stops_an_environment_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Newer(QuizRegistry):
        PYTHON = "3.99"

    class Absent(QuizRegistry):
        DISTRIBUTION = str(tmp_path / "absent-1-py3-none-any.whl")

    with pytest.raises(RequirementError, match=r"needs Python 3\.99 or newer, .* on the PATH, .* --python path/to/python3\.99"):
        make_environment(Newer, tmp_path, None)
    with pytest.raises(RequirementError, match="does not start"):
        make_environment(Newer, tmp_path, tmp_path / "no-python")
    with pytest.raises(RequirementError, match="ended with status 1"):
        make_environment(Absent, tmp_path, None)


def test_an_interpreter_that_is_new_enough_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Newer(QuizRegistry):
        PYTHON = "3.98"

    def write(folder: Path, name: str, version: str) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / name
        file.write_text(f"#!/bin/sh\necho {version}\n")
        file.chmod(0o755)
        return file

    pyenv = write(tmp_path / "pyenv" / "versions" / "3.98.1" / "bin", "python3", "3.98.1")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    write(tmp_path / "path", "python3.12", "3.12.1")  # older
    assert interpreter(Newer) == str(pyenv)
    on_path = write(tmp_path / "path", "python3.13", "3.99.0")
    assert interpreter(Newer) == str(on_path)
    assert interpreter(QuizRegistry) == sys.executable


def test_a_task_names_the_environment_of_a_release(quiz: QuizEnvironment, tmp_path: Path) -> None:
    config = """
        environments: {"quiz==1": quiz-environment/bin/python}
        models: {two: {backend: scripted, default: " 2"}}
        evals:
          sums: {task: "quiz==1:sums"}
          other: {task: "quiz==2:sums"}
    """
    opened = project(tmp_path, config)
    opened.check(["sums"], ["two"])
    with pytest.raises(UsageError, match=r"names no environment 'quiz==2'.*environments add quiz==2` makes it"):
        opened.check(["other"], ["two"])


def test_a_metric_that_runs_programs_needs_permission(quiz: QuizEnvironment, tmp_path: Path) -> None:
    opened = project(tmp_path)
    assert [metric.NAME for metric in opened.task("many").METRICS if metric.EXECUTES_CODE] == ["right"]
    assert not any(metric.EXECUTES_CODE for metric in opened.task("sums").METRICS)


def test_the_own_interpreter_serves_where_the_package_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class OfOurs(ProcessRegistry):
        NAME = "ours"
        WORKER = "tests.eval_dagster.peers.quiz_worker"
        DISTRIBUTION = "pytest"
        PACKAGES = ("pytest",)

    assert OfOurs().environment().release("pytest") is not None or os.name == "nt"
