"""The README is one page, and does what it promises."""

import re
from pathlib import Path

import pytest
import yaml
from documents import DOCS, ROOT, Reader, block_of, blocks

from eval_dagster.config.loading import load_config
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, StageResult
from eval_dagster.task_defs import TASKS
from eval_dagster.task_files.loading import load_task

PAGE = ROOT / "README.md"
README = PAGE.read_text()


def test_the_readme_is_one_page() -> None:
    assert len(README.split()) < 700


@pytest.mark.long
def test_the_benchmark_of_the_readme_is_scored(tmp_path: Path) -> None:
    """About ten lines: the file, one line of evals.yaml, and every command of the page."""
    evals = next(yaml.safe_load(block.text) for block in blocks(PAGE) if block.language == "yaml")
    models = {"guess": {"backend": "scripted", "default": " I do not know"}}
    (tmp_path / "evals.yaml").write_text(yaml.safe_dump({"models": models, **evals}))
    for block in blocks(PAGE):
        if block.file is not None:
            (tmp_path / block.file).parent.mkdir(exist_ok=True)
            (tmp_path / block.file).write_text(block.text)
    reader = Reader(tmp_path)
    reader.run("eval-dagster tasks quiz", "the test")
    assert "the gold answer scores best" in reader.printed
    reader.run("eval-dagster run", "the test")
    assert reader.do(PAGE) > 5
    reader.run("eval-dagster sql \"select model, n, value from leaderboard where eval = 'quiz'\" --format csv", "the test")
    # It knows nothing: half of the answers would be right by chance, wherever the correct choice stands.
    assert reader.printed.split() == ["model,n,value", "guess,2,0.5"]
    assert len(block_of(PAGE, "quiz.py").splitlines()) <= 10


@pytest.mark.long
def test_the_commands_of_a_new_project_end_with_a_leaderboard(tmp_path: Path) -> None:
    assert "eval-dagster init && eval-dagster run" in README
    reader = Reader(tmp_path)
    for arguments in (["init"], ["run"]):
        done = reader.command(*arguments)
        assert done.returncode == 0, done.stderr
    assert "Leaderboard" in done.stdout


@pytest.mark.long
def test_a_benchmark_joins_the_registry(tmp_path: Path) -> None:
    """One line: its name and its class."""
    (tmp_path / "planets.py").write_text(block_of(DOCS / "tutorial.md", "planets.py"))
    planets = load_task("planets.py:Planets", {}, tmp_path)
    (tmp_path / "evals.yaml").write_text("models: {guess: {backend: scripted}}\nevals: {nearer: {task: planets}}\n")
    project = Project.open(tasks={**TASKS, "planets": planets}, config_path=tmp_path / "evals.yaml")
    outcomes = list(evaluate(project, [("nearer", "guess")], stages=set(STAGES), run_id="test", reporter=SilentReporter()))
    assert [type(outcome) for outcome in outcomes] == [StageResult] * len(STAGES)


def test_the_configuration_of_the_checkout_is_valid() -> None:
    config = load_config(ROOT / "evals.yaml")
    assert config.suites["demo"].evals
    assert {settings.task for settings in config.evals.values()} <= set(TASKS)


def test_the_layout_names_every_package() -> None:
    layout = README.partition("\n## Layout\n")[2].partition("\n## ")[0]
    named = {
        name.removeprefix("eval_dagster/")
        for name in re.findall(r"^\| (.*?) \|", layout, re.MULTILINE)
        for name in re.findall(r"`([^`]+)`", name)
    }
    packages = {path.parent.name for path in (ROOT / "eval_dagster").glob("*/__init__.py")} | {"sql"}
    assert packages <= named


def test_the_numbers_are_those_of_the_pages() -> None:
    months = re.search(r"^\| `last_passed` \| .* \| ([\d.]+)% \|$", (DOCS / "explanation" / "gate.md").read_text(), re.MULTILINE)
    assert months
    assert f"{months[1]} % of the months" in README
    times = [
        float(row)
        for row in re.findall(r"^\| [^|]* \| [\d.]+ s \| [\d.]+ s \| ([\d.]+) \|", (DOCS / "benchmarks.md").read_text(), re.MULTILINE)
    ]
    assert len(times) == 5
    assert f"{min(times)} to {max(times)} times as fast" in README
