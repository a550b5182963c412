"""Every benchmark under every formatter: its prompts are those of its golden file, and the formatting checks find nothing.

A golden file is a text, so that a change of what a model is asked is reviewed as a diff. `make goldens` writes the files anew.
"""

import os
from pathlib import Path

import pytest
from rendered_tasks import FIXTURES, FORMATS, as_text, file_stem, fixture_of, needs_fixture, rendered
from transformers import PreTrainedTokenizerFast

from eval_dagster.models.transformers.handle import TransformersHandle
from eval_dagster.project import Project
from eval_dagster.prompts.checks import formatting_problems
from eval_dagster.sandbox import SandboxPolicy, sandbox_policy
from eval_dagster.task_defs import TASKS

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / "golden"
PROJECT = Project.open(config_path=Path(os.environ.get("EVAL_DAGSTER_CONFIG", ROOT / "evals.yaml")))
NAMES = PROJECT.task_names()
TASK_FILE = """
from eval_dagster.tasks.base import BaseTask
from eval_dagster.task_defs.arithmetic import Arithmetic
from eval_dagster.task_defs.gsm8k import GSM8K

class Sums(Arithmetic):
    SUBJECTS = ("addition",)

class Words(GSM8K):
    NAME = "Words"
"""


@pytest.mark.parametrize("name", NAMES)
def test_the_prompts_are_the_golden_ones(name: str, chat_handle: TransformersHandle, request: pytest.FixtureRequest) -> None:
    text = "\n".join(map(as_text, rendered(PROJECT, name, chat_handle)))
    file = GOLDEN / f"{file_stem(name)}.txt"
    if request.config.getoption("--update-goldens"):
        file.write_bytes(text.encode())
    assert file.is_file(), f"the task {name} has no golden file {file}; `make goldens` writes it"
    assert text == file.read_bytes().decode(), f"the prompts of {name} changed; if they should, run `make goldens` and review the diff"


SLOW = ("humaneval_pass_at_10", "aime24_avg_at_16", "aime25_avg_at_16", "aime26_avg_at_16")
"""Each of their many texts a prompt is scored; `humaneval`, `aime24` and the others check the same formatting."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * (name in SLOW)) for name in NAMES])
def test_the_formatting_checks_find_nothing(
    name: str, chat_handle: TransformersHandle, tokenizer: PreTrainedTokenizerFast, request: pytest.FixtureRequest
) -> None:
    task = PROJECT.named_task(name)
    runs_code = any(metric.EXECUTES_CODE for metric in task.METRICS)
    if runs_code:
        request.getfixturevalue("_sandbox")
    for each in rendered(PROJECT, name, chat_handle):
        # Programs are the same under every formatter: they run under one.
        with sandbox_policy(SandboxPolicy(allowed=runs_code and (each.formatter.name, each.shots) == ("plain", 0))):
            problems = formatting_problems(each.task, each.sample, each.prompt, formatter=each.formatter, tokenizer=tokenizer)
        assert not problems, f"{each.formatter.name}, {each.shots} shots, row {each.sample.row_index}"


def test_no_file_is_left_over() -> None:
    fixtures = {fixture_of(task).name for task in map(PROJECT.named_task, NAMES) if needs_fixture(task)}
    goldens = {f"{file_stem(name)}.txt" for name in NAMES}
    assert len(goldens) == len(NAMES)
    for folder, expected in ((FIXTURES, fixtures), (GOLDEN, goldens)):
        left_over = sorted(str(file) for file in folder.iterdir() if file.name not in expected)
        assert not left_over, f"no task needs {', '.join(left_over)}: delete them"


@pytest.fixture
def other_project(tmp_path: Path) -> Project:
    """One whose evals.yaml names tasks by file."""
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "mine.py").write_text(TASK_FILE)
    evals = 'evals: {sums: {task: "tasks/mine.py:Sums"}, words: {task: "./tasks/mine.py:Words"}, again: {task: "tasks/mine.py:Sums"}}'
    (tmp_path / "evals.yaml").write_text(f"models: {{}}\n{evals}\n")
    return Project.open(config_path=tmp_path / "evals.yaml", home=tmp_path / "home")


def test_tasks_that_evals_name_by_file_are_rendered_too(other_project: Project, chat_handle: TransformersHandle) -> None:
    assert other_project.task_names() == [*TASKS, "tasks/mine.py:Sums", "./tasks/mine.py:Words"]
    assert [file_stem(name) for name in other_project.task_names()[-2:]] == ["tasks.mine.Sums", "tasks.mine.Words"]
    prompts = list(rendered(other_project, "tasks/mine.py:Sums", chat_handle))
    assert [(each.formatter.name, each.shots) for each in prompts] == [(each, shots) for each in FORMATS for shots in (0, 2)]
    assert "======== plain · 0 shots · row 0 ========\nQ: What is " in as_text(prompts[0])
    assert "\nA:⟦end⟧\n-------- completion, special tokens left to the tokenizer\ngold          '" in as_text(prompts[0])


def test_a_missing_fixture_says_which_file_to_write(other_project: Project, chat_handle: TransformersHandle, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"write .*/openai\.gsm8k\.yaml with .* openai/gsm8k.* \(test and train\)"):
        list(rendered(other_project, "./tasks/mine.py:Words", chat_handle, tmp_path))
    (tmp_path / "openai.gsm8k.yaml").write_text((FIXTURES / "openai.gsm8k.yaml").read_text())
    assert len(list(rendered(other_project, "./tasks/mine.py:Words", chat_handle, tmp_path))) == 2 * len(FORMATS)
