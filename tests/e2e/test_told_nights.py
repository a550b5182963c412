"""Each red night is told at least once, under one id, whatever the receiver does and whenever the process is killed."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from notice_receivers import NoticeReceiver, notice_receiver
from scripted_calculator import write_calculator
from ui_servers import RunningUi, until

pytestmark = [pytest.mark.e2e, pytest.mark.long]  # test_left_notices.py and test_unsent_notices.py do it by hand

CONFIG = """
    models:
      calculator: {{backend: scripted, function: "calculator.py:answer"}}
    evals:
      sums: {{task: arithmetic, limit: 20}}
    suites:
      nightly: {{evals: [sums], models: [calculator], notify: [PAGER]{cron}}}
"""
KILLS = int(os.environ.get("EVAL_DAGSTER_KILLS", "6"))
NIGHT_S = 300


class Checkout:
    """A suite whose second night and later ones are red."""

    def __init__(self, folder: Path, cron: str = "") -> None:
        self.folder, self.home = folder, folder / "home"
        (folder / "evals.yaml").write_text(textwrap.dedent(CONFIG).format(cron=cron))
        write_calculator(folder)

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        variables = {"EVAL_DAGSTER_CONFIG": str(self.folder / "evals.yaml"), "EVAL_DAGSTER_HOME": str(self.home)}
        environment = {**os.environ, **variables, "DAGSTER_HOME": str(self.home / "dagster")}
        command = [sys.executable, "-m", "eval_dagster.cli.main", *arguments]
        return subprocess.Popen(command, env=environment, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def do(self, *arguments: str) -> tuple[int, str]:
        with self.start(*arguments) as process:
            printed, _ = process.communicate(timeout=300)
        return process.returncode, printed

    def get_worse(self) -> None:
        write_calculator(self.folder, error="right % 3 == 0")

    def judged_red(self) -> set[str]:
        """The runs that judged the suite as regressed."""
        return set(self._ask("select distinct run_id from regressions_history where outcome = 'regressed'"))

    def notices(self, status: str) -> set[str]:
        return set(self._ask(f"select notice_id from notices where status = '{status}'"))

    def told_runs(self) -> list[str]:
        return self._ask("select run_id from notices where kind in ('regression', 'failure')")

    def _ask(self, query: str) -> list[str]:
        with duckdb.connect(str(self.home / "evals.duckdb"), read_only=True) as catalog:
            return [row[0] for row in catalog.execute(query).fetchall()]


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[NoticeReceiver]:
    with notice_receiver() as receiver:
        monkeypatch.setenv("PAGER", receiver.address)
        yield receiver


def _require_told_once(checkout: Checkout, receiver: NoticeReceiver) -> None:
    taken, came = {notice["id"] for notice in receiver.taken}, {notice["id"] for notice in receiver.came}
    assert checkout.notices("sent") <= taken, "said to be sent where it was not"
    assert checkout.notices("sent") == came, "told under another id"
    red = checkout.judged_red()
    told = [run_id for run_id in checkout.told_runs() if run_id in red]
    assert sorted(told) == sorted(red), "each red night has one notice"


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", ["down", "redirects", "busy", "fails", "endless", "slow 5", "slow 60"])
def test_a_red_night_by_the_command_line(tmp_path: Path, receiver: NoticeReceiver, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = Checkout(tmp_path)
    assert checkout.do("run", "--suite", "nightly")[0] == 0
    checkout.get_worse()
    receiver.mode, _, seconds = mode.partition(" ")
    receiver.seconds = float(seconds or 0)
    if mode == "down":
        monkeypatch.setenv("PAGER", "json://127.0.0.1:9/hook?wait=0.05")
    assert checkout.do("run", "--suite", "nightly")[0] == 1
    is_taken = mode.startswith(("slow", "endless"))
    assert len(receiver.taken) == int(is_taken)
    assert len(receiver.came) == {"down": 0, "fails": 4}.get(mode, 1)
    assert bool(checkout.notices("sent")) == is_taken
    receiver.mode = "well"
    monkeypatch.setenv("PAGER", receiver.address)
    checkout.do("check-nights")
    checkout.do("check-nights")
    assert len(receiver.taken) == 1
    _require_told_once(checkout, receiver)


@pytest.mark.timeout(3600)
def test_kills_between_judging_and_sending_by_the_command_line(tmp_path: Path, receiver: NoticeReceiver) -> None:
    checkout, chance = Checkout(tmp_path), random.Random(3)
    assert checkout.do("run", "--suite", "nightly")[0] == 0
    checkout.get_worse()
    judged = checkout.home / "lake" / "regressions" / "suite=nightly"
    for number in range(KILLS):
        before = len(list(judged.glob("*.parquet")))
        receiver.mode, receiver.seconds = chance.choice([("slow", 1.0), ("well", 0.0), ("cuts", 0.0)])
        process = checkout.start("run", "--suite", "nightly")
        until(lambda: process.poll() is not None or len(list(judged.glob("*.parquet"))) > before, NIGHT_S, lambda: "nothing was judged")  # noqa: B023
        time.sleep(chance.uniform(0, 8) * number / KILLS)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    receiver.mode = "well"
    time.sleep(3)  # a younger lock of a run may not be taken yet
    checkout.do("check-nights")
    _, printed = checkout.do("check-nights")
    assert "left unsent" not in printed
    assert "not told" not in printed
    assert len(checkout.judged_red()) >= KILLS
    _require_told_once(checkout, receiver)


@pytest.mark.timeout(1800)
def test_a_daemon_that_is_killed_while_it_sends_tells_it_when_it_starts_again(tmp_path: Path, receiver: NoticeReceiver) -> None:
    checkout = Checkout(tmp_path, cron=', cron: "* * * * *"')
    assert checkout.do("run", "--suite", "nightly")[0] == 0
    checkout.get_worse()
    receiver.mode, receiver.seconds = "slow", 60.0
    ui = RunningUi(tmp_path / "evals.yaml", checkout.home, tmp_path / "first.out")
    try:
        ui.read_addresses()
        until(lambda: receiver.came, NIGHT_S, lambda: ui.logs())
    finally:
        ui.process.kill()
        ui.process.wait()
    assert not receiver.taken
    first = receiver.came[0]["id"]
    time.sleep(20)  # until the processes of the first have ended
    (tmp_path / "evals.yaml").write_text((tmp_path / "evals.yaml").read_text().replace("* * * * *", "0 0 1 1 *"))
    receiver.mode = "well"
    ui = RunningUi(tmp_path / "evals.yaml", checkout.home, tmp_path / "second.out")
    try:
        ui.read_addresses()
        until(lambda: first in {notice["id"] for notice in receiver.taken}, NIGHT_S, lambda: f"{receiver.taken}\n{ui.logs()}")
        time.sleep(45)
    finally:
        ui.interrupt()
        ui.kill()
    checkout.do("check-nights")  # for a gate that Ctrl-C ended
    _require_told_once(checkout, receiver)
