"""A run of which everything is current, and known to Dagster, is no run of Dagster: it makes nothing, and takes as long as a look."""

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest
from commands import run_command
from few import few

from eval_dagster.lake.files import Lake
from eval_dagster.lake.records import add_attempts
from eval_dagster.lake.tables.events import Attempt
from eval_dagster.project import Project as Opened
from eval_dagster.stages.inference import is_looked_at

CONFIG = """\
models:
  sevens: {backend: scripted, default: " 7"}
  empty: {backend: scripted, default: ""}
evals:
  sums: {task: arithmetic, limit: 20}
"""


class Project:
    """A project in a folder of its own, and its runs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / ".eval_dagster"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("EVAL_DAGSTER", "DAGSTER_HOME"))}
        self.environment = kept | {"EVAL_DAGSTER_CONFIG": str(folder / "evals.yaml")}
        self.write(CONFIG)

    def write(self, config: str) -> None:
        (self.folder / "evals.yaml").write_text(config)

    def run(self, *options: str) -> "subprocess.CompletedProcess[str]":
        done = run_command("run", *options, environment=self.environment)
        assert done.returncode == 0, done.stderr
        return done

    def is_run_of_dagster(self, *options: str) -> bool:
        """Run, and tell whether Dagster has a run more."""
        before = self._runs()
        says_so = ", runs " in self.run(*options).stdout
        assert says_so == (self._runs() > before)
        return says_so

    def _runs(self) -> int:
        database = self.home / "dagster" / "history" / "runs.db"
        if not database.exists():
            return 0
        with closing(sqlite3.connect(database)) as connection:
            return int(connection.execute("select count(*) from runs").fetchone()[0])


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    found = Project(tmp_path_factory.mktemp("current"))
    found.run()
    return found


def warnings(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if line.startswith("warning")]


@pytest.mark.long
def test_it_prints_the_same_and_loads_nothing_that_it_does_not_use(project: Project) -> None:
    first = project.run()
    program = [sys.executable, "-X", "importtime", "-m", "eval_dagster.cli.program", "run"]
    again = subprocess.run(program, env=project.environment, capture_output=True, text=True, check=False, timeout=120)
    assert again.returncode == 0, again.stderr
    loaded = {line.rpartition("|")[2].strip() for line in again.stderr.splitlines() if line.startswith("import time:")}
    assert "duckdb" in loaded
    assert loaded.isdisjoint({"dagster", "mlflow", "torch", "transformers", "scipy.stats", "matplotlib", "pandas", "datasets"})
    assert "all 9 tables were current" in again.stdout
    assert warnings(again.stderr) == warnings(first.stderr)
    assert any("empty" in each for each in warnings(again.stderr)), "a result that is current still has its warnings"


def _another_event(project: Project) -> None:
    with dg.DagsterInstance.from_config(str(project.home / "dagster")) as instance:
        instance.report_runless_asset_event(dg.AssetObservation("of_somebody"))


def _no_dagster(project: Project) -> None:
    shutil.rmtree(project.home / "dagster")


def _no_scores(project: Project) -> None:
    for path in (project.home / "lake" / "scores").rglob("*.parquet"):
        path.unlink()


def _no_mlflow(project: Project) -> None:
    (project.home / "mlflow.db").unlink()


def _prefix(project: Project) -> None:
    project.write(f"{CONFIG}dagster: {{key_prefix: [team]}}\n")


def _more_samples(project: Project) -> None:
    project.write(CONFIG.replace("20", "21"))


def _damaged_note(project: Project) -> None:
    (project.home / "watch" / "known_results.json").write_text("{")


CHANGES = [_another_event, _no_scores, _damaged_note, _no_dagster, _no_mlflow, _more_samples, _prefix]


@pytest.mark.long
@few("change", CHANGES, kept=3)
def test_whatever_dagster_may_not_know_is_a_run_of_it_once(project: Project, change: Callable[[Project], None]) -> None:
    project.run()
    assert not project.is_run_of_dagster(), "everything is current, and Dagster knows it"
    change(project)
    assert project.is_run_of_dagster()
    assert not project.is_run_of_dagster()


@pytest.mark.long
def test_a_suite_is_judged_though_everything_is_current(project: Project) -> None:
    project.write(f"{CONFIG}suites: {{nightly: {{evals: [sums], models: [sevens]}}}}\n")
    project.run()
    assert project.is_run_of_dagster("--suite", "nightly")


@pytest.mark.long
def test_a_damaged_result_of_the_past_is_told_each_time(project: Project) -> None:
    project.write(CONFIG.replace("20", "22"))
    project.run()
    project.write(CONFIG)
    project.run()
    oldest, *_newer = sorted((project.home / "lake" / "metrics" / "eval=sums" / "model=sevens").glob("*.parquet"))
    whole = oldest.read_bytes()
    oldest.write_bytes(whole[: len(whole) // 2])
    for _ in range(2):
        assert [line for line in warnings(project.run().stderr) if oldest.name in line]
    assert not project.is_run_of_dagster()
    oldest.unlink()


@pytest.mark.long
def test_a_failure_that_dagster_was_not_told_of_is_over_after_a_run_of_it(project: Project) -> None:
    """As of Python's `evaluate` or of another instance: the leaderboard says that the last try failed until another one did not."""
    project.write(CONFIG)
    project.run()
    assert not project.is_run_of_dagster()
    failed = Attempt(
        eval="sums",
        model="sevens",
        run_id="elsewhere",
        finished_at=datetime.now(UTC),
        status="failed",
        stage="model_outputs",
        message="the mount was gone",
        cached=False,
    )
    add_attempts(Lake(project.home), [failed])
    assert project.is_run_of_dagster()
    assert not project.is_run_of_dagster()


def test_a_model_behind_a_server_is_looked_at_by_a_run(tmp_path: Path) -> None:
    (tmp_path / "evals.yaml").write_text(
        'models: {far: {backend: openai, base_url: "http://127.0.0.1:9/v1", model: some}, near: {backend: scripted}}\nevals: {}\n'
    )
    opened = Opened.open(config_path=tmp_path / "evals.yaml", home=tmp_path / "home")
    assert [is_looked_at(opened, name) for name in ("far", "near")] == [True, False]


@pytest.mark.long
@pytest.mark.parametrize("settings", ["event_log_storage", "'storage'"])
def test_an_instance_that_has_moved_to_another_database_is_asked_each_time(project: Project, tmp_path: Path, settings: str) -> None:
    """To PostgreSQL, for instance. Its old files stay, and do not change when it gets an event."""
    project.write(CONFIG)
    project.run()
    assert not project.is_run_of_dagster()
    written = project.home / "dagster" / "dagster.yaml"
    before = written.read_text()
    elsewhere = {
        "event_log_storage": f"{{module: dagster._core.storage.event_log, class: SqliteEventLogStorage, config: {{base_dir: {tmp_path}}}}}",
        "'storage'": f"{{sqlite: {{base_dir: {tmp_path}}}}}",
    }
    written.write_text(f"{before}\n{settings}: {elsewhere[settings]}\n")
    for _ in range(2):
        assert ", runs " in project.run().stdout
    written.write_text(before)
