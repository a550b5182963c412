"""lighteval's tasks through its bridge are those of lighteval itself: the same documents, values and aggregates."""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from eval_dagster.errors import DataError, TaskDefinitionError
from eval_dagster.peers.packages import LightevalRegistry
from eval_dagster.peers.processes.benchmark import ProcessBenchmark
from eval_dagster.peers.processes.registry import close_processes
from eval_dagster.records import Message, ResponseType, TaskSample
from eval_dagster.tasks.benchmark import BenchmarkRows, RenderSettings, ScoreError
from tests.peers.packages.bridged import answer

PYTHON = os.environ.get("LIGHTEVAL_PYTHON")
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(PYTHON is None, reason="LIGHTEVAL_PYTHON names no interpreter of an environment with lighteval 0.13.0"),
]
ROOT = Path(__file__).resolve().parents[3]
SHOTS = 2


class Dumped:
    """Messages as JSON, instead of a model's template."""

    name = "chat"
    has_special_tokens = True

    def format(self, messages: Sequence[Message], *, images: int = 0) -> str:
        return json.dumps([{"role": str(each.role), "content": each.content} for each in messages])

    def answer_gap(self, question: str, answer: str) -> str:
        return ""

    def version(self) -> str:
        return ""


class Plain(Dumped):
    name = "plain"


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
    programs = tmp_path_factory.mktemp("programs")
    (programs / "swipl").touch(0o755)  # slr_bench looks for it and never runs it here
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
        yield LightevalRegistry().within(Path(str(PYTHON)))
        close_processes()


@pytest.fixture(scope="module")
def files(registry: LightevalRegistry) -> dict[str, Any]:
    """By core file of lighteval: tasks with their rows by split, or why it cannot be imported."""
    return dict(asked("lighteval_inventor.py", None))


@pytest.fixture(scope="module")
def compared(registry: LightevalRegistry, files: dict[str, Any]) -> list[dict[str, Any]]:
    """Each task of the core files without examples and with two, as text and as messages, by both."""
    calls = [
        {"module": module, "name": name, "splits": task["rows"], "shots": shots, "is_chat": is_chat}
        for module, file in files.items()
        for name, task in file.get("tasks", {}).items()
        for shots in (0, SHOTS)
        for is_chat in (False, True)
    ]
    itself = asked("lighteval_itself.py", calls)
    found = [{**call, "theirs": theirs, "ours": bridged(registry, call)} for call, theirs in zip(calls, itself, strict=True)]
    # Where a task has no split for examples, a question of lighteval can be its own example, and none is here.
    return [each for each in found if not each["shots"] or each["theirs"].get("examples")]


