"""The first screen after a command, and a suite launched by a click: evaluated whole, judged once, and shown fresh."""

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pytest
from playwright.sync_api import Page, expect
from scripted_calculator import write_calculator
from ui_servers import REPOSITORY, RunningUi, running_ui, until

pytestmark = pytest.mark.e2e

CONFIG = """
    models:
      calculator: {backend: scripted, function: "calculator.py:answer"}
      unused: {backend: scripted, default: " 9"}
      sevens: {backend: scripted, default: " 7"}
    evals:
      sums: {task: arithmetic, limit: 3}
      unused: {task: arithmetic, limit: 2}
      capitals: {task: capitals, limit: 1}
    suites:
      nightly: {evals: [sums, capitals], models: [calculator, sevens]}
"""
SUITE = sorted(f"{name}|{model}" for name in ("sums", "capitals") for model in ("calculator", "sevens"))
STAGES = ("dataset_snapshot", "rendered_prompts", "model_outputs", "sample_scores", "task_metrics")
RUNS = """
    query Runs($filter: RunsFilter!) {
      runsOrError(filter: $filter) { ... on Runs { results { runId status jobName } } }
    }
"""
STALENESS = """
    query Staleness($asset: AssetKeyInput!) {
      assetNodeOrError(assetKey: $asset) {
        ... on AssetNode {
          partitionKeys
          staleStatusByPartition
          staleCausesByPartition { partitionKey category reason dependency { path } }
        }
      }
    }
"""
STALENESS_OF_WHOLE = """
    query Staleness($asset: AssetKeyInput!) { assetNodeOrError(assetKey: $asset) { ... on AssetNode { staleStatus } } }
"""
ENDED = {"SUCCESS", "FAILURE", "CANCELED"}
RUN_S = 240
SCREENSHOTS = os.environ.get("EVAL_DAGSTER_SCREENSHOTS")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a command has evaluated one eval."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "evals.yaml").write_text(textwrap.dedent(CONFIG))
    write_calculator(folder)
    home = folder / "home"
    environment = os.environ | {"EVAL_DAGSTER_CONFIG": str(folder / "evals.yaml"), "EVAL_DAGSTER_HOME": str(home)}
    environment["DAGSTER_HOME"] = str(home / "dagster")
    command = [sys.executable, "-m", "eval_dagster.cli", "run", "--suite", "nightly", "--eval", "sums"]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, check=False, timeout=300)
    assert done.returncode == 1, "the suite is incomplete"
    return folder


