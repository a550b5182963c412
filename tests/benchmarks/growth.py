"""How the lake's costs grow with its files: publishing, queries and gc, on a lake made by its own API.

    python growth.py make FOLDER --evals 500 --nights 1095     writes a lake: evals x 25 models, then a suite of 20 results a night
    python growth.py measure FOLDER                            prints a Markdown table; each cell is measured in a process of its own

A result has ten samples, so that a file is small and the number of files is what is measured. While files are made, nothing is synced.
The measured code is the one that Python imports: with PYTHONPATH another checkout of the package is measured on the same lake.
"""

import argparse
import json
import os
import random
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from eval_dagster.lake.files import Lake, table_of
from eval_dagster.lake.format.parquet_files import FileInfo, new_name, write_parquet
from eval_dagster.lake.tables.schemas import TABLES

MODELS, SAMPLES = 25, 10
SUITE_EVALS, SUITE_MODELS = 4, 5
QUERIES = {
    "one partition of `responses`": "select * from responses where eval = 'e0007' and model = 'm03'",
    "mean score by eval": "select eval, avg(value) from scores group by eval",
    "`leaderboard`": "select * from leaderboard",
}
_PUBLISH = "from eval_dagster.lake.catalog.catalog import publish; publish(lake)"
_QUERY = "from eval_dagster.lake.catalog.catalog import read_rows; rows = read_rows(lake, {!r}); assert rows"
_PLAN = """
from datetime import timedelta
from eval_dagster.project import Project
from eval_dagster.retention import Keep, Policy, plan
project = Project.open(config_path=Path({folder!r}) / "evals.yaml", home=lake.home)
begin, processor = perf_counter(), process_time()
plan(project, Policy(keep=Keep(age=timedelta(days=90)), catalogs=Keep(count=30)))
"""
_SIDE = """
import json, resource
from pathlib import Path
from time import perf_counter, process_time
from eval_dagster.lake import catalog
from eval_dagster.lake.files import Configured, Lake
lake = Lake(Path({folder!r}) / "home")
begin, processor = perf_counter(), process_time()
{statement}
print()  # ends the line of DuckDB's progress
print(json.dumps([perf_counter() - begin, process_time() - processor, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""


class Writer:
    """Writes results of made-up models."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._chance = random.Random(0)

    def result(self, eval_name: str, model: str, time: datetime, *, with_prompts: bool = False) -> None:
        """Write the files of one result."""
        key = {"eval": eval_name, "model": model}
        names = [f"{eval_name}-{number:03}" for number in range(SAMPLES)]
        versions = {"dataset_snapshot": f"{eval_name:0>16}", "rendered_prompts": f"{eval_name + model:0>16}"}
        versions |= {"model": f"{self._chance.getrandbits(64):016x}", "model_content": "0" * 16}
        texts = [f" {self._chance.random()}" for _ in names]
        if with_prompts:
            rows = [
                {**key, "sample_id": name, "source_id": name, "request_id": f"{model}-{name}", "prompt": f"What is {name}? " * 10}
                for name in names
            ]
            self._write("prompts", rows, time, versions)
        rows = [
            {**key, "sample_id": name, "request_id": f"{model}-{name}", "text": [text]} for name, text in zip(names, texts, strict=True)
        ]
        self._write("responses", rows, time, versions)
        values = [float(self._chance.random() < 0.5) for _ in names]
        rows = [{**key, "sample_id": name, "metric": "accuracy", "value": value} for name, value in zip(names, values, strict=True)]
        scores = self._write("scores", rows, time, versions | {"model_outputs": self._version})
        row = {**key, "metric": "accuracy", "aggregation": "micro", "value": sum(values) / SAMPLES, "n": SAMPLES, "n_errors": 0}
        row |= {
            "higher_is_better": True,
            "is_headline": True,
            "materialized_at": time,
            "dagster_run_id": f"{self._chance.getrandbits(64):x}",
        }
        row |= {"prompt_version": versions["rendered_prompts"], "model_version": versions["model"]}
        row |= {"scores_file": str(scores.relative_to(self._lake.root)), "metric_version": "1" * 16}
        self._write("metrics", [row], time, versions | {"sample_scores": self._version})

    def samples(self, eval_name: str, time: datetime) -> None:
        """Write the rows of a dataset."""
        rows = [{"eval": eval_name, "sample_id": f"{eval_name}-{number:03}", "row": "{}", "row_index": number} for number in range(SAMPLES)]
        self._write("samples", rows, time, {})

    def judgement(self, results: list[tuple[str, str]], time: datetime) -> None:
        """Write a judgement of the suite."""
        rows = [
            {"suite": "nightly", "judged_at": time, "run_id": "r", "eval": name, "model": model, "metric": "accuracy", "is_passed": True}
            | {"verdict": "no change seen", "materialized_at": time, "baseline": "last passed", "baseline_materialized_at": time}
            for name, model in results
        ]
        name = new_name("judgement", time)
        info = FileInfo(fingerprint=name, version=name, run_id="r", materialized_at=time.isoformat(), counts={"level": 0.05, "alpha": 0.05})
        for table in ("sample_changes", "looks", "regressions"):
            found = rows if table == "regressions" else []
            write_parquet(self._lake.folder(table, "nightly") / name, table_of(table, found), info)

    def _write(self, table: str, rows: list[dict[str, Any]], time: datetime, inputs: dict[str, str]) -> Path:
        self._version = f"{self._chance.getrandbits(64):016x}"
        materialized_at = time.isoformat(timespec="microseconds")
        info = FileInfo(
            fingerprint=self._version, version=self._version, run_id="synthetic", materialized_at=materialized_at, inputs=inputs
        )
        columns = {field.name: pa.array([row.get(field.name) for row in rows], field.type) for field in TABLES[table]}
        model = rows[0].get("model")
        return self._lake.write(table, pa.table(columns), eval_name=rows[0]["eval"], model=model, info=info).path


