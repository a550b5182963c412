"""Every name of a release of eval-framework, through this project and by the release itself: prompts byte for byte, and values.

`EVAL_FRAMEWORK_CONTRACT_PYTHON` names the Python of an environment with a release from 0.11 on; the counts are those of 0.15.4. It counts
sentences with data of nltk, `punkt_tab`, which `NLTK_DATA` names. `EVERY_NAME` chooses names, with spaces between them.
"""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eval_dagster.errors import TaskDefinitionError
from eval_dagster.peers.packages import EvalFrameworkRegistry
from eval_dagster.peers.processes.environments import make_environment
from eval_dagster.peers.processes.registry import Environment, close_processes
from eval_dagster.prompts.formatters import ConcatFormatter
from eval_dagster.tasks.benchmark import Answer, BenchmarkRows, RenderSettings
from tests.peers.every_name.comparison import HERE, compared, itself, table

PYTHON = os.environ.get("EVAL_FRAMEWORK_CONTRACT_PYTHON")
SHARED = Path(os.environ.get("EVAL_DAGSTER_SHARED", Path(__file__).resolve().parents[4] / "shared"))
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(PYTHON is None, reason="EVAL_FRAMEWORK_CONTRACT_PYTHON names no interpreter of an environment with eval-framework"),
]
ROWS = [{"question": f"What is {n} + 1?", "choices": [str(n + place) for place in range(4)], "answer": 1} for n in range(6)]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EvalFrameworkRegistry]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield EvalFrameworkRegistry().within(Path(str(PYTHON)))
        close_processes()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for file in ("mine.py", "beside.py"):
        shutil.copy(HERE / file, tmp_path / file)
    return tmp_path


def test_every_name(registry: EvalFrameworkRegistry, tmp_path: Path) -> None:
    chosen = os.environ.get("EVERY_NAME", "").split()
    theirs = itself(str(PYTHON), tmp_path / "theirs.json", chosen)
    outcomes = [compared(registry, name, by_shots) for name, by_shots in theirs.items()]
    print(table(outcomes))  # noqa: T201 - the result
    assert [f"{each.name}: {each.differences[:3]}" for each in outcomes if each.differences] == []
    assert [each.name for each in outcomes if each.refused and "asks another model" not in each.refused] == []
    assert all(each.values for each in outcomes if each.state() == "equal")
    if not chosen and Environment(Path(str(PYTHON))).release("eval-framework") == "0.15.4":
        assert len(outcomes) == 130
        assert set(registry.names()) == set(theirs)


@pytest.mark.skipif(not (SHARED / "datasets").is_dir(), reason=f"no datasets in {SHARED}")
def test_real_rows(registry: EvalFrameworkRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MMLU at 0 and 5 examples, HellaSwag, whose other splits the folder lacks, at 0, and GSM8K with its own eight."""
    monkeypatch.setenv("REAL_ROWS", str(SHARED / "datasets"))
    for shots, names in {"0,5": ["MMLU", "MMLU_OLMES"], "0": ["HellaSwag", "GSM8K_OLMES"]}.items():
        theirs = itself(str(PYTHON), tmp_path / "theirs.json", names, shots)
        outcomes = [compared(registry, name, by_shots) for name, by_shots in theirs.items()]
        print(table(outcomes))  # noqa: T201 - the result
        assert [(each.name, each.differences[:2]) for each in outcomes if each.differences] == []
        assert all(each.prompts > 200 for each in outcomes)


def right(question: Any) -> Answer:
    context = dict(question.context)
    if question.possible_completions is None:
        return Answer(prompt=question.prompt, texts=[question.ground_truth], context=context)
    values = [0.0 if place in question.gold_indices else -1.0 for place in range(len(question.possible_completions))]
    return Answer(prompt=question.prompt, choices=question.possible_completions, loglikelihoods=values, context=context)


CHOICE = "Q: Well: What is 0 + 1?\nA. 0\nB. 1\nC. 2\nD. 3\nA:"


@pytest.mark.parametrize(("name", "prompt"), [("MyTask", CHOICE), ("my_task", CHOICE), ("MyClass", "Q: Well: What is 0 + 1?")])
def test_a_file_of_a_user(registry: EvalFrameworkRegistry, files: Path, name: str, prompt: str) -> None:
    benchmark = registry.benchmark(f"mine.py:{name}", files)
    subject = benchmark.subjects[0]
    assert [split.split for split in benchmark.splits(subject, fewshot=True)] == ["test", "dev"]
    read = benchmark.read(subject, lambda _: [dict(row) for row in ROWS], fewshot=True)
    rows = BenchmarkRows(evaluated=json.loads(json.dumps(read.evaluated)), examples=read.examples)
    settings = RenderSettings(num_fewshot=0, seed=0, examples_per_sample=False, formatter=ConcatFormatter())
    asked = [made[0] for made in benchmark.render(subject, rows, settings)]  # type: ignore[index]
    assert prompt in {str(question.prompt).strip() for question in asked}
    scored: list[Any] = list(
        benchmark.score_all(subject, rows, [(row, [right(question)]) for row, question in zip(rows.evaluated, asked, strict=True)])
    )
    assert all(values[benchmark.metrics[0].name] == 1.0 for values in scored)
    before = benchmark.version()
    (files / "beside.py").write_text("PREFIX = 'Now: '\n")
    assert registry.benchmark(f"mine.py:{name}", files).version() != before


def test_a_row_that_fails_is_an_error_of_its_own(registry: EvalFrameworkRegistry, files: Path) -> None:
    benchmark = registry.benchmark("mine.py:MyTask", files)
    rows = BenchmarkRows(evaluated=[*ROWS[:2], {"question": "no choices"}, *ROWS[2:]], examples=ROWS)
    for shots in (0, 2):
        settings = RenderSettings(num_fewshot=shots, seed=0, examples_per_sample=False, formatter=ConcatFormatter())
        asked = list(benchmark.render("no_subject", rows, settings))
        assert [isinstance(each, Exception) for each in asked] == [False, False, True, False, False, False, False]
        assert "KeyError: 'choices'" in str(asked[2])
        assert "What is 2 + 1?" in str(asked[3][0].prompt)  # type: ignore[index]


def test_a_name_that_is_not_there(registry: EvalFrameworkRegistry, files: Path) -> None:
    with pytest.raises(TaskDefinitionError, match="eval-framework has no task 'Nothing'"):
        registry.benchmark("Nothing", files)
    with pytest.raises(TaskDefinitionError, match=r"mine\.py has no benchmark 'Yours'; it has: .*MyTask"):
        registry.benchmark("mine.py:Yours", files)


def test_the_environment_is_made(tmp_path: Path) -> None:
    name, made = make_environment(EvalFrameworkRegistry, tmp_path, None, "0.15.4")
    assert (name, Environment(tmp_path / made).release("eval-framework")) == ("eval_framework", "0.15.4")