@pytest.fixture(scope="module")
def ui(checkout: Path) -> Iterator[RunningUi]:
    with running_ui(checkout / "evals.yaml", checkout / "home", checkout / "ui.out") as ui:
        yield ui


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_first_screen_shows_the_runs_of_the_command(ui: RunningUi, page: Page, tmp_path: Path) -> None:
    assert {run["jobName"] for run in _runs(ui)} == {"suite_nightly", "refresh_leaderboard", "gate_nightly"}
    page.goto(ui.dagster)
    for job in ("suite_nightly", "refresh_leaderboard", "gate_nightly"):
        expect(page.get_by_text(job, exact=True).first).to_be_visible()
    _picture(page, tmp_path, "first_screen")
    page.goto(f"{ui.dagster}/locations/eval_dagster/jobs/suite_nightly/runs")
    expect(page.get_by_text(_runs(ui, "suite_nightly")[0]["runId"][:8]).first).to_be_visible()
    assert _stale(ui) == {}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_suite_launched_by_a_click_is_evaluated_whole_and_judged(ui: RunningUi, page: Page, tmp_path: Path) -> None:
    before = {run["runId"] for run in _runs(ui)}
    page.goto(f"{ui.dagster}/locations/eval_dagster/jobs/suite_nightly/playground")
    _picture(page, tmp_path, "launchpad")
    page.get_by_role("button", name=re.compile("Launch Run", re.IGNORECASE)).click()
    expect(page.get_by_text("suite_nightly").first).to_be_visible()
    run = until(lambda: _new(ui, before, "suite_nightly"), RUN_S, lambda: f"the run has not ended\n{ui.logs()}")
    assert run["status"] == "SUCCESS"
    for stage in STAGES:
        made = sorted(partition for partition, status in _statuses(ui, stage).items() if status != "MISSING")
        assert made == (SUITE if stage != "dataset_snapshot" else ["capitals", "sums"]), stage
    _picture(page, tmp_path, "run")

    gate = until(lambda: _new(ui, before, "gate_nightly"), RUN_S, lambda: f"no gate has ended\n{ui.logs()}")
    assert gate["status"] == "SUCCESS"
    with duckdb.connect(str(ui.home / "evals.duckdb"), read_only=True) as catalog:
        judged = catalog.execute("select distinct eval || '|' || model, run_id from regressions order by all").fetchall()
    assert judged == [(partition, gate["runId"]) for partition in SUITE]

    until(lambda: _stale(ui) == {}, RUN_S, lambda: f"{_stale(ui)}\n{ui.logs()}")
    page.goto(f"{ui.dagster}/assets/task_metrics?view=partitions")
    page.get_by_title("sums", exact=True).click()
    page.get_by_title("sevens", exact=True).click()
    expect(page.get_by_text("Materialized", exact=True).first).to_be_visible()
    expect(page.get_by_text(re.compile("Unsynced|Upstream data"))).to_have_count(0)
    _picture(page, tmp_path, "partition")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_two_launches_and_one_that_fails_are_judged_once_each(ui: RunningUi, checkout: Path, page: Page) -> None:
    """A model breaks: the other goes on, the gate says what could not be evaluated, and the failed run can be executed again."""
    before = {run["runId"] for run in _runs(ui)}
    (checkout / "calculator.py").write_text("raise OSError('the weights are gone')")
    for count in (1, 2):  # one after the other: of two that are over at once, the gate of the later one judges both
        page.goto(f"{ui.dagster}/locations/eval_dagster/jobs/suite_nightly/playground")
        page.get_by_role("button", name=re.compile("Launch Run", re.IGNORECASE)).click()
        expect(page.get_by_text("suite_nightly").first).to_be_visible()
        gates = until(partial(_ended, ui, before, "gate_nightly", count), RUN_S, lambda: f"{_runs(ui)}\n{ui.logs()}")
    launched = _ended(ui, before, "suite_nightly", 2)
    assert len({ui.tags(gate["runId"])[".dagster/eval_since"] for gate in gates}) == 2
    assert launched is not None
    assert [run["status"] for run in launched] == ["FAILURE", "FAILURE"]
    with duckdb.connect(str(ui.home / "evals.duckdb"), read_only=True) as catalog:
        query = "select eval || '|' || model, status from attempts where run_id = $run order by all"
        outcomes = catalog.execute(query, {"run": launched[0]["runId"]}).fetchall()
    assert outcomes == [(partition, "ok" if "sevens" in partition else "failed") for partition in SUITE]

    write_calculator(checkout)
    before = {run["runId"] for run in _runs(ui)}
    page.goto(f"{ui.dagster}/runs/{launched[0]['runId']}")
    page.get_by_role("button", name=re.compile("Re-execute")).first.click()
    again = until(lambda: _new(ui, before, "suite_nightly"), RUN_S, lambda: f"{_runs(ui)}\n{ui.logs()}")
    assert again["status"] == "SUCCESS"
    until(lambda: _new(ui, before, "gate_nightly"), RUN_S, lambda: f"no gate has ended\n{ui.logs()}")
    assert len(_ended(ui, before, "gate_nightly", 1) or []) == 1


def _runs(ui: RunningUi, job: str | None = None) -> list[dict[str, Any]]:
    """Runs, the newest first."""
    return list(ui.query(RUNS, filter={"pipelineName": job} if job else {})["runsOrError"]["results"])


def _ended(ui: RunningUi, before: set[str], job: str, count: int) -> list[dict[str, Any]] | None:
    """The runs of a job since then, once so many of them have ended."""
    runs = [run for run in _runs(ui, job) if run["runId"] not in before and run["status"] in ENDED]
    return runs if len(runs) >= count else None


def _new(ui: RunningUi, before: set[str], job: str) -> dict[str, Any] | None:
    runs = _ended(ui, before, job, 1)
    return runs[0] if runs else None


def _node(ui: RunningUi, asset: str, query: str = STALENESS) -> dict[str, Any]:
    node: dict[str, Any] = ui.query(query, asset={"path": [asset]})["assetNodeOrError"]
    return node


def _statuses(ui: RunningUi, asset: str) -> dict[str, str]:
    node = _node(ui, asset)
    return dict(zip(node["partitionKeys"], node["staleStatusByPartition"], strict=True))


def _stale(ui: RunningUi) -> dict[str, Any]:
    """Why partitions, or whole assets, are stale, as the pages say it."""
    found = {stage: [cause for causes in _node(ui, stage)["staleCausesByPartition"] for cause in causes] for stage in STAGES}
    whole = {asset: _node(ui, asset, STALENESS_OF_WHOLE)["staleStatus"] for asset in ("leaderboard", "regressions")}
    return {asset: causes for asset, causes in found.items() if causes} | {
        asset: status for asset, status in whole.items() if status != "FRESH"
    }


def _picture(page: Page, folder: Path, name: str) -> None:
    page.screenshot(path=Path(SCREENSHOTS or folder) / f"{name}.png")
