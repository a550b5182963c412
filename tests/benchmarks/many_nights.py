"""A home after many nights of a suite: what a night costs, what the home holds, and what `gc --stores` leaves of it.

    PYTHONPATH=.:tests python tests/benchmarks/many_nights.py FOLDER 365    goes on where it was, prints costs and sizes, and deletes

Each night is a command in a process of its own, forked from one with the libraries imported, and scores differ from night to night. Nights
follow each other without a pause, so that ages are counted from a later time: `now` of `gc`. Catalogs get the dates of past days.
"""

import json
import os
import shutil
import statistics
import sys
import textwrap
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import eval_dagster.cli.run

# isort: split
import dagster._core.execution.api  # noqa: F401
import mlflow.store.tracking.sqlalchemy_store  # noqa: F401
import pandas as pd  # noqa: F401
from scripted_nights import Nights

import eval_dagster.assets.definitions
import eval_dagster.assets.runs.in_process_runs  # noqa: F401
from eval_dagster.cli import main
from eval_dagster.cli.old_runs import stored_runs
from eval_dagster.gate.results import current_result
from eval_dagster.gate.standings import Standings
from eval_dagster.lake.catalog.archives import archive
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.files import catalog_path
from eval_dagster.named_runs import named_runs
from eval_dagster.project import Project
from eval_dagster.retention import Keep, Policy, prune

SUITE = "nightly"
CONFIG = """
    models:
      mine: {backend: scripted, function: "mine.py:answer"}
    evals:
      capitals: {task: capitals}
      arithmetic: {task: arithmetic, limit: 60, num_fewshot: 1}
    suites:
      nightly: {evals: [capitals, arithmetic], models: [mine]}
"""
FIRST = datetime(2025, 1, 1, 12, tzinfo=UTC)
"""The day of the first night's catalog."""


@dataclass(frozen=True, kw_only=True)
class Night:
    """What a night took."""

    number: int
    processor_s: float
    memory_mb: int


class ManyNights(Nights):
    """Nights of a small suite, each by the command `run` in a process."""

    @property
    def home(self) -> Path:
        """The home of the project."""
        return self.folder / "home"

    @property
    def nights(self) -> list[Night]:
        """The nights until now."""
        path = self.folder / "nights.jsonl"
        return [Night(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []

    def project(self, *, shots: int = 1) -> Project:
        """The checkout as it is now."""
        del shots
        path = self.folder / "evals.yaml"
        path.write_text(textwrap.dedent(CONFIG))
        return Project.open(config_path=path, home=self.home)

    def go_on(self, until: int) -> None:
        """Evaluate the suite night by night, up to this number of nights."""
        for number in range(len(self.nights) + 1, until + 1):
            self._night = number
            self.write_models()
            self.project()
            process = os.fork()
            if process == 0:
                self._run()
            _, status, usage = os.wait4(process, 0)
            assert os.waitstatus_to_exitcode(status) in (0, 1), (self.folder / "log").read_text()
            processor_s = round(usage.ru_utime + usage.ru_stime, 2)
            night = Night(number=number, processor_s=processor_s, memory_mb=usage.ru_maxrss // 1024)
            self._archive(FIRST + timedelta(days=number))
            with (self.folder / "nights.jsonl").open("a") as file:
                file.write(json.dumps(asdict(night)) + "\n")

    def _run(self) -> None:
        log = os.open(self.folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ |= {
            "EVAL_DAGSTER_CONFIG": str(self.folder / "evals.yaml"),
            "EVAL_DAGSTER_HOME": str(self.home),
            "DAGSTER_HOME": str(self.home / "dagster"),
        }
        os.chdir(self.folder)
        sys.argv[:] = ["eval-dagster", "run", "--suite", SUITE]
        try:
            main.main()
        finally:
            os._exit(9)

    def _archive(self, day: datetime) -> None:
        """Keep the catalog as that of a day."""
        beside = self.folder / "catalog" / "evals.duckdb"
        beside.parent.mkdir(exist_ok=True)
        if not (beside.parent / "catalogs").exists():
            (self.home / "catalogs").mkdir(exist_ok=True)
            (beside.parent / "catalogs").symlink_to(self.home / "catalogs")
        shutil.copyfile(catalog_path(self.project().lake), beside)
        os.utime(beside, (day.timestamp(), day.timestamp()))
        archive(beside)

    def collect(self, keep: int) -> None:
        """Delete what `gc --keep KEEP --stores --yes` would delete in three days."""
        project, now, kept = self.project(), datetime.now(UTC) + timedelta(days=3), Keep(count=keep)
        before = named_runs(project.lake)
        found = prune(project, Policy(keep=kept, catalogs=kept), now=now)
        os.environ["DAGSTER_HOME"] = str(self.home / "dagster")
        with stored_runs(project, kept, before=before, found=found, tolerant=False, now=now) as old:
            assert old.delete() == []

    def size(self) -> dict[str, int]:
        """Bytes of each part of the home."""
        parts = {
            path: [path, *path.rglob("*")] if path.is_dir() and not path.is_symlink() else [path] for path in sorted(self.home.iterdir())
        }
        return {path.name: sum(each.lstat().st_size for each in files if each.is_file()) for path, files in parts.items()}

    def state(self) -> dict[str, object]:
        """What people see of the newest results: verdicts, anchors, the leaderboard, and the scores of the last nights."""
        project = self.project()
        result, standings = current_result(project.lake, SUITE), Standings(project.lake, SUITE)
        keys = [("capitals", "mine"), ("arithmetic", "mine")]
        anchors = {(*key, metric): standings.of(key, metric).anchor_at for key in keys for metric in standings.metrics(key)}
        recent = "select eval, materialized_at, metric, value from metrics_history where subject is null order by all desc limit 12"
        return {
            "verdicts": result and [(each.eval, each.model, each.metric, each.verdict, each.reason) for each in result.regressions],
            "anchors": anchors,
            "leaderboard": read_rows(project.lake, "select * from leaderboard"),
            "history": read_rows(project.lake, recent),
        }


def _told(sizes: dict[str, int]) -> str:
    largest = sorted(sizes.items(), key=lambda each: -each[1])[:7]
    return f"{sum(sizes.values()) / 1e6:.0f} MB: " + ", ".join(f"{name} {size / 1e6:.1f}" for name, size in largest)


if __name__ == "__main__":
    nights = ManyNights(Path(sys.argv[1]))
    nights.folder.mkdir(parents=True, exist_ok=True)
    nights.go_on(int(sys.argv[2]))
    costs = [night.processor_s for night in nights.nights]
    tens = [costs[begin : begin + 10] for begin in range(0, len(costs), 10)]
    lines = [f"nights {10 * number + 1} to {10 * number + 10}: {statistics.median(ten):.2f} s (median)" for number, ten in enumerate(tens)]
    sys.stdout.write("\n".join([*lines, f"home: {_told(nights.size())}\n"]))
    shown = nights.state()
    nights.collect(30)
    sys.stdout.write(f"after gc --keep 30 --stores: {_told(nights.size())}\n")
    sys.stdout.write(f"the state is {'as before' if nights.state() == shown else 'another'}\n")
