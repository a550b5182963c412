"""lighteval's tasks through its bridge are those of lighteval itself: the same prompts, values and aggregates."""

import json
import os
import subprocess
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from eval_dagster.bridges.packages import LightevalRegistry
from eval_dagster.bridges.processes.registry import close_processes, worker_file
from eval_dagster.errors import TaskDefinitionError
from eval_dagster.records import Message
from eval_dagster.tasks.benchmark import BenchmarkRows, RenderSettings
from tests.peers.packages.bridged import answer
from tests.peers.packages.lighteval_rows import ROWS

PYTHON = os.environ.get("LIGHTEVAL_PYTHON")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(PYTHON is None, reason="LIGHTEVAL_PYTHON names no interpreter of an environment with lighteval 0.13.0"),
]
COUNT = 24


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


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LightevalRegistry]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield LightevalRegistry().within(Path(str(PYTHON)))
        close_processes()


def rows_of(name: str, split: str) -> list[dict[str, Any]]:
    start = {"train": 1000, "validation": 2000, "dev": 3000}.get(split, 0)
    return [ROWS[name](start + number) for number in range(COUNT)]


def bridged(registry: LightevalRegistry, name: str, shots: int, is_chat: bool) -> dict[str, Any]:
    benchmark = registry.benchmark(name, Path())
    opened = lambda split: rows_of(name, split.split)  # noqa: E731
    read = benchmark.read(name, opened, fewshot=shots > 0)
    rows = BenchmarkRows(evaluated=json.loads(json.dumps(read.evaluated)), examples=read.examples)
    formatter = Dumped() if is_chat else Plain()
    settings = RenderSettings(num_fewshot=shots, seed=0, examples_per_sample=False, formatter=formatter)
    asked = list(benchmark.render(name, rows, settings))
    answered = [(row, [answer(question) for question in questions]) for row, questions in zip(rows.evaluated, asked, strict=True)]
    values = benchmark.score_all(name, rows, answered)
    aggregated = {}
    for metric in benchmark.metrics:
        items = [each[metric.name] for each in values if not isinstance(each, Exception)]
        aggregated[metric.name] = sum(map(float, items)) / len(items) if metric.aggregate is None else metric.aggregate(items)
    return {"prompts": [questions[0].prompt for questions in asked], "aggregated": aggregated, "values": values}


def test_prompts_and_values_are_those_of_lighteval_itself(registry: LightevalRegistry) -> None:
    calls = []
    for name in ROWS:
        benchmark = registry.benchmark(name, Path())
        splits = {split.split for split in benchmark.splits(name, fewshot=True)}
        has_examples = len(splits) > 1 and not name.startswith(("truthfulqa", "wikitext"))
        data = {split: rows_of(name, split) for split in sorted(splits)}
        calls += [
            {"name": name, "splits": data, "shots": shots, "is_chat": is_chat, "module": module_of(name)}
            for shots in ((0, 3) if has_examples else (0,))
            for is_chat in (False, True)
        ]
    script = Path(__file__).with_name("lighteval_itself.py")
    done = subprocess.run([str(PYTHON), str(script)], input=json.dumps(calls), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for call, gold in zip(calls, json.loads(done.stdout), strict=True):
        ours = bridged(registry, str(call["name"]), int(str(call["shots"])), bool(call["is_chat"]))
        where = {key: call[key] for key in ("name", "shots", "is_chat")}
        assert ours["prompts"] == gold["prompts"], where
        assert ours["aggregated"] == pytest.approx(gold["aggregated"], nan_ok=True), where
        for mine, theirs in zip(ours["values"], gold["values"], strict=True):
            assert not isinstance(mine, Exception), (where, mine)
            assert {key for key, value in theirs.items() if value is not None} <= mine.keys()
            for key, value in theirs.items():
                assert value is None or float(mine[key]) == pytest.approx(value), (where, key)
    assert len({call["name"] for call in calls}) >= 20


def module_of(name: str) -> str:
    stems = {"arc:easy": "arc", "mmlu:anatomy": "mmlu", "qa4mre:2011": "qa4mre", "truthfulqa:mc": "truthfulqa"}
    stem = stems.get(name, name.split(":")[0])
    return f"lighteval.tasks.tasks.{stem}"


def test_nearly_all_core_files_are_imported_and_described(registry: LightevalRegistry) -> None:
    """Of 96 files, three use what the installed huggingface_hub lacks, or fetch a file when they are imported."""
    catalog = worker_file(registry.COMPANIONS[0])
    code = f"""
        import json, sys
        sys.path.insert(0, {str(catalog.parent)!r})
        import lighteval_catalog as catalog
        with catalog._no_network():
            core = [module for module in catalog._modules() if "multilingual" not in module]
            print(json.dumps([len(core), [next(iter(table)) for module in core if (table := catalog._table(module))]]))
    """
    done = subprocess.run([str(PYTHON), "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    count, firsts = json.loads(done.stdout.splitlines()[-1])
    assert (count, len(firsts) >= 93) == (96, True)
    refused = {}
    for name in firsts:
        try:
            assert registry.benchmark(name, Path()).metrics
        except TaskDefinitionError as error:
            refused[name] = str(error)
    assert all("asks another model" in reason or "outside of the sandbox" in reason for reason in refused.values()), refused
    assert len(refused) == 3


def test_tasks_of_all_files_are_listed(registry: LightevalRegistry) -> None:
    listed = registry.names()
    assert len(listed) > 40_000
    assert {"mmlu", "mmlu:anatomy", "gsm8k", "ifeval"} <= listed.keys()
    assert (listed["mmlu"].kind, listed["mmlu:anatomy"].kind) == ("group", "task")


@pytest.mark.parametrize(("name", "reason"), [("lcb:codegeneration", "outside of the sandbox"), ("nothing", "has no task")])
def test_what_is_refused_says_why(registry: LightevalRegistry, name: str, reason: str) -> None:
    with pytest.raises(TaskDefinitionError, match=reason):
        registry.benchmark(name, Path())
