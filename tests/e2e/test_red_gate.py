"""A suite that got worse, as a real headless Chromium shows it in the Dagster UI: its check is red and names the eval.

Where `EVAL_DAGSTER_SCREENSHOTS` names a folder, the picture of the documentation is written to it.
"""

import os
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import run_command
from playwright.sync_api import Page, expect
from scripted_calculator import write_calculator
from ui_servers import RunningUi, running_ui

pytestmark = pytest.mark.e2e

SCREENSHOTS = os.environ.get("EVAL_DAGSTER_SCREENSHOTS")
CONFIG = """
    models:
      calculator: {backend: scripted, function: "calculator.py:answer"}
      sevens: {backend: scripted, default: " 7"}
    evals:
      sums: {task: arithmetic, limit: 20}
      sums-with-examples: {task: arithmetic, num_fewshot: 2, limit: 20}
    suites:
      nightly: {evals: [sums, sums-with-examples], models: [calculator, sevens]}
"""


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningUi]:
    """The servers of a home in which the second night got worse."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "evals.yaml").write_text(textwrap.dedent(CONFIG))
    environment = os.environ | {
        "EVAL_DAGSTER_CONFIG": str(folder / "evals.yaml"),
        "EVAL_DAGSTER_HOME": str(folder / "home"),
        "DAGSTER_HOME": str(folder / "home" / "dagster"),
    }
    for error, status in (("0", 0), ("right % 3 == 0", 1)):
        write_calculator(folder, error=error)
        done = run_command("run", "--suite", "nightly", environment=environment)
        assert done.returncode == status, done.stdout + done.stderr
    with running_ui(folder / "evals.yaml", folder / "home", folder / "ui.out") as ui:
        yield ui


@pytest.mark.long
def test_the_red_check_names_what_got_worse(ui: RunningUi, page: Page, tmp_path: Path) -> None:
    page.goto(f"{ui.dagster}/assets/regressions?view=checks&checkDetail=nothing_regressed_in_nightly")
    expect(page.get_by_text("blocking asset check")).to_be_visible()
    expect(page.get_by_text("Failed", exact=True).first).to_be_visible()
    expect(page.get_by_text("2 of 4 results regressed: sums on calculator (exact_number -").first).to_be_visible()
    table = page.locator("table").filter(has_text="regressed").last
    for words in ("sums-with-examples", "calculator", "model"):
        expect(table.get_by_text(words, exact=True).first).to_be_visible()
    folder = Path(SCREENSHOTS).resolve() if SCREENSHOTS else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    page.get_by_text("Hide navigation").click()
    page.screenshot(path=folder / "red_check.png")