def asked(script: str, given: Any) -> Any:
    """What a script gives that runs in the environment of lighteval."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"}
    command = [str(PYTHON), str(Path(__file__).with_name(script))]
    done = subprocess.run(command, input=json.dumps(given), env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def bridged(registry: LightevalRegistry, call: Mapping[str, Any]) -> dict[str, Any]:
    """Documents, values and aggregates of a task by the bridge; why it is refused, if it is; the problem, where there are no documents."""
    name, refused = call["name"], None
    try:
        benchmark = registry.benchmark(name, Path())
    except TaskDefinitionError as error:
        refused, benchmark = str(error), documents_alone(registry, call)
    try:
        read = benchmark.read(name, lambda split: call["splits"][split.split], fewshot=call["shots"] > 0)
        rows = BenchmarkRows(evaluated=json.loads(json.dumps(read.evaluated)), examples=json.loads(json.dumps(read.examples)))
        formatter = Dumped() if call["is_chat"] else Plain()
        settings = RenderSettings(num_fewshot=call["shots"], seed=0, examples_per_sample=False, formatter=formatter)
        questions = list(benchmark.render(name, rows, settings))
    except DataError as error:
        return {"refused": refused, "problem": str(error)}
    found = {"refused": refused, "documents": [shown(each) for each in questions]}
    if refused:
        return found
    answered = [(row, [answer(question) for question in each]) for row, each in zip(rows.evaluated, questions, strict=True)]
    values = benchmark.score_all(name, rows, answered)
    return {**found, "values": values, "aggregated": aggregated(benchmark, values)}


def documents_alone(registry: LightevalRegistry, call: Mapping[str, Any]) -> ProcessBenchmark:
    """A task that is refused, to ask the worker for its documents."""
    splits = [{"path": "", "config": None, "split": split} for split in call["splits"]]
    described = {"subjects": [call["name"]], "response_type": "completion", "metrics": [], "version": ""}
    process = registry.benchmark("gsm8k", Path())._process
    return ProcessBenchmark(call["name"], {**described, "splits": {call["name"]: {"evaluated": splits}}}, process, ())


def aggregated(benchmark: ProcessBenchmark, values: Sequence[Any]) -> dict[str, float]:
    """The aggregates of the metrics that have a value for each row."""
    found = {}
    for metric in benchmark.metrics:
        items = [each[metric.name] for each in values]
        if not any(isinstance(item, ScoreError) for item in items):
            found[metric.name] = sum(map(float, items)) / len(items) if metric.aggregate is None else metric.aggregate(items)
    return found


def shown(questions: Sequence[TaskSample]) -> dict[str, Any]:
    """The fields of a document that the questions about it have."""
    found: dict[str, Any] = {"prompt": questions[0].prompt}
    for question in questions:
        if question.response_type is ResponseType.LOGLIKELIHOODS:
            found |= {"choices": question.possible_completions, "gold_indices": question.gold_indices}
        if question.response_type is ResponseType.COMPLETION:
            found |= {name: getattr(question, name) for name in ("ground_truth", "max_tokens", "stop_sequences", "num_samples")}
    return found


def where(each: Mapping[str, Any]) -> tuple[Any, ...]:
    return each["name"], each["shots"], each["is_chat"]


def test_core_files_give_the_documents_of_lighteval_itself(compared: list[dict[str, Any]], files: dict[str, Any]) -> None:
    stems = {module: module.removeprefix("lighteval.tasks.tasks.") for module in files}
    missing = {stems[module]: file["problem"] for module, file in files.items() if "problem" in file}
    assert missing.keys() == NOT_IMPORTED.keys()
    assert all(NOT_IMPORTED[stem] in problem for stem, problem in missing.items()), missing
    without = {each["name"]: each["ours"]["problem"] for each in compared if "documents" not in each["ours"] and not each["shots"]}
    assert without.keys() == {"mmmu_pro:vision"}
    assert "images" in without["mmmu_pro:vision"]
    made = [each for each in compared if each["name"] not in without]
    assert [where(each) for each in made if each["ours"].get("documents") != each["theirs"].get("documents")] == []
    alike = {stems[each["module"]] for each in compared if each["ours"].get("documents")}
    assert (len(files), len(alike)) == (96, 93)
    names = {shots: {each["name"] for each in made if each["shots"] == shots and "documents" in each["ours"]} for shots in (0, SHOTS)}
    assert (len(names[0]), len(names[SHOTS])) == (180, 144)


def test_tasks_without_a_metric_are_refused(compared: list[dict[str, Any]]) -> None:
    found = {each["module"].removeprefix("lighteval.tasks.tasks."): each["ours"]["refused"] for each in compared if each["ours"]["refused"]}
    assert found.keys() == REFUSED.keys()
    assert all(reason in found[stem] for stem, reason in REFUSED.items()), found


def test_values_and_aggregates_are_those_of_lighteval_itself(compared: list[dict[str, Any]]) -> None:
    """A metric that lighteval itself cannot compute here, without a network or another package, has an error or is left out."""
    both = [each for each in compared if "values" in each["ours"] and "values" in each["theirs"]]
    for each in both:
        ours, theirs = each["ours"], each["theirs"]
        assert ours["aggregated"] == pytest.approx(theirs["aggregated"], nan_ok=True), where(each)
        for mine, others in zip(ours["values"], theirs["values"], strict=True):
            assert others.keys() <= mine.keys(), where(each)
            for key, value in others.items():
                assert value is None or float(mine[key]) == pytest.approx(value, nan_ok=True), (where(each), key)
            assert all(isinstance(mine[key], ScoreError) for key in theirs["failed"].keys() & mine.keys()), where(each)
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
