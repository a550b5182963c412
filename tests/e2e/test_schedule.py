"""A suite's cron fires in the real daemon: a model that fails to load stops no other, the leaderboard follows, and the gate says so."""

from collections.abc import Callable
from typing import Any

import duckdb
import pytest
from ui_servers import RunningUi, until

pytestmark = [pytest.mark.e2e, pytest.mark.long]  # test_nightly_gate.py has the cron of a real daemon too

CONFIG = """
    models:
      broken: {backend: scripted, function: "broken.py:answer"}
      steady: {backend: scripted, default: " 7"}
      other: {backend: scripted, default: " 8"}
    evals:
      sums: {task: arithmetic, num_fewshot: 1, limit: 5}
      capitals: {task: capitals, num_fewshot: 1, limit: 5}
    suites:
      often:
        evals: [sums, capitals]
        models: [broken, steady, other]
        baseline: steady
        cron: "* * * * *"
"""
BROKEN = """
    raise OSError("the weights are gone")
"""
TICKS = """
    query Ticks($selector: InstigationSelector!) {
      instigationStateOrError(instigationSelector: $selector) { ... on InstigationState { ticks { status runIds error { message } } } }
    }
"""
RUNS = """
    query Runs($filter: RunsFilter) {
      runsOrError(filter: $filter) { ... on Runs { results { runId status startTime tags { key value } } } }
    }
"""
FAILURE = """
    query Failure($run: ID!) {
      logsForRun(runId: $run) { ... on EventConnection { events { __typename ... on ExecutionStepFailureEvent { error { message } } } } }
    }
"""
MATERIALIZATIONS = """
    query Materializations($asset: AssetKeyInput!) {
      assetOrError(assetKey: $asset) { ... on Asset { assetMaterializations { timestamp partition runId } } }
    }
"""
FINISHED = {"SUCCESS", "FAILURE", "CANCELED"}
TICK_S = 120
RUN_S = 180
SENSOR_S = 120


def test_the_cron_fires_and_one_broken_model_stops_no_other(start_ui: Callable[..., RunningUi]) -> None:
    ui = start_ui(CONFIG, {"broken.py": BROKEN})

    tick = until(lambda: _first_tick(ui), TICK_S, lambda: f"no tick of the schedule\n{ui.logs()}")
    runs = until(lambda: _finished(ui, tick["runIds"]), RUN_S, lambda: f"{_runs(ui, tick['runIds'])}\n{ui.logs()}")

    assert {model: run["status"] for model, run in runs.items()} == {
        "steady": "SUCCESS",
        "other": "SUCCESS",
        "broken": "FAILURE",
    }
    events = ui.query(FAILURE, run=runs["broken"]["runId"])["logsForRun"]["events"]
    message = next(event["error"]["message"] for event in events if event["__typename"] == "ExecutionStepFailureEvent")
    assert "2 partitions failed" in message
    assert "the weights are gone" in message

    metrics = [each for each in _materializations(ui, "task_metrics") if each["runId"] == runs["steady"]["runId"]]
    assert {each["partition"] for each in metrics} == {"sums|steady", "capitals|steady"}
    newest = max(int(each["timestamp"]) for each in metrics)
    refreshed = until(
        lambda: next((each for each in _materializations(ui, "leaderboard") if int(each["timestamp"]) > newest), None),
        SENSOR_S,
        lambda: f"the leaderboard was not refreshed\n{ui.logs()}",
    )
    assert _tags(_runs(ui, [refreshed["runId"]])[0])["dagster/from_automation_condition"] == "true"

    with duckdb.connect(str(ui.home / "evals.duckdb"), read_only=True) as catalog:
        measured = catalog.execute("select distinct eval, model from metrics where n > 0").fetchall()
        ranked = catalog.execute("select eval, model, rank from leaderboard").fetchall()
    assert sorted(measured) == [(name, model) for name in ("capitals", "sums") for model in ("other", "steady")]
    assert {(name, model) for name, model, _ in ranked} == set(measured)

    gate = until(lambda: _gate(ui), SENSOR_S, lambda: f"no gate has ended\n{ui.logs()}")
    assert gate["status"] == "FAILURE", "the suite is incomplete"
    with duckdb.connect(str(ui.home / "evals.duckdb"), read_only=True) as catalog:
        judged = catalog.execute("select eval, model, verdict, reason from regressions order by all").fetchall()
        told = catalog.execute("select kind, body from notices").fetchall()
    assert [row[:3] for row in judged if row[1] == "other"] == [
        ("capitals", "other", "no change seen"),
        ("sums", "other", "no change seen"),
    ]
    assert [row[:3] for row in judged if row[1] == "broken"] == [(name, "broken", "not evaluated") for name in ("capitals", "sums")]
    assert all("the weights are gone" in row[3] for row in judged if row[1] == "broken")
    assert "incomplete" in {kind for kind, _ in told}
    assert all("the weights are gone" in body for kind, body in told if kind == "incomplete")


def _first_tick(ui: RunningUi) -> dict[str, Any] | None:
    """The oldest tick that asked for runs."""
    selector = {"repositoryLocationName": "eval_dagster", "repositoryName": "__repository__", "name": "suite_often_schedule"}
    ticks = ui.query(TICKS, selector=selector)["instigationStateOrError"].get("ticks", [])
    assert not [tick for tick in ticks if tick["error"]], ticks
    return next((tick for tick in reversed(ticks) if tick["status"] == "SUCCESS"), None)


def _runs(ui: RunningUi, run_ids: list[str]) -> list[dict[str, Any]]:
    return list(ui.query(RUNS, filter={"runIds": run_ids})["runsOrError"]["results"])


def _finished(ui: RunningUi, run_ids: list[str]) -> dict[str, dict[str, Any]] | None:
    """Runs by model, once all have ended."""
    runs = {_tags(run)["eval_dagster/model"]: run for run in _runs(ui, run_ids)}
    return runs if all(run["status"] in FINISHED for run in runs.values()) else None


def _gate(ui: RunningUi) -> dict[str, Any] | None:
    """The first run of the gate, once it has ended."""
    runs = ui.query(RUNS, filter={"pipelineName": "gate_often"})["runsOrError"]["results"]
    return next((run for run in reversed(runs) if run["status"] in FINISHED), None)


def _tags(run: dict[str, Any]) -> dict[str, str]:
    return {tag["key"]: tag["value"] for tag in run["tags"]}


def _materializations(ui: RunningUi, asset: str) -> list[dict[str, Any]]:
    return list(ui.query(MATERIALIZATIONS, asset={"path": [asset]})["assetOrError"].get("assetMaterializations", []))
