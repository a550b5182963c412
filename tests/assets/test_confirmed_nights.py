"""Nights of a served model by Dagster's jobs: who is notified of a night that is worse by chance, and of one that is worse."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pytest
from hook_server import Hook, hook_server
from served_numbers import answers, chances, unlucky, write_files
from servers.stub import Stub, stub_server

from eval_dagster.assets.instance.instance import open_instance
from eval_dagster.assets.runs.in_process_runs import run_evaluation
from eval_dagster.gate.run_summary import RunSummary
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.project import Project
from eval_dagster.records.judgements import Verdict


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[Stub]:
    with stub_server(tmp_path, answers=answers()) as running:
        yield running


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    with hook_server() as hook:
        monkeypatch.setenv("ADDRESSES", hook.address)
        yield hook


def asked(stub: Stub) -> int:
    return sum(stub.counts().received.values())


@pytest.mark.long
def test_only_a_night_that_fresh_answers_confirm_is_notified(
    tmp_path: Path, stub: Stub, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home" / "dagster"))
    each = chances()
    stub.change(chances=each, luck=unlucky(each))
    _night(tmp_path, stub, 1)
    unlucky_night = _night(tmp_path, stub, 2)
    assert unlucky_night.gate is not None
    [row] = unlucky_night.gate.regressions
    assert (row.verdict, row.confirmation) == (Verdict.NO_CHANGE_SEEN, "refuted")
    assert _status(tmp_path, unlucky_night) is dg.DagsterRunStatus.SUCCESS
    assert hook.notices == []
    page = Path(unlucky_night.report or "").read_text()
    assert "What was not confirmed" in page
    assert "200 samples: difference" in page

    stub.change(chances={part: 0.0 if int(part.split()[-1]) % 7 == 0 else chance for part, chance in each.items()})
    worse = _night(tmp_path, stub, 3)
    assert worse.gate is not None
    [row] = worse.gate.regressions
    assert (row.verdict, row.confirmation) == (Verdict.REGRESSED, "confirmed")
    assert _status(tmp_path, worse) is dg.DagsterRunStatus.FAILURE
    [notice] = hook.about("worse in numbers")
    assert "; confirmed: " not in notice["message"]
    assert "confirmed: " in notice["message"]
    lake = Project.open(config_path=tmp_path / "evals.yaml", home=tmp_path / "home").lake
    found = read_rows(lake, "select confirmation, n_fresh from regressions_history order by judged_at")
    assert [tuple(each.values()) for each in found] == [(None, None), ("refuted", 200), ("confirmed", row.n_fresh)]
    assert len(read_rows(lake, "select * from confirmations")) == 200 + (row.n_fresh or 0)


def _night(folder: Path, stub: Stub, number: int) -> RunSummary:
    write_files(folder, stub.base_url, user=f"night {number}")
    return run_evaluation(Project.open(config_path=folder / "evals.yaml", home=folder / "home"), ["numbers"], ["served"], suite="nightly")


def _status(folder: Path, night: RunSummary) -> dg.DagsterRunStatus:
    with open_instance(folder / "home") as instance:
        run = instance.get_run_by_id(night.run_ids[-1])
        assert run is not None
        return run.status


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path, stub: Stub, hook: Hook) -> Start:
    """Start a night by the command line."""

    def start(number: int) -> "subprocess.Popen[str]":
        write_files(tmp_path, stub.base_url, user=f"night {number}")
        environment = {name: value for name, value in os.environ.items() if name not in ("DAGSTER_HOME", "EVAL_DAGSTER_HOME")}
        environment |= {"EVAL_DAGSTER_CONFIG": str(tmp_path / "evals.yaml"), "ADDRESSES": hook.address}
        command = [sys.executable, "-m", "eval_dagster.cli", "run", "--suite", "nightly"]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return start


@pytest.mark.long
def test_a_killed_gate_does_not_ask_again_what_was_answered(start: Start, stub: Stub) -> None:
    each = chances()
    stub.change(chances=each, luck=unlucky(each))
    output, errors = start(1).communicate(timeout=300)
    assert "First results" in output, errors
    stub.change(slots=4, base_s=0.02)  # the gate asks for seconds
    gate = start(2)
    deadline = time.monotonic() + 300
    while sum(stub.counts().answered.values()) < 450 and time.monotonic() < deadline:
        time.sleep(0.02)
    gate.send_signal(signal.SIGKILL)
    gate.communicate()
    assert 450 <= sum(stub.counts().answered.values()) < 600
    output, errors = start(2).communicate(timeout=300)
    assert "confirmed: " in output, errors
    assert "200 were asked again" in " ".join(output.split())
    assert asked(stub) <= 600 + 2 * 8, "no more than were under way at the kill are asked again"
