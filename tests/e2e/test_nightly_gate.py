"""Nights of a real daemon with a fast clock: red if the model got worse, green again, and missed nights are not made up for."""

import textwrap
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest
from fast_clock import FastClock
from hook_server import Hook, hook_server
from scripted_calculator import write_calculator
from ui_servers import RunningUi, running_ui, until

pytestmark = pytest.mark.e2e

CONFIG = """
    models:
      calculator: {backend: scripted, function: "calculator.py:answer"}
    evals:
      sums: {task: arithmetic, limit: 20}
    suites:
      often: {evals: [sums], models: [calculator], cron: "0 * * * *", notify: [GATE_HOOK]}
"""
RUNS = """
    query Runs($filter: RunsFilter!) {
      runsOrError(filter: $filter) { ... on Runs { results { runId status } } }
    }
"""
CHECKS = """
    query Checks($run: ID!) {
      logsForRun(runId: $run) {
        ... on EventConnection {
          events { ... on AssetCheckEvaluationEvent { evaluation { checkName success severity description } } }
        }
      }
    }
"""
SINCE = ".dagster/eval_since"
NIGHT_S = 240
"""The most seconds that a night may take."""
BETWEEN_S = 3600.0


class Checkout:
    """A suite with its home, which servers come to and go from."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "evals.yaml").write_text(textwrap.dedent(CONFIG))
        self.answer()

    def answer(self, error: str = "0") -> None:
        """Set what the model adds to the right answer."""
        write_calculator(self.folder, error=error)

    def ask(self, query: str, **values: object) -> list[tuple[Any, ...]]:
        with duckdb.connect(str(self.folder / "home" / "evals.duckdb"), read_only=True) as catalog:
            return catalog.execute(query, values).fetchall()


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    with hook_server() as hook:
        monkeypatch.setenv("GATE_HOOK", hook.address)
        yield hook


@pytest.mark.long
@pytest.mark.timeout(900)
def test_nights_are_judged_and_missed_ones_are_one(tmp_path: Path, hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = Checkout(tmp_path)
    clock = FastClock(tmp_path, tmp_path / "home", leap_s=BETWEEN_S, most_leaps=20, speed=4.0)
    for name, value in clock.environment.items():
        monkeypatch.setenv(name, value)
    with running_ui(tmp_path / "evals.yaml", tmp_path / "home", tmp_path / "first.out") as ui:
        clock.leap_to_tick(ui.is_running)
        first = _gate(ui, after="", status="SUCCESS")
        assert checkout.ask("select eval, model, verdict from regressions") == [("sums", "calculator", "first result")]
        assert hook.about("worse") == []

        checkout.answer(error="right % 3 == 0")
        clock.leap_to_tick(ui.is_running)
        red = _gate(ui, after=first[SINCE], status="FAILURE")
        assert checkout.ask("select verdict, cause from regressions") == [("regressed", "model")]
        [check] = _checks(ui, red["runId"])
        assert (check["checkName"], check["success"], check["severity"]) == ("nothing_regressed_in_often", False, "ERROR")
        assert "sums on calculator" in check["description"]
        [notice, *_] = hook.about("worse in sums")
        assert "calculator" in notice["message"]
        ticks = [run[SINCE] for run in _runs(ui, "gate_often")]
        assert len(ticks) == len(set(ticks)), "a tick is judged once, and a gate that failed is not tried again"

    checkout.answer()
    for _ in range(3):
        clock.leap()
    with running_ui(tmp_path / "evals.yaml", tmp_path / "home", tmp_path / "second.out") as ui:
        green = _gate(ui, after=red[SINCE], status="SUCCESS")
        nights = [datetime.fromisoformat(run[SINCE]) for run in reversed(_runs(ui, "__anonymous_asset_job_suite_often_schedule"))]
        made_up_for = nights[nights.index(datetime.fromisoformat(red[SINCE])) + 1]
        assert made_up_for - datetime.fromisoformat(red[SINCE]) >= timedelta(seconds=3 * BETWEEN_S), (
            "the last missed tick alone is made up for"
        )
        assert checkout.ask("select verdict, cause from regressions") == [("no change seen", "")], (
            "the baseline is the first night, which passed"
        )
        evaluations = [run["runId"] for run in _runs(ui, "__anonymous_asset_job_suite_often_schedule") if run[SINCE] == green[SINCE]]
        assert len(evaluations) == 1
        assert checkout.ask("select requests_computed from attempts where run_id = $run", run=evaluations[0]) == [(0,)]
        [check] = _checks(ui, green["runId"])
        assert check["success"]


def _gate(ui: RunningUi, *, after: str, status: str) -> dict[str, Any]:
    """The first gate of a later tick that ends so; the one before it may have met an evaluation that was under way."""

    def found() -> dict[str, Any] | None:
        return next((run for run in reversed(_runs(ui, "gate_often")) if run[SINCE] > after and run["status"] == status), None)

    run: dict[str, Any] = until(found, NIGHT_S, lambda: f"no gate after {after} became {status}: {_runs(ui, 'gate_often')}\n{ui.logs()}")
    return run


def _runs(ui: RunningUi, job: str) -> list[dict[str, Any]]:
    """The runs of a job, the newest first, with the tick that they belong to."""
    runs = ui.query(RUNS, filter={"pipelineName": job})["runsOrError"]["results"]
    return [{**run, SINCE: ui.tags(run["runId"])[SINCE]} for run in runs]


def _checks(ui: RunningUi, run: str) -> list[dict[str, Any]]:
    events = ui.query(CHECKS, run=run)["logsForRun"]["events"]
    return [event["evaluation"] for event in events if "evaluation" in event]
