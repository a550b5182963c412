"""A real headless Chromium on the real UIs: materialize a partition by hand, see it succeed, see its metadata and its MLflow run.

Pictures of what it sees are written to the folder that `EVAL_DAGSTER_SCREENSHOTS` names. Those of the documentation are of the demo suite,
evaluated beside the MLflow whose address they show:

    EVAL_DAGSTER_HOME=/tmp/demo eval-dagster ui &
    EVAL_DAGSTER_HOME=/tmp/demo eval-dagster run --suite demo
    EVAL_DAGSTER_HOME=/tmp/demo EVAL_DAGSTER_SCREENSHOTS=docs/pictures pytest tests/e2e/test_browser.py -k readme
"""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect
from playwright.sync_api import TimeoutError as PlaywrightTimeoutError
from ui_servers import REPOSITORY, RunningUi, running_ui

pytestmark = pytest.mark.e2e

CONFIG = """
    models:
      oracle: {backend: scripted, answers: {"capital of France": " Paris"}, default: " I do not know"}
      other: {backend: scripted, default: " 7"}
    evals:
      capitals: {task: capitals, num_fewshot: 1, limit: 5}
      sums: {task: arithmetic, num_fewshot: 1, limit: 5}
    suites:
      demo: {evals: [capitals, sums], models: [oracle, other]}
"""
ASSETS = ("dataset_snapshot", "rendered_prompts", "model_outputs", "sample_scores", "task_metrics", "leaderboard", "regressions")
SCREENSHOTS = os.environ.get("EVAL_DAGSTER_SCREENSHOTS")
RUN_MS = 180_000
MENU_MS = 20_000


@pytest.mark.long
def test_materialize_a_partition_and_see_its_result_and_its_mlflow_run(start_ui: Callable[..., RunningUi], page: Page) -> None:
    ui = start_ui(CONFIG)
    page.goto(f"{ui.dagster}/assets/task_metrics")
    expect(page.get_by_text("Never materialized")).to_be_visible()
    _materialize(page, "Materialize…", {"eval": "capitals", "model": "oracle"})
    _see_success(page, "capitals|oracle")
    metadata = _open_partition(page, ui, "task_metrics", "capitals", "oracle")
    expect(_value(metadata, "cached")).to_have_text("false")
    expect(_value(metadata, "score")).to_have_text(re.compile(r"accuracy \d\.\d{3} ± \d\.\d{3} \(n=30\)"))
    expect(_value(metadata, "preview")).to_contain_text("oceania")
    link = _mlflow_link(metadata)
    assert link.startswith(f"{ui.mlflow}/#/experiments/")
    _see_mlflow_run(page, ui, link, "capitals · oracle")


