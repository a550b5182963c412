"""Several `run` at once on one home, or on machines that share a lake: each request is asked once, also where one of them is killed."""

import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from home_states import table_rows
from servers.object_store import ObjectStore, moto_store, unreliable
from workplaces import Workplace

pytestmark = pytest.mark.e2e

CONFIG = """
    models:
      slow: {backend: scripted, function: "answer.py:answer"}
    evals:
      sums: {task: arithmetic, num_fewshot: 2, limit: 10}
      names: {task: capitals_completion, limit: 4}
"""
NEEDED = 30 + 24
PROGRAM = Path(__file__).with_name("impatient_run.py")
FAULTS = 0.15
STORED_S = 0.8
"""A killed machine takes the answers along that it was putting into the store, which answers late where it fails."""


class Commands:
    """Commands on one home, whose model writes down what each process asks. With `variables` each is a machine with a home of its own."""

    def __init__(self, folder: Path, variables: Mapping[str, str] | None = None) -> None:
        self.variables = variables
        self.folder = folder
        self.place = Workplace(folder, CONFIG)
        self.logs: list[Path] = []
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, answer_s: float) -> None:
        number = len(self.logs)
        self.logs.append(self.folder / f"asked-{number}.log")
        more = {"ASKED_LOG": str(self.logs[-1])}
        if self.variables is None:
            self.processes.append(self.place.start(answer_s, more=more))
            return
        home = str(self.home(number))
        more |= {**self.variables, "EVAL_DAGSTER_HOME": home, "DAGSTER_HOME": f"{home}/dagster"}
        self.processes.append(self.place.start(answer_s, command=(str(PROGRAM),), more=more))

    def home(self, number: int) -> Path:
        return self.folder / ("home" if self.variables is None else f"home-{number}")

    def asked(self, number: int) -> list[str]:
        return self.logs[number].read_text().split() if self.logs[number].exists() else []

    def all_asked(self) -> list[str]:
        return [name for number in range(len(self.logs)) for name in self.asked(number)]

    def first_to_ask(self) -> int:
        """The command that asks; waits for it."""
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            for number in range(len(self.logs)):
                if self.asked(number):
                    return number
            time.sleep(0.02)
        raise AssertionError(f"no run asked the model\n{self.place.output()}")

    def wait(self) -> None:
        for process in self.processes:
            assert process.wait(timeout=240) == 0, self.place.output()


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("count", [2, 3, 5])
def test_several_runs_at_once_ask_what_one_asks(tmp_path: Path, count: int) -> None:
    commands = Commands(tmp_path)
    for _ in range(count):
        commands.start(answer_s=0.1)
    commands.wait()
    asked = commands.all_asked()
    assert len(asked) == len(set(asked)) == NEEDED
    said = re.findall(r"(\d+) requests are already being asked by process (\d+) on", commands.place.output())
    assert said, commands.place.output()


@pytest.mark.long
@pytest.mark.timeout(400)
def test_who_waits_takes_over_from_one_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "calm").mkdir()
    (tmp_path / "killed").mkdir()
    calm, commands = Commands(tmp_path / "calm"), Commands(tmp_path / "killed")
    calm.start(answer_s=0)
    calm.wait()
    for _ in range(3):
        commands.start(answer_s=0.3)
    first = commands.first_to_ask()
    while "already being asked" not in commands.place.output():
        time.sleep(0.05)
    victim = commands.processes.pop(first)
    os.killpg(victim.pid, signal.SIGKILL)
    victim.wait()
    assert len(commands.asked(first)) < NEEDED, "the run ended before it could be killed"
    commands.wait()
    asked = Counter(commands.all_asked())
    assert set(asked) == set(calm.all_asked())
    assert sum(asked.values()) <= NEEDED + 1, "more than the request under way at the kill was asked twice"
    for name in ("scores", "responses"):
        assert table_rows(commands.home(0), name) == table_rows(calm.home(0), name)


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    pytest.importorskip("obstore", reason="object storage is not installed: pip install 'eval_dagster[s3]'")
    with moto_store(tmp_path_factory.mktemp("moto")) as store:
        yield store


@pytest.mark.long
@pytest.mark.timeout(500)
@pytest.mark.parametrize(("count", "is_killed"), [(2, False), (3, True)])
def test_machines_that_share_a_lake_ask_what_one_asks(tmp_path: Path, moto: ObjectStore, count: int, is_killed: bool) -> None:
    answer_s = 0.3
    with unreliable(moto, tmp_path, share=FAULTS) as proxy:
        lake = {**proxy.variables, "EVAL_DAGSTER_LAKE": proxy.url(f"{count}-machines")}
        commands = Commands(tmp_path, lake)
        for _ in range(count):
            commands.start(answer_s)
        if is_killed:
            first = commands.first_to_ask()
            while len(commands.asked(first)) < NEEDED // 2 or "already being asked" not in commands.place.output():
                assert commands.processes[first].poll() is None, commands.place.output()
                time.sleep(0.05)
            victim = commands.processes.pop(first)
            os.killpg(victim.pid, signal.SIGKILL)
            victim.wait()
        commands.wait()
        assert proxy.counts()["faults"]
    asked = commands.all_asked()
    assert len(set(asked)) == NEEDED
    assert len(asked) - NEEDED <= (1 + STORED_S / answer_s if is_killed else 0), (
        "more was asked twice than the killed machine had not stored"
    )
    assert "already being asked" in commands.place.output()
