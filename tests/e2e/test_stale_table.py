"""After each change: what Dagster's pages call fresh or stale, what a dry run says, and what a run then makes, cell by cell."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from changing_project import CHANGES, FAULTS, Change, Checkout
from fast_clock import FastClock
from ui_servers import RunningUi, running_ui, until

pytestmark = [pytest.mark.e2e, pytest.mark.long]

STAGES = {
    "D": "dataset_snapshot",
    "P": "rendered_prompts",
    "O": "model_outputs",
    "S": "sample_scores",
    "M": "task_metrics",
}
"""The stages by the letters that the table has for them."""
STATES = """
    query States($assets: [AssetKeyInput!]!) {
      assetNodes(assetKeys: $assets) {
        assetKey { path }
        partitionKeys
        partitionKeysByDimension { name partitionKeys }
        staleStatusByPartition
        assetPartitionStatuses {
          ... on DefaultPartitionStatuses { failedPartitions }
          ... on MultiPartitionStatuses {
            primaryDimensionName
            ranges { primaryDimStartKey primaryDimEndKey secondaryDim { ... on DefaultPartitionStatuses { failedPartitions } } }
          }
        }
      }
    }
"""
LOOKS = """
    query Looks($selector: InstigationSelector!) {
      instigationStateOrError(instigationSelector: $selector) {
        ... on InstigationState { ticks(limit: 10) { tickId status skipReason error { message } } }
      }
    }
"""
RUNS = """
    query Runs($filter: RunsFilter!) {
      runsOrError(filter: $filter) { ... on Runs { results { runId status tags { key value } } } }
    }
"""
LAUNCH = """
    mutation Launch($parameters: ExecutionParams!) {
      launchRun(executionParams: $parameters) { __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } }
    }
