"""After each change: what Dagster's pages call fresh or stale, what a dry run says, and what a run then makes, cell by cell."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml
from fast_clock import FastClock
from transformers import AutoModelForCausalLM
from ui_servers import REPOSITORY, RunningUi, running_ui, until

pytestmark = [pytest.mark.e2e, pytest.mark.long]

CONFIG = """
    models:
      a: {backend: scripted, function: "answers.py:answer"}
      b: {backend: scripted, default: " 8"}
    evals:
      sums: {task: "sums.py:Sums", num_fewshot: 1, limit: 3}
      capitals: {task: capitals_completion, limit: 1}
      outside: {task: "arithmetic", limit: 1}
    suites:
      nightly: {evals: [sums, capitals], models: [a, b]}
"""
TASK = '''
    """Sums."""

    from eval_dagster import BaseTask, CompletionMetric, ExactMatch, ResponseType


    class Sevens(CompletionMetric):
        """Whether the text is a seven."""

        NAME = "sevens"

        def calculate(self, response):
            return float(response.completion_text.strip() == "7")


    class Sums(BaseTask):
        """Sums."""

        NAME = "Sums"
        DATASET_PATH = "./rows"
        SAMPLE_SPLIT = "test"
        FEWSHOT_SPLIT = "train"
        RESPONSE_TYPE = ResponseType.COMPLETION
        MAX_TOKENS = 8
        METRICS = (Sevens,)
        SUBJECTS = ("default",)

        def _get_instruction_text(self, item):
            return item["question"]

        def _get_ground_truth(self, item):
            return item["answer"]
'''
ANSWERS = """
def answer(request):
    return " 7"
