"""Tasks of lighteval through its bridge, and how they differ from what lighteval itself makes of the same rows."""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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


@contextmanager
def opened_registry(python: Path, folder: Path, registry: type[LightevalRegistry] = LightevalRegistry) -> Iterator[LightevalRegistry]:
    """The registry of an environment, which keeps what it learns in a folder and fetches nothing."""
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    (programs / "swipl").touch(0o755)  # slr_bench looks for it and never runs it here
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
        yield registry().within(python)
        close_processes()


def asked(python: Path, script: str, given: Any) -> Any:
    """The result of a script that runs in the environment of lighteval."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"}
    command = [str(python), str(Path(__file__).with_name(script))]
    done = subprocess.run(command, input=json.dumps(given), env=environment, capture_output=True, text=True, check=False, timeout=3000)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def files_of(python: Path) -> dict[str, Any]:
    """By core file of lighteval: tasks with their rows by split, or why it cannot be imported."""
    return dict(asked(python, "lighteval_inventor.py", None))


def compared(python: Path, registry: LightevalRegistry, files: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each task of the core files without examples and with two, as text and as messages, by both."""
    calls = [
        {"module": module, "name": name, "splits": task["rows"], "shots": shots, "is_chat": is_chat}
        for module, file in files.items()
        for name, task in file.get("tasks", {}).items()
        for shots in (0, SHOTS)
        for is_chat in (False, True)
    ]
    itself = asked(python, "lighteval_itself.py", calls)
    found = [{**call, "theirs": theirs, "ours": bridged(registry, call)} for call, theirs in zip(calls, itself, strict=True)]
    # Where a task has no split for examples, a question of lighteval can be its own example, and none is here.
    return [each for each in found if not each["shots"] or each["theirs"].get("examples")]


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


def value_differences(each: Mapping[str, Any]) -> list[str]:
    """How the values and aggregates of a compared task differ.

    A metric that lighteval itself cannot compute here, without a network or another package, has an error or is left out.
    """
    ours, theirs = each["ours"], each["theirs"]
    found = []
    if ours["aggregated"] != pytest.approx(theirs["aggregated"], nan_ok=True):
        found.append(f"aggregates: {ours['aggregated']} are not {theirs['aggregated']}")
    for number, (mine, others) in enumerate(zip(ours["values"], theirs["values"], strict=True)):
        for key, value in others.items():
            own = mine.get(key)
            is_number = key in mine and not isinstance(own, ScoreError)
            if key not in mine or not (value is None or (is_number and float(own) == pytest.approx(value, nan_ok=True))):
                found.append(f"row {number}: {key}: {own!r} is not {value!r}")
        found += [
            f"row {number}: {key}: {mine[key]!r} is not an error, which lighteval has: {theirs['failed'][key]}"
            for key in theirs["failed"].keys() & mine.keys()
            if not isinstance(mine[key], ScoreError)
        ]
    return found