"""
LOCATION = {"repositoryLocationName": "eval_dagster", "repositoryName": "__repository__"}
ENDED = {"SUCCESS", "FAILURE", "CANCELED"}
NIGHT_JOB = "__anonymous_asset_job_suite_nightly_schedule"
NIGHTS = {"cron": "0 0 * * *"}
DAY_S = 86_400.0
LOOK_S = 240
RUN_S = 300
Cell = tuple[str, str]
"""An asset and a partition."""
JUDGED: Cell = ("regressions", "nightly")


class Place:
    """The servers of a checkout."""

    def __init__(self, checkout: Checkout, ui: RunningUi, environment: Mapping[str, str]) -> None:
        self.checkout = checkout
        self.ui = ui
        self._environment = environment

    def keys(self, suite: bool = False) -> list[str]:
        """The partitions of all evals and models, or of the suite's."""
        of = self.checkout.config["suites"]["nightly"] if suite else self.checkout.config
        return [f"{name}|{model}" for name in of["evals"] for model in of["models"]]

    def cells(self, keys: list[str]) -> set[Cell]:
        """All cells of partitions."""
        return {(stage, key.partition("|")[0] if stage == STAGES["D"] else key) for key in keys for stage in STAGES.values()}

    def apply(self, change: Change) -> None:
        """Apply a change, and wait until the sensor has looked at everything after it."""
        # A look that has begun may see the change or not. No look would follow if it does.
        known: list[dict[str, Any]] = []

        def is_at_rest() -> bool:
            known[:] = self._looks()
            return all(tick["status"] != "STARTED" for tick in known)

        until(is_at_rest, LOOK_S, self.ui.logs)
        before = max((int(tick["tickId"]) for tick in known), default=0)
        change.apply(self.checkout)
        if not change.is_seen:
            os.utime(self.checkout.folder / "evals.yaml")
        said = f"looked at {len(self.keys())} partitions"

        def has_looked() -> bool:
            new = [tick for tick in self._looks() if int(tick["tickId"]) > before]
            return any((tick["skipReason"] or "").startswith(said) for tick in new)

        until(has_looked, LOOK_S, lambda: f"no look at all since the change: {self._looks()}\n{self.ui.logs()}")

    def _looks(self) -> list[dict[str, Any]]:
        ticks: list[dict[str, Any]] = self.ui.query(LOOKS, selector={**LOCATION, "name": "definitions"})["instigationStateOrError"]["ticks"]
        assert not [tick for tick in ticks if tick["error"]], ticks
        return ticks

    def shown(self) -> tuple[dict[Cell, str], set[Cell]]:
        """The state of each cell in Dagster's pages, and those that are red."""
        assets = [{"path": [asset]} for asset in [*STAGES.values(), "regressions"]]
        states: dict[Cell, str] = {}
        red: set[Cell] = set()
        for node in self.ui.query(STATES, assets=assets)["assetNodes"]:
            asset = node["assetKey"]["path"][-1]
            states |= {(asset, key): status for key, status in zip(node["partitionKeys"], node["staleStatusByPartition"], strict=True)}
            statuses = node["assetPartitionStatuses"]
            red |= {(asset, key) for key in statuses.get("failedPartitions", ())}
            dimensions = {each["name"]: each["partitionKeys"] for each in node["partitionKeysByDimension"]}
            for each in statuses.get("ranges", ()):
                primary = dimensions[statuses["primaryDimensionName"]]
                span = primary[primary.index(each["primaryDimStartKey"]) : primary.index(each["primaryDimEndKey"]) + 1]
                for one in span:
                    for other in each["secondaryDim"]["failedPartitions"]:
                        pair = (one, other) if statuses["primaryDimensionName"] == "eval" else (other, one)
                        red.add((asset, "|".join(pair)))
        return states, red

    def dry_run(self) -> dict[Cell, str]:
        """The state of each cell that the table of `run --dry-run` has; fresh if the table leaves the eval and the model out."""
        done = self.command("run", "--dry-run")
        states = dict.fromkeys(self.cells(self.keys()), "fresh")
        for line in done.stdout.splitlines():
            if line.startswith("│"):
                eval_name, model, *stages = (each.strip() for each in line.strip("│").split("│"))
                for stage, said in zip(
                    STAGES.values(), stages if eval_name else (), strict=False
                ):  # else the causes of the line before go on
                    states[stage, eval_name if stage == STAGES["D"] else f"{eval_name}|{model}"] = said.partition(":")[0]
        assert (done.returncode == 0) == (set(states.values()) == {"fresh"}), done
        return states

    def command(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run `eval-dagster`."""
        command = [sys.executable, "-m", "eval_dagster.cli", *arguments]
        folder = self.checkout.folder
        return subprocess.run(command, cwd=folder, env=self._environment, capture_output=True, text=True, check=False, timeout=RUN_S)

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Rows of Dagster's table of the events of all runs."""
        with closing(sqlite3.connect(self.ui.home / "dagster" / "history" / "runs" / "index.db", timeout=60)) as connection:
            return connection.execute(query, values).fetchall()

    def newest_event(self) -> int:
        """The id of the newest event."""
        [(newest,)] = self._rows("select max(id) from event_logs")
        return int(newest)

    def events(self, after: int) -> list[tuple[str, str, str]]:
        """The events of partitions since then, without those that Dagster itself writes before a night: kind, asset, partition."""
        query = "select run_id, dagster_event_type, asset_key, partition from event_logs where id > ? and partition is not null"
        nights = {run["runId"] for run in self.ended(NIGHT_JOB)}
        first = {f"{next(iter(self.checkout.config['suites']['nightly']['evals']))}|{name}" for name in self.checkout.config["models"]}
        return [
            (kind, json.loads(asset)[-1], partition)
            for run, kind, asset, partition in self._rows(query, after)
            if not (kind == "ASSET_MATERIALIZATION_PLANNED" and run in nights and partition in first)
        ]

    def made(self, after: int) -> set[Cell]:
        """The cells that were materialized since then."""
        return {(asset, key) for kind, asset, key in self.events(after) if kind == "ASSET_MATERIALIZATION" and asset in STAGES.values()}

    def ended(self, job: str) -> list[dict[str, Any]]:
        """The runs of a job that have ended, the newest first."""
        runs = self.ui.query(RUNS, filter={"pipelineName": job})["runsOrError"]["results"]
        return [run for run in runs if run["status"] in ENDED]

    def wait_for_gate(self, before: int) -> None:
        """Wait for one more gate than before."""
        until(lambda: len(self.ended("gate_nightly")) > before, RUN_S, lambda: f"no gate has ended\n{self.ui.logs()}")


Way = Callable[[Place], None]


def _by_button(place: Place) -> None:
    before = len(place.ended("gate_nightly"))
    selector = {**LOCATION, "jobName": "suite_nightly"}
    launched = place.ui.query(LAUNCH, parameters={"selector": selector, "runConfigData": {}})["launchRun"]
    assert launched["__typename"] == "LaunchRunSuccess", launched
    place.wait_for_gate(before)


def _by_command(place: Place) -> None:
    done = place.command("run", "--suite", "nightly")
    assert "Gate" in done.stdout, done


def _states(cells: set[Cell], stale: Mapping[str, str]) -> set[Cell]:
    """The cells whose letters the table has."""
    letters = {stage: letter for letter, stage in STAGES.items()}

    def is_stale(stage: str, key: str) -> bool:
        patterns = {pattern.partition("|")[0] if stage == STAGES["D"] else pattern: of for pattern, of in stale.items()}
        return any(fnmatch(key, pattern) and letters[stage] in of for pattern, of in patterns.items())

    return {cell for cell in cells if is_stale(*cell)}


class Table:
    """Compares the three, and collects what differs."""

    def __init__(self, place: Place, way: Way) -> None:
        self._place = place
        self._way = way
        self._stale: set[Cell] = set()
        self.lines: list[str] = []
        """A line for each cell that is not fresh."""
        self.wrong: list[str] = []

    def _note(self, when: str, cell: Cell, **said: object) -> None:
        is_wrong = len(set(said.values())) > 1
        if is_wrong or set(said.values()) != {"FRESH"}:
            texts = ", ".join(f"{name}: {value}" for name, value in said.items())
            self.lines.append(f"{'DIFFERS' if is_wrong else 'as it should be'} | {when} | {cell[0]} {cell[1]} | {texts}")
            self.wrong += self.lines[-1:] if is_wrong else []

    def compare(self, when: str, expected: set[Cell], *, is_judged: bool = True) -> None:
        """Compare Dagster's pages with a dry run, and with the cells that are expected not to be fresh."""
        shown, _ = self._place.shown()
        planned = self._place.dry_run()
        for cell, said in sorted(planned.items()):
            state = {"fresh": "FRESH", "missing": "MISSING"}.get(said, "STALE")
            wanted = "FRESH" if cell not in expected else "STALE" if state == "FRESH" else state
            self._note(when, cell, pages=shown.pop(cell, "no such cell"), dry_run=state, expected=wanted)
        self._note(when, JUDGED, pages=shown.pop(JUDGED), expected="FRESH" if is_judged else "STALE")
        for cell, state in sorted(shown.items()):  # of evals and models that were removed: what is left of them is marked
            if state != "MISSING":
                self._note(f"{when}, removed", cell, pages=state, expected="STALE" if cell[0] == STAGES["M"] else "FRESH")
        self._stale = {cell for cell, said in planned.items() if said != "fresh"}

    def compare_red(self, when: str, expected: set[Cell]) -> None:
        """Compare the cells that the pages show as failed with those that are expected to be."""
        _, red = self._place.shown()
        for cell in sorted(red | expected):
            self._note(when, cell, red=cell in red, expected=cell in expected)

    def check(self, name: str, change: Change) -> None:
        """Apply a change, compare, run, compare again."""
        place, earlier = self._place, self._stale
        place.apply(change)
        cells, of_suite = place.cells(place.keys()), place.cells(place.keys(suite=True))
        wanted = _states(cells, change.stale)
        self.compare(f"{name}: before the run", wanted | (earlier & cells), is_judged=change.is_judged)
        event = place.newest_event()
        self._way(place)
        made = place.made(event)
        for cell in sorted(made | wanted):
            self._note(f"{name}: the run", cell, made=cell in made, expected=cell in wanted & of_suite)
        if not wanted:
            of_cells = sorted(
                {
                    each
                    for each in place.events(event)
                    if each[1] != JUDGED[0] and not (each[1] == "judgement_definition" and not change.is_judged)
                }
            )
            self.lines += (wrong := [f"DIFFERS | {name}: the run | an event of a cell | {each}" for each in of_cells])
            self.wrong += wrong
        self.compare(f"{name}: after the run", ((wanted | earlier) & cells - of_suite) | _states(of_suite, change.left))


@contextmanager
def _place(folder: Path, tiny_model: Path, way: str) -> Iterator[tuple[Place, Way]]:
    """The servers of a checkout in which everything was evaluated and judged, and the way by which the suite is evaluated again."""
    checkout = Checkout(folder)
    shutil.copytree(tiny_model, folder / "weights")
    if way == "night":
        checkout.config["suites"]["nightly"] |= NIGHTS
    checkout.write()
    clock = FastClock(folder, folder / "home", leap_s=DAY_S, most_leaps=3 * len(CHANGES), speed=4.0)
    environment = os.environ | clock.environment
    environment["PYTHONPATH"] = f"{folder / 'package'}{os.pathsep}{environment['PYTHONPATH']}"
    environment |= {"EVAL_DAGSTER_CONFIG": str(folder / "evals.yaml"), "EVAL_DAGSTER_HOME": str(folder / "home")}
    environment |= {"DAGSTER_HOME": str(folder / "home" / "dagster"), "NO_COLOR": "1"}

    def by_night(place: Place) -> None:
        before = len(place.ended("gate_nightly"))
        clock.leap_to_tick(place.ui.is_running)
        place.wait_for_gate(before)

    with running_ui(folder / "evals.yaml", folder / "home", folder / "ui.out", variables=environment) as ui:
        place = Place(checkout, ui, environment)
        for arguments in (["run"], ["run", "--suite", "nightly"]):
            done = place.command(*arguments)
            assert done.returncode == 0, done
        yield place, {"night": by_night, "button": _by_button, "command": _by_command}[way]


WAYS = ("night", "button", "command")


@pytest.mark.timeout(5400)
@pytest.mark.parametrize("way", WAYS)
def test_pages_dry_run_and_run_agree_in_every_cell(tmp_path: Path, tiny_model: Path, way: str) -> None:
    with _place(tmp_path, tiny_model, way) as (place, run):
        table = Table(place, run)
        for name, change in CHANGES.items():
            table.check(name, change)
        text = (tmp_path / "sums.py").read_text()
        place.apply(Change(lambda c: c.edit("sums.py", "METRICS = (Sevens,)", "METRICS = (ExactMatch,)")))
        table.compare("a change", _states(place.cells(place.keys()), {"sums|*": "PSM", "outside|*": "POSM"}))
        place.apply(Change(lambda c: (c.folder / "sums.py").write_text(text)))
        table.compare("the change, back before a run", _states(place.cells(place.keys()), {"outside|*": "POSM"}))
        assert place.command("run").returncode == 0
        table.compare("a run of everything", set())
    assert not table.wrong, "\n".join([*table.lines, "", *table.wrong])


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_fails_makes_nothing_red_that_is_current_and_the_next_one_all_green(tmp_path: Path, tiny_model: Path, way: str) -> None:
    with _place(tmp_path, tiny_model, way) as (place, run):
        table = Table(place, run)
        for name, fault in FAULTS.items():
            cells, of_suite = place.cells(place.keys()), place.cells(place.keys(suite=True))
            broken = _states(cells, fault.stale)
            place.apply(Change(fault.begin, is_seen=False))
            table.compare(f"{name}: before the run", broken)
            run(place)
            table.compare_red(f"{name}: after the run", broken & of_suite)
            table.compare(f"{name}: after the run", broken)
            fault.end(place.checkout)
            run(place)
            table.compare_red(f"{name}: after the next one", set())
            place.apply(CHANGES["nothing"])  # of what is outside the suite, a look says that it is as before
            table.compare(f"{name}: after the next one", set())
    assert not table.wrong, "\n".join([*table.lines, "", *table.wrong])