"""
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
NIGHTS = {"cron": "0 0 * * *"}
DAY_S = 86_400.0
LOOK_S = 240
RUN_S = 300
Cell = tuple[str, str]
"""An asset and a partition."""


@dataclass
class Checkout:
    """A folder with an evals.yaml that changes, and a copy of the package whose code changes."""

    folder: Path
    config: dict[str, Any] = field(default_factory=lambda: yaml.safe_load(textwrap.dedent(CONFIG)))

    def write(self) -> None:
        """Write all files."""
        shutil.copytree(REPOSITORY / "eval_dagster", self.folder / "package" / "eval_dagster")
        (self.folder / "sums.py").write_text(textwrap.dedent(TASK))
        self.rows("7", "8", "9")
        (self.folder / "answers.py").write_text(ANSWERS)
        self.save()

    def rows(self, *answers: str) -> None:
        """Write the rows of the task, of which each asks another question."""
        (self.folder / "rows").mkdir(exist_ok=True)
        for split, texts in (("test", answers), ("train", [str(number) for number in range(20)])):
            rows = [{"question": f"{split} {place}: What is 3 + 4?\nA:", "answer": answer} for place, answer in enumerate(texts)]
            (self.folder / "rows" / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))

    def save(self) -> None:
        """Write evals.yaml."""
        (self.folder / "evals.yaml").write_text(yaml.safe_dump(self.config, sort_keys=False))

    def edit(self, file: str, old: str, new: str) -> None:
        """Replace a text in a file."""
        text = (self.folder / file).read_text()
        assert old in text
        (self.folder / file).write_text(text.replace(old, new))

    def set(self, place: str, value: object) -> None:
        """Set a key of evals.yaml."""
        *sections, key = place.split(".")
        section = self.config
        for each in sections:
            section = section.setdefault(each, {})
        section[key] = value
        self.save()

    def rename(self, old: str, new: str) -> None:
        """Rename an eval of the suite."""
        self.config["evals"] = {new if name == old else name: settings for name, settings in self.config["evals"].items()}
        self.set("suites.nightly.evals", [new if name == old else name for name in self.config["suites"]["nightly"]["evals"]])

    def remove_model(self, name: str) -> None:
        """Remove a model."""
        del self.config["models"][name]
        self.set("suites.nightly.models", [each for each in self.config["suites"]["nightly"]["models"] if each != name])


class Change(NamedTuple):
    """A change, and the cells that it makes stale or that are missing after it."""

    apply: Callable[[Checkout], object]
    stale: Mapping[str, str] = {}
    """Letters of stages by a pattern of eval and model."""
    is_seen: bool = True
    """Whether the sensor sees the change at its next tick. Otherwise evals.yaml is saved again, so that nobody has to wait."""
    is_judged: bool = True
    """Whether the suite is judged as it was: neither its list nor its settings have changed."""


def _new_weights(checkout: Checkout) -> None:
    model = AutoModelForCausalLM.from_pretrained(checkout.folder / "weights")
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1
    model.save_pretrained(checkout.folder / "weights")


def _add_tiny_model(checkout: Checkout) -> None:
    checkout.config["models"]["tiny"] = {"backend": "transformers", "device": "cpu", "source": {"folder": "weights"}}
    checkout.set("suites.nightly.models", ["a", "b", "tiny"])


CHANGES = {
    "nothing": Change(lambda c: None, is_seen=False),
    "a comment in the task": Change(lambda c: c.edit("sums.py", "class Sums", "# a comment\nclass Sums")),
    "the prompt": Change(
        lambda c: c.edit("sums.py", 'return item["question"]', 'return "Sum: " + item["question"]'), {"sums|*": "POSM"}
    ),
    "the prompt, back": Change(
        lambda c: c.edit("sums.py", 'return "Sum: " + item["question"]', 'return item["question"]'), {"sums|*": "POSM"}
    ),
    "code that gives the same prompts": Change(
        lambda c: c.edit("sums.py", 'return item["question"]', 'return str(item["question"])'), {"sums|*": "PSM"}
    ),
    "the code of the user's metric": Change(lambda c: c.edit("sums.py", '.strip() == "7"', '.strip() >= "7"'), {"sums|*": "PSM"}),
    "another metric": Change(lambda c: c.edit("sums.py", "METRICS = (Sevens,)", "METRICS = (ExactMatch,)"), {"sums|*": "PSM"}),
    "a row": Change(lambda c: c.rows("7", "0", "9"), {"sums|*": "DPOSM"}, is_seen=False),
    "a row more": Change(lambda c: c.rows("7", "0", "9", "1"), {"sums|*": "DPOSM"}, is_seen=False),
    "a row less, as before": Change(lambda c: c.rows("7", "0", "9"), {"sums|*": "DPOSM"}, is_seen=False),
    "the time of the rows' file": Change(
        lambda c: os.utime(c.folder / "rows" / "test.jsonl", (1, 1)), {"sums|*": "D"}, is_seen=False
    ),
    "a larger limit": Change(lambda c: c.set("evals.capitals.limit", 2), {"capitals|*": "POSM"}),
    "fewer examples": Change(lambda c: c.set("evals.sums.num_fewshot", 2), {"sums|*": "POSM"}),
    "the seed": Change(lambda c: c.set("evals.sums.seed", 1), {"sums|*": "POSM"}),
    "the temperature": Change(lambda c: c.set("models.a.generation", {"temperature": 0.5}), {"*|a": "POSM"}),
    "the most tokens": Change(lambda c: c.set("models.b.generation", {"max_tokens": 5}), {"*|b": "POSM"}),
    "a model's answers": Change(lambda c: c.edit("answers.py", '" 7"', '" 9"'), {"*|a": "OSM"}, is_seen=False),
    "the code of a stage": Change(
        lambda c: c.edit("package/eval_dagster/stages/scores.py", "    task = partition.scorer()\n", "    task, _ = partition.scorer(), 0\n"),
        {"*": "SM"},
        is_seen=False,
    ),
    "a suite's list": Change(lambda c: c.set("suites.nightly.evals", ["sums"]), is_judged=False),
    "a suite's list, back": Change(lambda c: c.set("suites.nightly.evals", ["sums", "capitals"]), is_judged=False),
    "a model more": Change(_add_tiny_model, {"*|tiny": "POSM"}, is_judged=False),
    "its weights": Change(_new_weights, {"*|tiny": "OSM"}, is_seen=False),
    "a model less": Change(lambda c: c.remove_model("tiny"), is_judged=False),
    "an eval's name": Change(lambda c: c.rename("capitals", "cities"), {"cities|*": "DPOSM"}, is_judged=False),
    "an eval outside the suite": Change(lambda c: c.set("evals.outside.limit", 2), {"outside|*": "POSM"}),
}


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
        before = max((int(tick["tickId"]) for tick in self._looks()), default=0)
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
            states |= {
                (asset, key): status for key, status in zip(node["partitionKeys"], node["staleStatusByPartition"], strict=True)
            }
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
                for stage, said in zip(STAGES.values(), stages, strict=False):
                    states[stage, eval_name if stage == STAGES["D"] else f"{eval_name}|{model}"] = said.partition(":")[0]
        assert (done.returncode == 0) == (set(states.values()) == {"fresh"}), done
        return states

    def command(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run `eval-dagster`."""
        command = [sys.executable, "-m", "eval_dagster.cli", *arguments]
        folder, environment = self.checkout.folder, {**self._environment, "COLUMNS": "250"}
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=RUN_S)

    def events(self, after: int = 0) -> list[tuple[int, str, str, str | None]]:
        """The events of assets since then: id, kind, asset and partition."""
        database = self.ui.home / "dagster" / "history" / "runs" / "index.db"
        query = "select id, dagster_event_type, asset_key, partition from event_logs where asset_key is not null and id > ? order by id"
        with closing(sqlite3.connect(database, timeout=60)) as connection:
            rows = connection.execute(query, (after,)).fetchall()
        return [(number, kind, json.loads(asset)[-1], partition) for number, kind, asset, partition in rows]

    def made(self, after: int) -> set[Cell]:
        """The cells that were materialized since then."""
        found = {(asset, partition or "") for _, kind, asset, partition in self.events(after) if kind == "ASSET_MATERIALIZATION"}
        return {cell for cell in found if cell[0] in STAGES.values()}

    def runs(self, job: str) -> list[dict[str, Any]]:
        """The runs of a job that have ended, the newest first."""
        runs = self.ui.query(RUNS, filter={"pipelineName": job})["runsOrError"]["results"]
        return [run for run in runs if run["status"] in ENDED]

    def judged(self, before: int) -> None:
        """Wait for one more gate than before."""
        until(lambda: len(self.runs("gate_nightly")) > before, RUN_S, lambda: f"no gate has ended\n{self.ui.logs()}")


