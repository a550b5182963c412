"""The wheel alone, in a virtual environment of its own: a project from nothing, its commands, its user interface, and its removal."""

import csv
import io
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from fresh_environment import FreshEnvironment, build, run
from ui_servers import RunningUi, running_ui, until

pytestmark = [pytest.mark.e2e, pytest.mark.long]

LOADED = """
    query Loaded {
      assetNodes { assetKey { path } isMaterializable }
      repositoriesOrError { ... on RepositoryConnection { nodes {
        location { name } schedules { name cronSchedule scheduleState { status } } sensors { name }
      } } }
      runsOrError { ... on Runs { results { jobName status repositoryOrigin { repositoryLocationName } } } }
    }
"""
TICKS = """
    query Ticks($selector: InstigationSelector!) {
      instigationStateOrError(instigationSelector: $selector) { ... on InstigationState { ticks { status runIds } } }
    }
"""
STATUS = "query Status($run: ID!) { runOrError(runId: $run) { ... on Run { status } } }"
ASSETS = {"dataset_snapshot", "rendered_prompts", "model_outputs", "sample_scores", "task_metrics", "leaderboard", "regressions"}
FINISHED = {"SUCCESS", "FAILURE", "CANCELED"}
TICK_S = 120
RUN_S = 180


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> FreshEnvironment:
    folder = tmp_path_factory.mktemp("fresh")
    fresh = FreshEnvironment(folder)
    fresh.pip("install", str(build(folder)))
    printed = run([fresh.program("python"), "-c", "import eval_dagster; print(eval_dagster.__file__)"], folder, fresh.variables()).stdout
    assert Path(printed.strip()).is_relative_to(fresh.site_packages), "the checkout is not what is tested"
    return fresh


@pytest.fixture(scope="module")
def project(environment: FreshEnvironment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder after `eval-dagster init && eval-dagster run`."""
    folder = tmp_path_factory.mktemp("project")
    done = run(["bash", "-c", "eval-dagster init && eval-dagster run"], folder, environment.variables())
    assert "Leaderboard" in done.stdout
    return folder


def test_a_new_project_has_a_leaderboard(environment: FreshEnvironment, project: Path) -> None:
    printed = run(["eval-dagster", "leaderboard"], project, environment.variables()).stdout
    assert "capitals" in printed
    query = ["eval-dagster", "sql", "select eval, model, n, value from leaderboard order by eval", "--format", "csv"]
    rows = list(csv.DictReader(io.StringIO(run(query, project, environment.variables()).stdout)))
    assert [(row["eval"], row["model"], row["n"]) for row in rows] == [("capitals", "scripted", "10"), ("units", "scripted", "8")]
    assert float(rows[1]["value"]) == 5 / 8


def test_the_suite_is_judged(environment: FreshEnvironment, project: Path) -> None:
    done = run(["eval-dagster", "run", "--suite", "nightly", "--junit", "gate.xml"], project, environment.variables())
    assert "Gate      nightly: First results" in done.stdout
    cases = ElementTree.parse(project / "gate.xml").getroot().iter("testcase")
    assert {str(case.get("classname")).rpartition(".")[2] for case in cases} == {"capitals", "units"}


def test_the_user_interface_shows_assets_and_the_schedule_starts_runs(environment: FreshEnvironment, project: Path) -> None:
    config = project / "evals.yaml"
    config.write_text(config.read_text().replace('cron: "0 2 * * *"', 'cron: "* * * * *"'))
    options = {"python": environment.program("python"), "variables": environment.variables()}
    with running_ui(config, project / ".eval_dagster", project.parent / "ui.out", **options) as ui:
        answer = ui.query(LOADED)
        tick = until(lambda: first_tick(ui), TICK_S, lambda: f"no tick of the schedule\n{ui.logs()}")
        [run_id] = tick["runIds"]
        until(lambda: status_of(ui, run_id) in FINISHED, RUN_S, lambda: f"{status_of(ui, run_id)}\n{ui.logs()}")
        assert status_of(ui, run_id) == "SUCCESS"
    assert {name for node in answer["assetNodes"] if not (name := node["assetKey"]["path"][-1]).endswith("_definition")} == ASSETS
    [repository] = answer["repositoriesOrError"]["nodes"]
    assert repository["location"]["name"] == "eval_dagster"
    [schedule] = repository["schedules"]
    assert (schedule["name"], schedule["scheduleState"]["status"]) == ("suite_nightly_schedule", "RUNNING")
    assert {"suite_gates", "leaderboard_follows_metrics"} <= {sensor["name"] for sensor in repository["sensors"]}
    runs = {each["jobName"]: each["repositoryOrigin"] for each in answer["runsOrError"]["results"]}
    assert runs["evaluate_all"] == {"repositoryLocationName": "eval_dagster"}, "the pages show the runs of the command line"


def first_tick(ui: RunningUi) -> dict[str, Any] | None:
    selector = {"repositoryLocationName": "eval_dagster", "repositoryName": "__repository__", "name": "suite_nightly_schedule"}
    ticks = ui.query(TICKS, selector=selector)["instigationStateOrError"].get("ticks", [])
    return next((tick for tick in reversed(ticks) if tick["status"] == "SUCCESS"), None)


def status_of(ui: RunningUi, run_id: str) -> str:
    return str(ui.query(STATUS, run=run_id)["runOrError"]["status"])


def test_removal_leaves_nothing(environment: FreshEnvironment) -> None:
    """The last test of this file."""
    environment.pip("uninstall", "--yes", "eval_dagster")
    assert environment.files() == environment.files_before
    assert not Path(environment.program("eval-dagster")).exists()
