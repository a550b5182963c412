"""Ctrl-C, SIGTERM and *Terminate* in the UI: what is done is kept, the run ends at once, and the next one goes on from there."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ui_servers import RunningUi, until
from workplaces import ANSWER, Workplace, flushed_in, wait_until

pytestmark = pytest.mark.e2e

SLOWED = str(Path(__file__).with_name("slowed_run.py"))
TINY = """
    models:
      tiny: {{backend: transformers, source: {{folder: {folder}}}, device: cpu}}
    evals:
      capitals: {{task: capitals, num_fewshot: 1, limit: 20}}
"""
SLOW = """
    models:
      slow: {backend: scripted, function: "answer.py:answer"}
    evals:
      sums: {task: arithmetic, num_fewshot: 2}
"""
LAUNCH = """
    mutation Launch($parameters: ExecutionParams!) {
      launchRun(executionParams: $parameters) { __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } }
    }
"""
TERMINATE = """
    mutation Terminate($run: String!) { terminateRun(runId: $run) { __typename } }
"""
STATUS = """
    query Status($run: ID!) { runOrError(runId: $run) { ... on Run { status } } }
"""


@pytest.mark.timeout(150)
@pytest.mark.parametrize("sent", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_an_interrupted_run_keeps_every_answer_and_the_next_asks_for_the_rest(tmp_path: Path, sent: signal.Signals) -> None:
    workplace = Workplace(tmp_path, SLOW)
    process = workplace.start(answer_s=0.05)
    wait_until(lambda: len(workplace.asked()) > 10, process)
    process.send_signal(sent)
    started = time.monotonic()
    assert process.wait(timeout=30) == 130, workplace.output()
    assert time.monotonic() - started < 5, "it leaves at once"
    asked, kept = set(workplace.asked()), workplace.flushed()
    assert len(asked) < 200, "there is something left to do"
    assert len(asked - kept) <= 1, "only the request in hand may be lost"
    assert "the next run continues from there" in workplace.output()

    assert workplace.start().wait(timeout=60) == 0, workplace.output()
    assert not kept & set(workplace.asked()), "nothing that was kept is asked again"
    assert workplace.flushed() == kept | set(workplace.asked())


@pytest.mark.long
@pytest.mark.timeout(150)
def test_an_interruption_within_a_pass_waits_for_no_other_pass(tmp_path: Path, tiny_model: Path) -> None:
    workplace = Workplace(tmp_path, TINY.format(folder=tiny_model))
    log = tmp_path / "passes.log"
    process = workplace.start(command=[SLOWED], more={"PASSES_LOG": str(log), "LONG_PASS": "4"})
    wait_until(lambda: log.exists() and "pass 4" in log.read_text(), process)
    assert "over" not in log.read_text(), "the operation is too short for this test"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130, workplace.output()
    assert log.read_text().splitlines()[3:] == ["pass 4"], "neither the pass goes on nor another one comes"
    kept = workplace.flushed()
    assert kept, "what the passes before had answered is kept"

    assert workplace.start().wait(timeout=60) == 0, workplace.output()
    assert kept < workplace.flushed()
    assert f"{len(kept)} answered from the cache" in workplace.output()


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_run_that_the_ui_terminates_keeps_every_answer(start_ui: Callable[..., RunningUi]) -> None:
    answer = ANSWER.replace('Path(os.environ["ASKED_LOG"])', 'Path(__file__).with_name("asked.log")')
    answer = answer.replace('float(os.environ["ANSWER_S"])', "0.2")
    ui = start_ui(SLOW, {"answer.py": answer})
    log = ui.home.parent / "asked.log"
    run = _launch(ui)
    until(lambda: log.exists() and len(log.read_text().split()) > 10, 120, lambda: f"{_status(ui, run)}\n{ui.logs()}")
    before = set(log.read_text().split())
    assert ui.query(TERMINATE, run=run)["terminateRun"]["__typename"] == "TerminateRunSuccess"
    until(lambda: len(before - flushed_in(ui.home)) <= 1, 10, lambda: f"answers are missing\n{ui.logs()}")
    until(lambda: _status(ui, run) == "CANCELED", 60, lambda: f"{_status(ui, run)}\n{ui.logs()}")
    asked = set(log.read_text().split())
    assert len(asked - flushed_in(ui.home)) <= 1
    time.sleep(1)
    assert set(log.read_text().split()) == asked, "nobody works on"


def _launch(ui: RunningUi) -> str:
    selector = {"repositoryLocationName": "eval_dagster", "repositoryName": "__repository__", "jobName": "evaluate_all"}
    launched: dict[str, Any] = ui.query(LAUNCH, parameters={"selector": selector})["launchRun"]
    assert launched["__typename"] == "LaunchRunSuccess", launched
    return str(launched["run"]["runId"])


def _status(ui: RunningUi, run: str) -> str:
    return str(ui.query(STATUS, run=run)["runOrError"]["status"])