Way = Callable[[Place], None]


def _by_button(place: Place) -> None:
    before = len(place.runs("gate_nightly"))
    selector = {**LOCATION, "jobName": "suite_nightly"}
    launched = place.ui.query(LAUNCH, parameters={"selector": selector, "runConfigData": {}})["launchRun"]
    assert launched["__typename"] == "LaunchRunSuccess", launched
    place.judged(before)


def _by_command(place: Place) -> None:
    done = place.command("run", "--suite", "nightly")
    assert "Gate" in done.stdout, done


def _states(cells: set[Cell], stale: Mapping[str, str]) -> set[Cell]:
    """The cells that a change makes stale."""
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
        self.n_wrong = 0

    def _note(self, change: str, when: str, cell: Cell, said: Mapping[str, object]) -> None:
        is_wrong = len(set(said.values())) > 1
        self.n_wrong += is_wrong
        if is_wrong or set(said.values()) != {"FRESH"}:
            texts = " | ".join(f"{name} {value}" for name, value in said.items())
            self.lines.append(f"{'!!' if is_wrong else 'ok'} | {change} | {when} | {cell[0]} {cell[1]} | {texts}")

    def compare(self, change: str, when: str, expected: set[Cell] | None = None) -> dict[Cell, str]:
        """Compare Dagster's pages with a dry run, and with what is expected. Returns the state of each cell in the pages."""
        shown, _ = self._place.shown()
        planned = self._place.dry_run()
        self._stale = {cell for cell, said in planned.items() if said != "fresh"}
        for cell, said in sorted(planned.items()):
            state = {"fresh": "FRESH", "missing": "MISSING"}.get(said, "STALE")
            more = {} if expected is None else {"expected": state.replace("FRESH", "STALE") if cell in expected else "FRESH"}
            self._note(change, when, cell, {"Dagster": shown.get(cell, "no such cell"), "dry run": state, **more})
        return shown

    def check(self, name: str, change: Change) -> None:
        """Apply a change, compare, run, compare again."""
        place = self._place
        earlier = set(self._stale)
        import time
        t0 = time.time()
        place.apply(change)
        print("TIME apply", time.time() - t0); t0 = time.time()
        cells, of_suite = place.cells(place.keys()), place.cells(place.keys(suite=True))
        wanted = _states(cells, change.stale)
        shown = self.compare(name, "before the run", wanted | (earlier & cells))
        self._note(name, "before the run", ("regressions", "nightly"), {
            "Dagster": shown["regressions", "nightly"], "expected": "FRESH" if change.is_judged else "STALE"})
        print("TIME compare", time.time() - t0); t0 = time.time()
        event = max((each[0] for each in place.events()), default=0)
        self._way(place)
        print("TIME run", time.time() - t0); t0 = time.time()
        made = place.made(event)
        for cell in sorted((made | wanted) & cells | (made - cells)):
            self._note(name, "the run", cell, {"made": cell in made, "expected": cell in wanted & of_suite})
        shown = self.compare(name, "after the run", (wanted | earlier) & cells - of_suite)
        self._note(name, "after the run", ("regressions", "nightly"), {"Dagster": shown["regressions", "nightly"], "expected": "FRESH"})


