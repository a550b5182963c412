"""lighteval's tasks through its bridge are those of lighteval itself: the same documents, values and aggregates."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from eval_dagster.errors import TaskDefinitionError
from eval_dagster.peers.packages import LightevalRegistry
from tests.peers.packages.lighteval_comparison import SHOTS, compared, files_of, opened_registry, value_differences

PYTHON = os.environ.get("LIGHTEVAL_PYTHON")
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(PYTHON is None, reason="LIGHTEVAL_PYTHON names no interpreter of an environment with lighteval 0.13.0"),
]
NOT_IMPORTED = {"mix_eval.main": "list_models", "mt_bench.main": "list_models", "tiny_benchmarks": "raw.githubusercontent.com"}
"""Core files that use what the installed huggingface_hub lacks, or fetch a file when they are imported."""
REFUSED = {
    "custom_task_classification_grammar_task": "lighteval itself cannot compute",
    "lcb.main": "outside of the sandbox",
    "slr_bench": "outside of the sandbox",
}
"""Core files whose tasks give documents, and no value of a metric."""


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LightevalRegistry]:
    with opened_registry(Path(str(PYTHON)), tmp_path_factory.mktemp("lighteval")) as registry:
        yield registry


@pytest.fixture(scope="module")
def files(registry: LightevalRegistry) -> dict[str, Any]:
    return files_of(Path(str(PYTHON)))


@pytest.fixture(scope="module")
def tasks(registry: LightevalRegistry, files: dict[str, Any]) -> list[dict[str, Any]]:
    return compared(Path(str(PYTHON)), registry, files)


def where(each: Mapping[str, Any]) -> tuple[Any, ...]:
    return each["name"], each["shots"], each["is_chat"]


def test_core_files_give_the_documents_of_lighteval_itself(tasks: list[dict[str, Any]], files: dict[str, Any]) -> None:
    stems = {module: module.removeprefix("lighteval.tasks.tasks.") for module in files}
    missing = {stems[module]: file["problem"] for module, file in files.items() if "problem" in file}
    assert missing.keys() == NOT_IMPORTED.keys()
    assert all(NOT_IMPORTED[stem] in problem for stem, problem in missing.items()), missing
    without = {each["name"]: each["ours"]["problem"] for each in tasks if "documents" not in each["ours"] and not each["shots"]}
    assert without.keys() == {"mmmu_pro:vision"}
    assert "images" in without["mmmu_pro:vision"]
    made = [each for each in tasks if each["name"] not in without]
    assert [where(each) for each in made if each["ours"].get("documents") != each["theirs"].get("documents")] == []
    alike = {stems[each["module"]] for each in tasks if each["ours"].get("documents")}
    assert (len(files), len(alike)) == (96, 93)
    names = {shots: {each["name"] for each in made if each["shots"] == shots and "documents" in each["ours"]} for shots in (0, SHOTS)}
    assert (len(names[0]), len(names[SHOTS])) == (180, 144)


def test_tasks_without_a_metric_are_refused(tasks: list[dict[str, Any]]) -> None:
    found = {each["module"].removeprefix("lighteval.tasks.tasks."): each["ours"]["refused"] for each in tasks if each["ours"]["refused"]}
    assert found.keys() == REFUSED.keys()
    assert all(reason in found[stem] for stem, reason in REFUSED.items()), found


def test_values_and_aggregates_are_those_of_lighteval_itself(tasks: list[dict[str, Any]]) -> None:
    both = [each for each in tasks if "values" in each["ours"] and "values" in each["theirs"]]
    assert [(where(each), differences) for each in both if (differences := value_differences(each))] == []
    assert len({each["name"] for each in both if each["ours"]["aggregated"]}) == 175


def test_a_task_leaves_out_the_metrics_that_ask_another_model(registry: LightevalRegistry) -> None:
    benchmark = registry.benchmark("hle", Path())
    assert [metric.name for metric in benchmark.metrics] == ["em"]
    assert "without accuracy, confidence_half_width, calibration_error (asks another model)" in benchmark.description


def test_tasks_of_all_files_are_listed(registry: LightevalRegistry) -> None:
    listed = registry.names()
    assert len(listed) > 40_000
    assert {"mmlu", "mmlu:anatomy", "gsm8k", "ifeval"} <= listed.keys()
    assert (listed["mmlu"].kind, listed["mmlu:anatomy"].kind) == ("group", "task")


@pytest.mark.parametrize(("name", "reason"), [("lcb:codegeneration", "outside of the sandbox"), ("nothing", "has no task")])
def test_what_is_refused_says_why(registry: LightevalRegistry, name: str, reason: str) -> None:
    with pytest.raises(TaskDefinitionError, match=reason):
        registry.benchmark(name, Path())
