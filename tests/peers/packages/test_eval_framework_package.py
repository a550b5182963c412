"""All names of a release of eval-framework before 0.11, through this project and by the release itself: the same prompts and values.

Classes without a name are those of a user's file, which imports them.
`EVAL_FRAMEWORK_PYTHON` names the Python of an environment with it; the counts are those of 0.9.1. `EVERY_NAME` chooses names, with spaces
between them.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eval_dagster.errors import RequirementError, TaskDefinitionError
from eval_dagster.peers.packages import EvalFrameworkRegistry
from eval_dagster.peers.processes.registry import Environment, close_processes
from eval_dagster.prompts.formatters import ConcatFormatter, Llama3Formatter
from eval_dagster.sandbox import SandboxPolicy, sandbox_policy
from eval_dagster.tasks.benchmark import Answer, BenchmarkRows, RenderSettings, ScoreError
from tests.peers.every_name.comparison import opened
from tests.peers.packages.bridged import answer
from tests.peers.packages.scripted_answers import text_or_program

PYTHON = os.environ.get("EVAL_FRAMEWORK_PYTHON")
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(PYTHON is None, reason="EVAL_FRAMEWORK_PYTHON names no interpreter of an environment with eval-framework 0.9.1"),
]
FORMATTERS = {"plain": ConcatFormatter(), "llama3": Llama3Formatter()}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EvalFrameworkRegistry]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield EvalFrameworkRegistry().within(Path(str(PYTHON)))
        close_processes()


def itself(calls: object) -> Any:
    script = Path(__file__).with_name("eval_framework_itself.py")
    done = subprocess.run([str(PYTHON), str(script)], input=json.dumps(calls), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def answered(question: Any) -> Answer:
    given = answer(question)
    golds = [question.ground_truth] if isinstance(question.ground_truth, str) else list(question.ground_truth or ())
    return Answer(prompt=given.prompt, texts=[text_or_program(given.prompt, golds)], context=given.context) if given.texts else given


def differences(benchmark: Any, call: dict[str, Any], gold: dict[str, Any], lacking: list[str]) -> Iterator[str]:
    """The differences of a name with a number of examples in a format. Programs that this machine cannot run are added to `lacking`."""
    subject, fewshot = benchmark.subjects[0], call["shots"] > 0
    try:
        read = benchmark.read(subject, opened, fewshot=fewshot)
        rows = BenchmarkRows(evaluated=json.loads(json.dumps(read.evaluated)), examples=read.examples)
        settings = RenderSettings(num_fewshot=call["shots"], seed=0, examples_per_sample=False, formatter=FORMATTERS[call["style"]])
        asked = list(benchmark.render(subject, rows, settings))
    except Exception as problem:
        if gold.get("error", "?").partition(": ")[2] not in str(problem):
            yield f"ours: {problem}; by itself: {gold.get('error')}"
        return
    if "error" in gold:
        yield f"by itself: {gold['error']}"
        return
    if [question.prompt for questions in asked for question in questions] != gold["prompts"]:
        yield "other prompts"
        return
    first = asked[0][0]
    if first.response_type.value == "completion" and (sorted(first.stop_sequences or ()), first.max_tokens) != (
        gold["stops"],
        gold["max_tokens"],
    ):
        yield f"stops at {first.stop_sequences}, {first.max_tokens}; by itself {gold['stops']}, {gold['max_tokens']}"
    if call["scores"]:
        given = [(row, list(map(answered, questions))) for row, questions in zip(rows.evaluated, asked, strict=True)]
        try:
            with sandbox_policy(SandboxPolicy(allowed=True)):
                values = list(benchmark.score_all(subject, rows, given))
        except RequirementError as problem:
            lacking.append(f"{call['name']}: {problem}")
            return
        theirs = iter(gold["values"])
        for mine, questions in zip(values, asked, strict=True):
            yield from value_differences(mine, [next(theirs) for _ in questions])


def value_differences(mine: Any, theirs: list[dict[str, Any]]) -> Iterator[str]:
    """The values of a row that differ from the means over its questions. An error on both sides is equal."""
    assert not isinstance(mine, Exception), mine
    for name in dict.fromkeys(name for each in theirs for name in each):
        numbers = [value for each in theirs if isinstance(each.get(name), list) for value in each[name] if value is not None]
        own = mine.get(name)
        if not numbers and own is not None and not isinstance(own, ScoreError):
            yield f"{name}: {own}, by itself {theirs[0].get(name)}"
        elif numbers and (not isinstance(own, float | int) or own != pytest.approx(sum(numbers) / len(numbers))):
            yield f"{name}: {own}, by itself {numbers}"


def test_every_name(registry: EvalFrameworkRegistry, tmp_path: Path) -> None:
    listed = itself("names")
    named, classes = listed["names"], listed["classes"]
    names = os.environ.get("EVERY_NAME", "").split() or [*named, *classes]
    lines = [f"from {module} import {name}\n{name}.REVISION_LOCKFILE = None\n" for name, module in classes.items()]
    (tmp_path / "classes.py").write_text("".join(lines))
    calls = [
        {"name": name, "shots": shots, "style": style, "scores": shots == 0 and style == "plain"}
        for name in names
        for shots in (0, 2)
        for style in FORMATTERS
    ]
    found, refused, values, lacking = {}, dict[str, str](), 0, list[str]()
    for call, gold in zip(calls, itself(calls), strict=True):
        values += sum(isinstance(value, list) for each in gold.get("values", ()) for value in each.values())
        name = call["name"] if call["name"] in named else f"classes.py:{call['name']}"
        try:
            benchmark = registry.benchmark(name, tmp_path)
        except TaskDefinitionError as problem:
            refused[name] = str(problem)
            continue
        if seen := list(differences(benchmark, call, gold, lacking)):
            found[f"{call['name']}, {call['shots']} examples, {call['style']}"] = seen[:3]
    print(f"{len(names)} names, {values} values by themselves, not run: {lacking}")  # noqa: T201 - the result
    assert (found, refused) == ({}, {})
    if not os.environ.get("EVERY_NAME") and Environment(Path(str(PYTHON))).release("eval-framework") == "0.9.1":
        assert (len(named), len(classes), set(named)) == (68, 49, set(registry.names()))


def test_a_metric_that_runs_programs_says_so(registry: EvalFrameworkRegistry) -> None:
    """So the sandbox runs them, and not a container."""
    for name in ("HumanEval_OLMES", "MultiPLEHumanEvalJava", "BigCodeBench_OLMES"):
        assert registry.benchmark(name, Path()).executes_code, name
    assert not registry.benchmark("IFEval", Path()).executes_code


def test_what_is_not_there_says_so(registry: EvalFrameworkRegistry) -> None:
    with pytest.raises(TaskDefinitionError, match="has no task"):
        registry.benchmark("Nothing", Path())