@contextmanager
def _place(folder: Path, tiny_model: Path, *, nights: bool) -> Iterator[tuple[Place, Way]]:
    checkout = Checkout(folder)
    shutil.copytree(tiny_model, folder / "weights")
    if nights:
        checkout.config["suites"]["nightly"] |= NIGHTS
    checkout.write()
    clock = FastClock(folder, folder / "home", leap_s=DAY_S, most_leaps=3 * len(CHANGES), speed=4.0)
    environment = os.environ | clock.environment
    environment["PYTHONPATH"] = f"{folder / 'package'}{os.pathsep}{environment['PYTHONPATH']}"
    environment |= {"EVAL_DAGSTER_CONFIG": str(folder / "evals.yaml"), "EVAL_DAGSTER_HOME": str(folder / "home")}
    environment |= {"DAGSTER_HOME": str(folder / "home" / "dagster"), "NO_COLOR": "1"}

    def by_night(place: Place) -> None:
        before = len(place.runs("gate_nightly"))
        clock.leap_to_tick(place.ui.is_running)
        place.judged(before)

    with running_ui(folder / "evals.yaml", folder / "home", folder / "ui.out", variables=environment) as ui:
        place = Place(checkout, ui, environment)
        done = place.command("run")
        assert done.returncode == 0, done
        done = place.command("run", "--suite", "nightly")
        assert done.returncode == 0, done
        yield place, by_night


WAYS = {"night": None, "button": _by_button, "command": _by_command}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("way", WAYS)
def test_pages_dry_run_and_run_agree_in_every_cell(tmp_path: Path, tiny_model: Path, way: str) -> None:
    names = os.environ.get("STALE_TABLE", "").split(",") if os.environ.get("STALE_TABLE") else list(CHANGES)
    with _place(tmp_path, tiny_model, nights=way == "night") as (place, by_night):
        table = Table(place, WAYS[way] or by_night)
        for name in names:
            table.check(name, CHANGES[name])
            print("\n".join(table.lines[-1:]) , name, flush=True)
        assert not table.n_wrong, "\n".join(table.lines)
