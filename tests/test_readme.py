"""What the README says, done."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from eval_dagster.config.loading import load_config
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages.results import STAGES, StageResult
from eval_dagster.task_defs import TASKS
from eval_dagster.task_files.loading import load_task

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def _block(language: str, word: str) -> str:
    return next(text for text in re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL) if word in text)


def _commands() -> list[list[str]]:
    lines = re.findall(r"^    (eval-dagster .*)$", README, re.MULTILINE)
    return [shlex.split(line.split("  #")[0]) for line in lines]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The README's benchmark and suite on scripted models, named as the README's commands name them."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "planets.py").write_text(_block("python", "class Planets"))
    evals = yaml.safe_load(_block("yaml", "planets.py:Planets"))["evals"]
    suites = yaml.safe_load(_block("yaml", "cron:"))["suites"]
    suites["nightly"]["models"] = ["smollm2-135m"]
    config = {
        "models": {
            "smollm2-135m": {"backend": "scripted", "default": " 7"},
            "smollm2-135m-bf16": {"backend": "scripted", "default": " Mars"},
        },
        "evals": {"capitals": {"task": "capitals", "limit": 2}, "arithmetic": {"task": "arithmetic", "limit": 2}, **evals},
        "suites": suites,
    }
    (folder / "evals.yaml").write_text(yaml.safe_dump(config))
    return folder


def _run(folder: Path, arguments: list[str]) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if name not in ("DAGSTER_HOME", "EVAL_DAGSTER_HOME")}
    environment |= {"EVAL_DAGSTER_CONFIG": str(folder / "evals.yaml"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "eval_dagster.cli.main", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_every_command_works(workplace: Path) -> None:
    commands = _commands()
    assert len(commands) > 10
    for command in commands:
        done = _run(workplace, command[1:])
        assert done.returncode == 0, f"{command}: {done.stderr}"
        assert done.stdout.strip(), command


def test_the_benchmark_of_the_readme_is_scored(workplace: Path) -> None:
    done = _run(workplace, ["run", "--eval", "planets"])
    assert done.returncode == 0, done.stderr
    answer = _run(workplace, ["sql", "select model, n from leaderboard where eval = 'planets' order by model", "--format", "csv"])
    assert answer.stdout.split() == ["model,n", "smollm2-135m,56", "smollm2-135m-bf16,56"]
    assert len(_block("python", "class Planets").splitlines()) <= 40


def test_the_benchmark_of_the_readme_joins_the_registry(workplace: Path, tmp_path: Path) -> None:
    """One line: its name and its class."""
    planets = load_task("planets.py:Planets", {}, workplace)
    (tmp_path / "evals.yaml").write_text("models: {guess: {backend: scripted}}\nevals: {nearer: {task: planets}}\n")
    project = Project.open(tasks={**TASKS, "planets": planets}, config_path=tmp_path / "evals.yaml")
    outcomes = list(evaluate(project, [("nearer", "guess")], stages=set(STAGES), run_id="test", reporter=SilentReporter()))
    assert [type(outcome) for outcome in outcomes] == [StageResult] * len(STAGES)


def test_every_benchmark_is_named() -> None:
    section = README.partition("\n## Benchmarks\n")[2].partition("\n\nA name")[0]
    named = re.findall(r"`(\w+)`(?: \(([^)]*)\))?", section)
    assert {name + ending for name, endings in named for ending in ("", *re.findall(r"`(\w+)`", endings))} == set(TASKS)


def test_the_sources_of_the_readme_are_valid(tmp_path: Path) -> None:
    models = yaml.safe_load(_block("yaml", "mine-bf16:\n"))
    (tmp_path / "evals.yaml").write_text(yaml.safe_dump({**models, "evals": {"capitals": {"task": "capitals"}}}))
    assert load_config(tmp_path / "evals.yaml", tasks=TASKS).models["mine-bf16"].prompt_format == "chat"
    load_config(ROOT / "evals.yaml", tasks=TASKS)


def test_every_picture_and_link_is_there() -> None:
    for target in re.findall(r"\]\((?!https://)([^)]+)\)", README):
        assert (ROOT / target).exists(), target
