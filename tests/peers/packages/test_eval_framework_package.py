"""eval-framework's tasks through its bridge are those of eval-framework itself: the same prompts and values, in the same order."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eval_dagster.errors import TaskDefinitionError
from eval_dagster.peers.packages import EvalFrameworkRegistry
from eval_dagster.peers.processes.registry import close_processes
from eval_dagster.prompts.formatters import ConcatFormatter, Llama3Formatter
from eval_dagster.tasks.benchmark import BenchmarkRows, RenderSettings, ScoreError
from tests.peers.packages.bridged import answer
from tests.peers.packages.eval_framework_rows import ROWS

PYTHON = os.environ.get("EVAL_FRAMEWORK_PYTHON")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(PYTHON is None, reason="EVAL_FRAMEWORK_PYTHON names no interpreter of an environment with eval-framework 0.9.1"),
]
COUNT = 24
FORMATTERS = {"plain": ConcatFormatter(), "llama3": Llama3Formatter()}
ZERO_SHOT = {"GSM8KReasoning", "MMLU_COT", "MMLU_PRO_COT"}
"""Tasks whose class takes no examples."""


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EvalFrameworkRegistry]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield EvalFrameworkRegistry().within(Path(str(PYTHON)))
        close_processes()


def rows_of(name: str, split: str) -> list[dict[str, Any]]:
    start = {"train": 1000, "validation": 2000, "dev": 3000}.get(split, 0)
    return [ROWS[name][1](start + number) for number in range(COUNT)]


def bridged(registry: EvalFrameworkRegistry, name: str, subject: str, shots: int, style: str) -> dict[str, Any]:
    benchmark = registry.benchmark(name, Path())
    read = benchmark.read(subject, lambda split: rows_of(name, split.split), fewshot=shots > 0)
    rows = BenchmarkRows(evaluated=json.loads(json.dumps(read.evaluated)), examples=read.examples)
    settings = RenderSettings(num_fewshot=shots, seed=0, examples_per_sample=False, formatter=FORMATTERS[style])
    asked = list(benchmark.render(subject, rows, settings))
    answered = [(row, [answer(question) for question in questions]) for row, questions in zip(rows.evaluated, asked, strict=True)]
    values = benchmark.score_all(subject, rows, answered)
    prompts = [question.prompt for questions in asked for question in questions]
    return {"prompts": prompts, "values": values, "counts": [len(questions) for questions in asked]}


def means(several: list[dict[str, float | None]]) -> dict[str, float]:
    """The mean of each metric over the samples of a row that have a value."""
    names = dict.fromkeys(name for each in several for name in each)
    values = {name: [value for each in several if (value := each.get(name)) is not None] for name in names}
    return {name: sum(found) / len(found) for name, found in values.items() if found}


def test_prompts_and_values_are_those_of_eval_framework_itself(registry: EvalFrameworkRegistry) -> None:
    calls: list[dict[str, Any]] = []
    for name, (subject, _) in ROWS.items():
        benchmark = registry.benchmark(name, Path())
        own = subject.strip("()").replace("'", "").replace(", ", ",")
        splits = {split.split for split in benchmark.splits(own, fewshot=True)}
        calls += [
            {
                "name": name,
                "subject": subject,
                "splits": {split: rows_of(name, split) for split in sorted(splits)},
                "shots": shots,
                "style": style,
            }
            for shots in ((0,) if name in ZERO_SHOT else (0, 3))
            for style in FORMATTERS
        ]
    script = Path(__file__).with_name("eval_framework_itself.py")
    done = subprocess.run([str(PYTHON), str(script)], input=json.dumps(calls), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for call, gold in zip(calls, json.loads(done.stdout), strict=True):
        own = call["subject"].strip("()").replace("'", "").replace(", ", ",")
        ours = bridged(registry, call["name"], own, call["shots"], call["style"])
        where = {key: call[key] for key in ("name", "shots", "style")}
        assert ours["prompts"] == gold["prompts"], where
        samples = iter(gold["values"])
        for mine, count in zip(ours["values"], ours["counts"], strict=True):
            assert not isinstance(mine, Exception), (where, mine)
            found = {key: value for key, value in mine.items() if not isinstance(value, ScoreError)}
            assert found == pytest.approx(means([next(samples) for _ in range(count)])), where
        assert next(samples, None) is None
    assert len(ROWS) >= 20


@pytest.mark.parametrize(("name", "reason"), [("HumanEval_OLMES", "outside of the sandbox"), ("Nothing", "has no task")])
def test_what_is_refused_says_why(registry: EvalFrameworkRegistry, name: str, reason: str) -> None:
    with pytest.raises(TaskDefinitionError, match=reason):
        registry.benchmark(name, Path())
