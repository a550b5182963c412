"""Users' code that fails, ends the process, takes for ever or changes what it was given: the whole command, cell by cell."""

import json
import os
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from commands import run_command
from documents import DOCS
from ui_servers import running_ui, until
from users_code_cells import DEADLY, EVAL, EXPECTED, FAULTS, NOTHING, PLACES, SAMPLE, SAMPLES, STAGES, cells, finished, table, write_project

from eval_dagster.gate.results import current_result
from eval_dagster.lake.files import Lake
from eval_dagster.lake.records import read_attempts

pytestmark = pytest.mark.e2e

PAGE = DOCS / "reference" / "your-code.md"


class Night:
    """A suite of cells that was run by the command."""

    def __init__(self, folder: Path, suite: str) -> None:
        self._folder = folder
        self._environment = {name: value for name, value in os.environ.items() if name not in ("DAGSTER_HOME", "EVAL_DAGSTER_HOME")}
        self.suite = suite
        self.done = finished(
            [sys.executable, "-m", "eval_dagster.cli", "run", "--suite", suite, "--junit", "gate.xml"], folder, self._environment
        )
        self.failed = {
            (str(case.get("classname")).removeprefix(f"{suite}."), str(case.get("name")))
            for case in ElementTree.parse(folder / "gate.xml").iter("testcase")
            if case.find("failure") is not None
        }

    def rows(self, query: str) -> list[dict[str, Any]]:
        """The rows of a query."""
        command = ("sql", query, "--format", "json")
        found: list[dict[str, Any]] = json.loads(run_command(*command, folder=self._folder, environment=self._environment).stdout)
        return found

    def check(self, chosen: list[tuple[str, str]]) -> None:
        """Check every cell: its attempt, its scores, and its row of the gate."""
        attempts = {(row["eval"], row["model"]): row for row in self.rows("select * from attempts order by finished_at")}
        scores = self.rows("select eval, model, metric, value, n, n_errors from metrics where subject is null")
        headlines = {(row["eval"], row["model"]): row for row in scores if row["metric"] == "right"}
        others = {(row["eval"], row["model"], row["metric"]): row for row in scores}
        expected_failures = set()
        for place, fault in chosen:
            cell = f"{place}-{fault}"
            key = ("good", cell) if place == "model" else (cell, "good")
            attempt, expected = attempts[key], EXPECTED[place][fault]
            if expected == EVAL:
                assert (attempt["status"], attempt["stage"]) == ("failed", STAGES[place]), (cell, attempt)
                assert key not in headlines, cell
                expected_failures.add(key)
                if fault in DEADLY:
                    assert "the process ended" in attempt["message"], (cell, attempt)
                    assert ("code_timeout" in attempt["message"]) is (fault == "loops"), (cell, attempt)
                elif fault.startswith("exit"):
                    assert f"SystemExit: {fault[-1]}" in attempt["message"], (cell, attempt)
                continue
            assert attempt["status"] == "ok", (cell, attempt)
            row = headlines[key]
            errors = int(expected == SAMPLE)
            assert (row["value"], row["n"], row["n_errors"]) == (1.0, SAMPLES - errors, errors), (cell, row)
            if place == "metric" or expected == NOTHING:
                assert others[*key, "second"]["n_errors"] == 0, cell
                assert others[*key, "second"]["value"] == 1.0, cell
        assert expected_failures <= self.failed
        assert attempts["good", "good"]["status"] == "ok"
        assert headlines["good", "good"]["value"] == 1.0
        assert ("good", "good") not in self.failed
        assert self.done.returncode == int(bool(expected_failures)), self.done.stderr


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("suite", ["evals", "models"])
def test_every_fault_at_every_place_is_what_the_table_says(tmp_path: Path, suite: str) -> None:
    chosen = [cell for cell in cells() if (cell[0] == "model") == (suite == "models")]
    write_project(tmp_path, chosen)
    Night(tmp_path, suite).check(chosen)


LAUNCH = """
    mutation Launch($parameters: ExecutionParams!) {
      launchRun(executionParams: $parameters) { __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } }
    }
"""


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("fault", ["dies", "loops"])
def test_under_the_daemon_the_gate_names_what_a_dead_run_worked_on(tmp_path: Path, fault: str) -> None:
    write_project(tmp_path, [("metric", fault)])
    home = tmp_path / "home"
    with running_ui(tmp_path / "evals.yaml", home, tmp_path / "ui.out") as ui:
        selector = {"repositoryLocationName": "eval_dagster", "repositoryName": "__repository__", "jobName": "suite_evals"}
        launched = ui.query(LAUNCH, parameters={"selector": selector})["launchRun"]
        assert launched["__typename"] == "LaunchRunSuccess", launched
        result = until(lambda: current_result(Lake(home), "evals"), 1200, lambda: f"no judgement\n{ui.logs()}")
    assert result.is_failed
    message = next(str(row.reason) for row in result.missing if row.eval == f"metric-{fault}")
    assert "failed at sample_scores" in message
    how = "when its time was over (code_timeout)" if fault == "loops" else "or was killed"
    assert f"the process ended {how} while it called the metric right for the sample" in message
    [attempt] = read_attempts(Lake(home))
    assert (attempt.eval, attempt.model, attempt.status, attempt.stage) == (f"metric-{fault}", "good", "failed", "sample_scores")


def test_the_table_has_all_places_and_faults() -> None:
    assert {place: set(row) for place, row in EXPECTED.items()} == {place: set(FAULTS) for place in PLACES}


def test_the_page_has_the_table() -> None:
    assert table() in PAGE.read_text("utf-8")
