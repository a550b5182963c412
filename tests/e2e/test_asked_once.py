"""Several `run` at once on one home: each request is asked once, also where one of them is killed."""

import os
import re
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from home_states import table_rows
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


class Commands:
    """Commands on one home, whose model writes down what each process asks."""

    def __init__(self, folder: Path) -> None:
        self.place = Workplace(folder, CONFIG)
        self.logs: list[Path] = []
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, answer_s: float) -> "subprocess.Popen[bytes]":
        log = self.place.folder / f"asked-{len(self.logs)}.log"
        self.logs.append(log)
        process = self.place.start(answer_s, more={"ASKED_LOG": str(log)})
        self.processes.append(process)
        return process

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
    pids = {str(process.pid) for process in commands.processes}
    assert said, commands.place.output()
    assert {pid for _, pid in said} <= pids


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
        assert table_rows(commands.place.folder / "home", name) == table_rows(calm.place.folder / "home", name)