def make(folder: Path, evals: int, nights: int) -> None:
    """Write a home with that many evals, and a suite of some of them for that many nights."""
    os.fsync = lambda _: None
    folder.mkdir(parents=True)
    names, models = [f"e{number:04}" for number in range(evals)], [f"m{number:02}" for number in range(MODELS)]
    config = {
        "models": {model: {"backend": "scripted", "default": model} for model in models},
        "evals": {name: {"task": "arithmetic"} for name in names},
        "suites": {"nightly": {"evals": names[:SUITE_EVALS], "models": models[:SUITE_MODELS]}},
    }
    (folder / "evals.yaml").write_text(json.dumps(config))
    now = datetime.now(UTC)
    writer, time = Writer(Lake(folder / "home")), now - timedelta(days=nights + 1)
    for name in names:
        writer.samples(name, time)
        for model in models:
            writer.result(name, model, time, with_prompts=True)
    suite = [(name, model) for name in names[:SUITE_EVALS] for model in models[:SUITE_MODELS]]
    for night in range(nights):
        time = now - timedelta(days=nights - night)
        for name, model in suite:
            writer.result(name, model, time)
        writer.judgement(suite, time + timedelta(minutes=1))


def change(folder: Path) -> None:
    """Write one more result of the last eval and model."""
    Writer(Lake(folder / "home")).result("e0050", f"m{MODELS - 1:02}", datetime.now(UTC))


def side(folder: Path, statement: str) -> list[float]:
    """Seconds, seconds of the processor, and peak MiB of a statement in a process of its own."""
    text = _SIDE.format(folder=str(folder), statement=statement)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    figures: list[float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def measure(folder: Path, changes: int) -> None:
    """Print what each operation takes."""
    files = sum(len(names) for _, _, names in os.walk(folder / "home" / "lake"))
    rows = [("first publication", side(folder, _PUBLISH))]
    rows.append(("publish, nothing changed", side(folder, _PUBLISH)))
    for _ in range(changes):
        change(folder)
        rows.append(("publish, one result changed", side(folder, _PUBLISH)))
    rows.append(("publish, nothing changed", side(folder, _PUBLISH)))
    rows += [(title, side(folder, _QUERY.format(query))) for title, query in QUERIES.items()]
    rows.append(("`gc` plan", side(folder, _PLAN.format(folder=str(folder)))))
    lines = [f"| {files:,} files | seconds | of the processor | peak MiB |", "|---|---|---|---|"]
    lines += [f"| {title} | {seconds:.2f} | {busy:.2f} | {memory:.0f} |" for title, (seconds, busy, memory) in rows]
    lines.append(f"| `evals.duckdb` | | | {(folder / 'home' / 'evals.duckdb').stat().st_size / 2**20:.0f} (size) |")
    sys.stdout.write("\n".join(lines) + "\n")


def main() -> None:
    """Make or measure a lake."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("make", "measure"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--evals", type=int, default=500)
    parser.add_argument("--nights", type=int, default=1095)
    parser.add_argument("--changes", type=int, default=3)
    options = parser.parse_args()
    folder = options.folder.resolve()
    if options.what == "make":
        make(folder, options.evals, options.nights)
    else:
        measure(folder, options.changes)


if __name__ == "__main__":
    main()