@pytest.mark.long
def test_one_stage_then_the_suite_from_the_page_of_its_job(start_ui: Callable[..., RunningUi], page: Page, tmp_path: Path) -> None:
    ui = start_ui(CONFIG)

    # One stage, from the page of its asset.
    page.goto(f"{ui.dagster}/assets/rendered_prompts")
    expect(page.get_by_text("Never materialized")).to_be_visible()
    _materialize(page, "Materialize…", {"eval": "capitals", "model": "oracle"})
    _see_success(page, "capitals|oracle")

    metadata = _open_partition(page, ui, "rendered_prompts", "capitals", "oracle")
    expect(_value(metadata, "cached")).to_have_text("false")
    expect(_value(metadata, "prompts")).to_have_text("30")
    expect(_value(metadata, "preview")).to_contain_text("What is the capital of")

    # All stages of the suite, from the page of its job: of one partition the prompts are there already, the rest is not.
    page.goto(f"{ui.dagster}/locations/eval_dagster/jobs/suite_demo/playground")
    page.get_by_role("button", name=re.compile("Launch Run", re.IGNORECASE)).click()
    _see_success(page)

    metadata = _open_partition(page, ui, "rendered_prompts", "capitals", "oracle")
    expect(_value(metadata, "cached")).to_have_text("false")  # of the first run, since what is current is not materialized again
    metadata = _open_partition(page, ui, "task_metrics", "capitals", "oracle")
    expect(_value(metadata, "cached")).to_have_text("false")
    expect(_value(metadata, "score")).to_have_text(re.compile(r"accuracy \d\.\d{3} ± \d\.\d{3} \(n=30\)"))
    expect(_value(metadata, "preview")).to_contain_text("oceania")

    assert _mlflow_link(metadata).startswith(f"{ui.mlflow}/#/experiments/")

    _take_pictures(page, ui, "capitals", "oracle", tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*.png")) == ["asset_graph.png", "mlflow_run.png", "partitions.png"]


@pytest.mark.skipif(SCREENSHOTS is None, reason="takes the pictures of the documentation where EVAL_DAGSTER_SCREENSHOTS names a folder")
def test_readme_pictures(page: Page, tmp_path: Path) -> None:
    home, folder = Path(os.environ["EVAL_DAGSTER_HOME"]).resolve(), Path(str(SCREENSHOTS)).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with running_ui(REPOSITORY / "evals.yaml", home, tmp_path / "ui.out") as ui:
        _take_pictures(page, ui, "capitals", "smollm2-135m", folder)


def _materialize(page: Page, button: str, partition: dict[str, str]) -> None:
    """Click Materialize, choose one partition and launch; ends on the page of the run."""
    page.get_by_role("button", name=re.compile(rf"{button}$")).click()  # its icon has a name too
    dialog = page.get_by_role("dialog").filter(has_text="Launch runs to materialize")
    # Dagster warns that the snapshot is missing; the stage makes it.
    confirm = page.get_by_role("button", name="Confirm", exact=True)
    expect(confirm.or_(dialog)).to_be_visible()
    if confirm.is_visible():
        confirm.click()
    for number, key in enumerate(partition[name] for name in sorted(partition)):
        chooser = dialog.locator(".bp5-popover-target").nth(number)
        if chooser.get_by_text(key, exact=True).is_visible():
            continue
        _pick(chooser, page.get_by_role("menuitem").filter(has=page.get_by_title(key, exact=True)))
        dialog.get_by_text("Launch runs to materialize").click()
    expect(dialog.get_by_text("1 partition", exact=True)).to_be_visible()
    dialog.get_by_role("button", name="Launch 1 run", exact=True).click()
    page.get_by_text("View", exact=True).click()


def _pick(chooser: Locator, item: Locator) -> None:
    """Open a menu and click one of its items; once more where Dagster closed the menu on the way, as it does when its data arrive."""
    chooser.click()
    try:
        item.click(timeout=MENU_MS)
    except PlaywrightTimeoutError:
        if not item.is_visible():
            chooser.click()
        item.click()


def _see_success(page: Page, partition: str | None = None) -> None:
    success, failure = (page.get_by_text(word, exact=True).first for word in ("Success", "Failure"))
    expect(success.or_(failure)).to_be_visible(timeout=RUN_MS)
    expect(success).to_be_visible()
    if partition:
        expect(page.get_by_text(f"partition: {partition}").first).to_be_visible()


def _open_partition(page: Page, ui: RunningUi, asset: str, eval_name: str, model: str) -> Locator:
    """Choose a partition on the asset's page by clicks; gives the table of its metadata."""
    page.goto(f"{ui.dagster}/assets/{asset}?view=partitions")
    page.get_by_title(eval_name, exact=True).click()
    page.get_by_title(model, exact=True).click()
    expect(page.get_by_text(f"{eval_name}|{model}").first).to_be_visible()
    expect(page.get_by_text("Materialized", exact=True).first).to_be_visible()
    return page.locator("table").filter(has_text="cached").first


def _value(metadata: Locator, name: str) -> Locator:
    """The value of a row of a metadata table."""
    return metadata.locator("tr").filter(has=metadata.page.locator("td:first-child").get_by_text(name, exact=True)).locator("td").nth(1)


def _mlflow_link(metadata: Locator) -> str:
    return _value(metadata, "mlflow_run").get_by_role("link").first.get_attribute("href") or ""


def _take_pictures(page: Page, ui: RunningUi, eval_name: str, model: str, folder: Path) -> None:
    """What the documentation shows: the asset graph, the partitions of the metrics, a run in MLflow."""
    metadata = _open_partition(page, ui, "task_metrics", eval_name, model)
    link = _mlflow_link(metadata)
    expect(_value(metadata, "preview").get_by_text("±").first).to_be_visible()
    page.screenshot(path=folder / "partitions.png")

    _see_mlflow_run(page, ui, link, f"{eval_name} · {model}")
    page.set_viewport_size({"width": 1400, "height": 1160})
    expect(page.get_by_text("Child runs")).to_have_count(0)  # shown while it is being looked for
    page.screenshot(path=folder / "mlflow_run.png")
    _take_asset_graph(page, ui, folder)


def _see_mlflow_run(page: Page, ui: RunningUi, link: str, name: str) -> None:
    # Its assistant covers a third of the page, and the layout for models shows the metrics first.
    page.goto(ui.mlflow)
    page.evaluate("localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true')")
    page.get_by_text("Model training", exact=True).click()
    # The demo was evaluated before these servers had their ports.
    page.goto(f"{ui.mlflow}/#{link.partition('#')[2]}")
    expect(page.get_by_role("heading", name=name)).to_be_visible()
    expect(page.get_by_text("Finished", exact=True)).to_be_visible()
    for text in ("score", "stderr", "n", "accuracy.stderr", "eval.num_fewshot", "version.model_outputs"):
        expect(page.get_by_text(text, exact=True)).to_be_attached()


def _take_asset_graph(page: Page, ui: RunningUi, folder: Path) -> None:
    page.set_viewport_size({"width": 2000, "height": 800})
    page.goto(f"{ui.dagster}/asset-groups/")
    page.get_by_label("unfold_more").first.wait_for()
    page.get_by_role("button").filter(has=page.get_by_label("panel_show_right")).last.click()
    page.get_by_text("Hide navigation").click()
    page.keyboard.press("Alt+e")
    for asset in ASSETS:
        expect(page.get_by_text(asset, exact=True).first).to_be_visible()
    expect(page.get_by_text("% filled")).to_have_count(2 * (len(ASSETS) - 1))  # with their sources; leaderboard has no partitions
    expect(page.get_by_text("Loading")).to_have_count(0)
    expect(page.get_by_label("sensor", exact=True).first).to_be_visible()  # of the leaderboard; the gates have one, too
    page.wait_for_function("[...document.images].every(image => image.complete)")
    page.screenshot(path=folder / "asset_graph.png")
