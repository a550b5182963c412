"""A user's file with tasks of lighteval, evaluated in the environment of lighteval."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from eval_dagster.errors import TaskDefinitionError
from eval_dagster.peers.packages import LightevalRegistry
from eval_dagster.peers.processes.registry import close_processes
from eval_dagster.prompts.formatters import IdentityFormatter
from eval_dagster.tasks.benchmark import BenchmarkRows, RenderSettings
from tests.peers.packages.bridged import answer

PYTHON = os.environ.get("LIGHTEVAL_PYTHON")
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(PYTHON is None, reason="LIGHTEVAL_PYTHON names no interpreter of an environment with lighteval 0.13.0"),
]
BESIDE = """
from lighteval.tasks.requests import Doc


def ask(line, task_name=None):
    return Doc(task_name=task_name, query=f"Question: {line['question']}\\nAnswer:", choices=line["choices"], gold_index=line["answer"])
"""
FILE = """
from beside_mine import ask
from lighteval.metrics.metrics import Metrics
from lighteval.tasks.lighteval_task import LightevalTaskConfig

shared = dict(
    prompt_function=ask, hf_repo="rows", hf_subset="default", metrics=[Metrics.loglikelihood_acc], hf_avail_splits=["test"],
    evaluation_splits=["test"], generation_size=-1, stop_sequence=[],
)
named = LightevalTaskConfig(name="alone", **shared)
TASKS_TABLE = [LightevalTaskConfig(name=f"mine:{part}", **shared) for part in ("a", "b")]
"""
PROGRAMS = """
from beside_mine import ask
from lighteval.tasks.lighteval_task import LightevalTaskConfig
from lighteval.tasks.tasks.lcb.main import lcb_codegen_metric

TASKS_TABLE = [
    LightevalTaskConfig(
        name="programs", prompt_function=ask, hf_repo="rows", hf_subset="default", metrics=[lcb_codegen_metric],
        hf_avail_splits=["test"], evaluation_splits=["test"], generation_size=8, stop_sequence=[],
    )
]
"""
ROWS = [{"question": f"What is {n} + 1?", "choices": [str(n), str(n + 1)], "answer": 1} for n in range(5)]


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[LightevalRegistry]:
    for name, text in {"beside_mine": BESIDE, "my_tasks": FILE, "my_programs": PROGRAMS}.items():
        (tmp_path / f"{name}.py").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield LightevalRegistry().within(Path(str(PYTHON)))
        close_processes()


@pytest.mark.parametrize(
    ("name", "subjects"), [("mine", ["mine:a", "mine:b"]), ("mine:b", ["mine:b"]), ("alone", ["alone"]), ("named", ["alone"])]
)
def test_a_task_is_named_by_its_name_its_beginning_or_its_variable(
    registry: LightevalRegistry, tmp_path: Path, name: str, subjects: list[str]
) -> None:
    benchmark = registry.benchmark(f"my_tasks.py:{name}", tmp_path)
    assert list(benchmark.subjects) == subjects
    rows = benchmark.read(subjects[0], lambda _: ROWS, fewshot=False)
    settings = RenderSettings(num_fewshot=0, seed=0, examples_per_sample=False, formatter=IdentityFormatter())
    questions = list(benchmark.render(subjects[0], rows, settings))
    assert sorted(each[0].prompt for each in questions) == [f"Question: What is {n} + 1?\nAnswer:" for n in range(5)]
    values = benchmark.score_all(subjects[0], rows, list(zip(rows.evaluated, [[answer(each[0])] for each in questions], strict=True)))
    assert all(set(each) == {"acc"} for each in values)


def test_versions_follow_the_file_and_those_that_it_imports(registry: LightevalRegistry, tmp_path: Path) -> None:
    before = registry.benchmark("my_tasks.py:mine", tmp_path).version()
    (tmp_path / "my_programs.py").write_text("# another task\n")
    assert registry.benchmark("my_tasks.py:mine", tmp_path).version() == before
    (tmp_path / "beside_mine.py").write_text(BESIDE.replace("Question: ", "Q: "))
    changed = registry.benchmark("my_tasks.py:mine", tmp_path)
    assert changed.version() != before
    rows = BenchmarkRows(evaluated=json.loads(json.dumps(ROWS)), examples=[])
    settings = RenderSettings(num_fewshot=0, seed=0, examples_per_sample=False, formatter=IdentityFormatter())
    assert next(iter(changed.render("mine:a", rows, settings)))[0].prompt.startswith("Q: ")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("my_tasks.py:other", "has no task 'other'; it has: mine:a, mine:b, alone"),
        ("my_programs.py:programs", "outside of the sandbox"),
        ("gone.py:mine", "there is no task file"),
    ],
)
def test_what_cannot_be_evaluated_says_why(registry: LightevalRegistry, tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(TaskDefinitionError, match=reason):
        registry.benchmark(name, tmp_path)
