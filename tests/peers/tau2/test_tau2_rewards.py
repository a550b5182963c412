"""τ²-bench side by side: what models read in an episode, and its reward, against the loop and the evaluator of inspect-evals itself.

`TAU2_PYTHON` names the Python of an environment of `eval-dagster environments add tau2`.
"""

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from eval_dagster.episodes.tools import Outcome, arguments_of, failed, succeeded, tool_named, tools_of
from eval_dagster.peers.processes.registry import close_processes
from eval_dagster.peers.tau2 import Tau2Registry, Tau2Task
from eval_dagster.records import Message, MetricContext, Role, ToolCall, Turn
from eval_dagster.tasks.episodes import EpisodeSample, Reply, Roles, Tools

HERE = Path(__file__).parent
PYTHON = os.environ.get("TAU2_PYTHON")
COUNTS = {"airline": 50, "retail": 114, "telecom": 114}
pytestmark = pytest.mark.skipif(PYTHON is None, reason="TAU2_PYTHON is not set: the Python of `eval-dagster environments add tau2`")


class Said:
    """A model that says what is written down, and keeps what it has read."""

    def __init__(self, said: Sequence[dict[str, Any]]) -> None:
        self._said = iter(said)
        self.read: list[list[str]] = []

    async def ask(self, messages: Sequence[Message], *, tools: Sequence[str] = ()) -> Reply:
        assert all(json.loads(each)["type"] == "function" for each in tools)
        self.read = [[each.role.value, each.content] for each in messages]
        each = next(self._said)
        calls = [
            ToolCall(call_id=str(number), name=name, arguments_text=json.dumps(arguments))
            for number, (name, arguments) in enumerate(each["calls"])
        ]
        return Reply(text=each["text"], tool_calls=calls)


class InMemory:
    """The tools of an episode, without a record."""

    def __init__(self, task: type[Tau2Task], sample: EpisodeSample) -> None:
        self._tools = tools_of(task.TOOLS, task.NAME)
        self._world = task.WORLD(sample)

    async def instance(self, of: type[Any]) -> Any:
        assert isinstance(self._world, of)
        return self._world

    async def call(self, call: ToolCall) -> Turn:
        tool, arguments = tool_named(self._tools, call.name), arguments_of(self._tools, call)
        assert tool is not None
        assert not isinstance(arguments, Outcome)
        try:
            outcome = succeeded(tool.function(self._world, **arguments))
        except Exception as error:
            outcome = failed(error)
        return Turn(Role.TOOL, outcome.result, (), call.call_id)


@pytest.fixture(scope="module", autouse=True)
def _processes() -> Iterator[None]:
    yield
    close_processes()


def theirs(path: Path, most: int, domains: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """The cases and rewards of the package itself. `TAU2_REWARDS` names a folder that keeps them, since they take half an hour."""
    kept = Path(os.environ["TAU2_REWARDS"]) if "TAU2_REWARDS" in os.environ else path
    found = {}
    for domain in domains:
        file = kept / f"{domain}-{most}.json"
        if not file.is_file():
            command = [str(PYTHON), "tau2_itself.py", str(file), str(most), domain]
            subprocess.run(command, cwd=HERE, check=True, timeout=7200, env={**os.environ, "TMPDIR": str(path)})
        found |= json.loads(file.read_text())
    return found


def compared(domain: str, cases: Sequence[dict[str, Any]]) -> tuple[int, list[str]]:
    """The number of cases whose rewards, reasons and read texts are equal, and those that differ."""
    task = cast(type[Tau2Task], Tau2Registry().within(Path(str(PYTHON))).benchmark(domain, HERE))
    rows = {row["id"]: row for row in task()._load_dataset("default")["base"]}
    assert {case["id"] for case in cases} <= rows.keys()
    equal, differences = 0, []
    for case in cases:
        context = MetricContext(**task()._get_context(rows[case["id"]]))
        sample = EpisodeSample(sample_id=case["id"], messages=(), ground_truths=(), context=context, subject="default")
        sides = {role: Said(case["said"][role]) for role in ("assistant", "user")}
        roles = SimpleNamespace(subject=sides["assistant"], user=sides["user"])
        found = json.loads(asyncio.run(task().episode(sample, cast(Roles, roles), cast(Tools, InMemory(task, sample)))))
        ours = (found["reward"], found["reason"], {role: side.read for role, side in sides.items()})
        if ours == (case["reward"], case["reason"], case["read"]):
            equal += 1
        else:
            differences.append(f"{domain} {case['id']} {case['variant']}: {found}, and the package: {case['reward']} {case['reason']}")
    return equal, differences


def temporary_files(folder: Path) -> list[str]:
    return [str(each) for each in folder.iterdir()]


@pytest.mark.timeout(600)
def test_two_tasks_of_each_domain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (left := tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(left))
    close_processes()
    for domain, cases in theirs(tmp_path, 2, ["retail", "telecom"]).items():
        assert compared(domain, cases) == (10, [])
        assert {case["reward"] for case in cases} == {0.0, 1.0}
    assert temporary_files(left) == []


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_all_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (left := tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(left))
    close_processes()
    for domain, cases in theirs(tmp_path, 1000, list(COUNTS)).items():
        assert len({case["id"] for case in cases}) == COUNTS[domain]
        assert compared(domain, cases) == (5 * COUNTS[domain], [])
    assert temporary_files(left) == []
