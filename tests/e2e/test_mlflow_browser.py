"""MLflow's own pages in a real headless Chromium: the columns that all results share, the table of subjects, the page of samples."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Iterator

import pytest
from playwright.sync_api import ConsoleMessage, Page, expect
from ui_servers import free_ports, until

from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, StageResult

pytestmark = pytest.mark.e2e

CONFIG = """
    models:
      sevens: {backend: scripted, default: " 7", answers: {"is 14 * 14?": " 196", "is 5 * 9?": " 45", "is 4 * 9?": " 36"}}
    evals:
      sums: {task: arithmetic, limit: 10}
      capitals: {task: capitals, limit: 10}
    public_url: {mlflow: "https://mlflow.example"}
"""
EVALS = ("sums", "capitals")
START_S = 300


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A home with the results of two evals whose headline metrics differ."""
    folder = tmp_path_factory.mktemp("results")
    (folder / "evals.yaml").write_text(textwrap.dedent(CONFIG))
    project = Project.open(config_path=folder / "evals.yaml", home=folder / "home")
    partitions = [(name, "sevens") for name in EVALS]
    outcomes = list(evaluate(project, partitions, stages=set(STAGES), run_id="run", reporter=SilentReporter()))
    assert all(isinstance(each, StageResult) for each in outcomes), outcomes
    return project


@pytest.fixture(scope="module")
def mlflow(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the MLflow server of `eval-dagster ui` on this home."""
    [port] = free_ports(1)
    log_path = tmp_path_factory.mktemp("server") / "mlflow.log"
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", project.tracker.prepare()]
    command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1", "--app-name", "eval-dagster"]
    variables = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with log_path.open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=variables, start_new_session=True)
        try:
            until(lambda: process.poll() is not None or _answers(port), START_S, log_path.read_text)
            assert process.poll() is None, log_path.read_text()
            yield f"http://127.0.0.1:{port}"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
        return True
    return False


@pytest.fixture
def opened(page: Page, mlflow: str) -> Page:
    """MLflow's pages without its assistant, which would cover a third of them, and for models."""
    seen = "localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true')"
    page.add_init_script(f"if (window === window.top) {seen}")  # before it can open
    page.goto(mlflow)
    page.get_by_text("Model training", exact=True).click()
    return page


@pytest.mark.long
def test_the_table_of_runs_has_the_score_of_each_eval_in_the_same_columns(opened: Page, mlflow: str, project: Project) -> None:
    opened.set_viewport_size({"width": 2000, "height": 800})  # columns out of view are not drawn
    [experiment] = {run.split("/")[-3] for run in _links(project).values()}
    opened.goto(f"{mlflow}/#/experiments/{experiment}/runs")
    for name in EVALS:
        expect(opened.get_by_role("link", name=f"{name} · sevens")).to_be_visible()
    opened.get_by_role("button", name="Columns", exact=True).click()
    columns = opened.get_by_role("dialog")
    for name in ("score", "stderr", "n"):
        columns.get_by_placeholder("Search columns").fill(name)
        columns.locator("[class*=tree-node-content-wrapper]").filter(has_text=re.compile(rf"^{name}$")).first.click()
    opened.keyboard.press("Escape")
    facts = read_rows(project.lake, "select eval, metric, value, stderr, n from metrics where is_headline")
    assert len({row["metric"] for row in facts}) == len(EVALS)
    for row in facts:
        index = opened.locator("[role=row]", has=opened.get_by_role("link", name=f"{row['eval']} · sevens")).get_attribute("row-index")
        cells = opened.locator(f"[role=row][row-index='{index}']")
        for name, column in (("score", "value"), ("stderr", "stderr"), ("n", "n")):
            shown = cells.locator(f"[col-id='metrics.`{name}`']").inner_text()
            assert float(shown) == pytest.approx(row[column], abs=0.001), (row["eval"], name)


@pytest.mark.long
def test_the_subjects_are_a_table_that_fits_and_the_page_of_samples_works_in_its_frame(opened: Page, mlflow: str, project: Project) -> None:
    errors: list[str] = []
    opened.on("console", lambda message: errors.extend(_error_of_page(message)))
    opened.on("pageerror", lambda error: errors.append(str(error)))
    link = f"{mlflow}/#{_links(project)['sums'].partition('#')[2]}"
    opened.goto(f"{link}/artifacts/subjects.json")
    for header in ("subject", "score", "stderr", "95 % interval", "n"):
        expect(opened.get_by_role("columnheader").get_by_role("button", name=header, exact=True)).to_be_in_viewport(ratio=1)
    [row] = read_rows(project.lake, "select * from metrics where eval = 'sums' and subject = 'multiplication'")
    assert 0 < row["value"] < 1
    shown = opened.get_by_role("row").filter(has=opened.get_by_text("multiplication", exact=True))
    expect(shown).to_contain_text(f"{row['ci_low']:.3f} to {row['ci_high']:.3f}")
    for text in (f"{round(row['value'], 4):g}", f"{round(row['stderr'], 4):g}", str(row["n"])):
        expect(shown.get_by_role("cell", name=text, exact=True).first).to_be_in_viewport(ratio=1)
    expect(opened.get_by_role("row").nth(2)).to_contain_text("multiplication")
    opened.get_by_role("columnheader").get_by_role("button", name="score", exact=True).click()
    expect(opened.get_by_role("row").nth(2)).not_to_contain_text("multiplication")  # the highest of three is now first or last

    opened.get_by_text("samples.html", exact=True).first.click()
    frame = opened.frame_locator("iframe")
    expect(frame.locator("#count")).to_have_text("30 samples")
    kinds = frame.get_by_role("group", name="Kind of samples")
    wrong = kinds.get_by_role("button", name=re.compile("Wrong"))
    number = wrong.inner_text().split()[-1]
    assert int(number) > 0
    wrong.click()
    expect(frame.locator("#count")).to_have_text(f"{number} of 30 samples" if number != "30" else "30 samples")
    frame.get_by_label("Subject").select_option("addition")
    expect(frame.locator("#count")).to_contain_text("of 30 samples")
    second = frame.locator(".row").nth(1)
    second.click()
    opened.keyboard.press("k")
    expect(frame.locator(".row").first).to_have_attribute("aria-selected", "true")
    assert errors == []


def _error_of_page(message: ConsoleMessage) -> list[str]:
    """An error that is not of MLflow's own pages."""
    is_error = message.type == "error" and not message.location.get("url", "").startswith("http")
    return [f"{message.text} {message.location}"] if is_error else []


def _links(project: Project) -> dict[str, str]:
    rows = read_rows(project.lake, "select eval, mlflow_run_id from metrics where is_headline")
    return {row["eval"]: project.tracker.run_link(row["mlflow_run_id"]) or "" for row in rows}
