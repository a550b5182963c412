"""How long the pages of `eval-dagster view` take on 10 million scores, on a lake made by its own API.

python view.py make FOLDER                 writes a home: 40 evals x 20 models x 10,000 samples, and 4 models x 500,000 samples of one eval
python view.py make FOLDER --share 0.01    the same with a hundredth of the samples
python view.py measure FOLDER              prints a Markdown table: each page over HTTP, the first time and the median of the next five
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import ProxyHandler, build_opener

import numpy as np
import pyarrow as pa
import uvicorn

from eval_dagster.lake.catalog.catalog import CatalogReader
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.files import Lake, table_of
from eval_dagster.lake.format.parquet_files import FileInfo, new_name, write_parquet
from eval_dagster.lake.tables.schemas import TABLES
from eval_dagster.pages.server.application import application

EVALS, MODELS, SAMPLES = 40, 20, 10_000
LARGE, LARGE_MODELS, LARGE_SAMPLES = "large", 4, 500_000
NIGHTS = 30
"""Results of one eval and model, besides the current ones of all, each with scores of its own."""
LONGEST_S = 0.3
_START = datetime(2026, 1, 1, tzinfo=UTC)
_REPEATS = 5


class Writer:
    """Writes results of made-up models, whole columns at once."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._chance = np.random.default_rng(0)

    def eval(self, name: str, models: list[str], samples: int, at: datetime) -> None:
        """Write the results of all models."""
        numbers = np.arange(samples)
        ids = pa.array([f"{number * 2654435761 % 2**48:012x}" for number in numbers.tolist()])
        prompts = pa.array(
            [f"Q: What is {number} plus {number % 97}, and is {number} more than a thousand?\nA:" for number in numbers.tolist()]
        )
        subjects = pa.array([f"subject {number % 20}" for number in numbers.tolist()])
        for model in models:
            self.result(name, model, at, ids, prompts, subjects)

    def result(self, name: str, model: str, at: datetime, ids: pa.Array, prompts: pa.Array | None, subjects: pa.Array) -> None:
        """Write a result: its prompts if there are, its responses, two metrics of each sample, and their means."""
        key = {"eval": name, "model": model}
        versions = {"dataset_snapshot": "d" * 16, "rendered_prompts": "p" * 16, "model": "m" * 16, "model_content": "c" * 16}
        if prompts is not None:
            gold = pa.array([["42"]] * len(ids))
            messages = pa.array([json.dumps([{"role": "user", "content": text}]) for text in prompts.to_pylist()])
            asked = {**key, "sample_id": ids, "source_id": ids, "request_id": ids, "subject": subjects, "prompt": prompts, "gold": gold}
            asked |= {"messages": messages, "response_type": "completion"}
            self._write("prompts", asked, at, versions, version="p" * 16)
        right = self._chance.random(len(ids)) < 0.6
        texts = pa.array([[f"I think that it is {42 if each else 7}."] for each in right.tolist()])
        response = {**key, "sample_id": ids, "request_id": ids, "text": texts, "output_tokens": pa.array([9] * len(ids), pa.int64())}
        answered = self._write("responses", response, at, versions)[1]
        score = {**key, "sample_id": ids, "source_id": ids, "subject": subjects}
        closeness = pa.array(self._chance.random(len(ids)))
        parts = [
            self._table("scores", {**score, "metric": metric, "value": values})
            for metric, values in (("accuracy", pa.array(right.astype(float))), ("closeness", closeness))
        ]
        path, version = self._write("scores", pa.concat_tables(parts), at, versions | {"model_outputs": answered})
        rows = [
            {
                **key,
                "metric": metric,
                "aggregation": "micro",
                "value": float(np.mean(values)),
                "stderr": 0.005,
                "n": len(ids),
                "n_errors": 0,
            }
            | {"ci_low": float(np.mean(values)) - 0.01, "ci_high": float(np.mean(values)) + 0.01, "higher_is_better": True}
            | {"is_headline": metric == "accuracy", "materialized_at": at, "dagster_run_id": "r", "prompt_version": "p" * 16}
            | {"model_version": "m" * 16, "metric_version": "1" * 16, "scores_file": str(path.relative_to(self._lake.root))}
            for metric, values in (("accuracy", right), ("closeness", closeness.to_numpy()))
        ]
        self._write("metrics", table_of("metrics", rows), at, versions | {"sample_scores": version})

    def judgement(self, models: list[str], at: datetime) -> None:
        """Write a judgement of the suite."""
        rows = [
            {"suite": "nightly", "judged_at": at, "run_id": "r", "eval": "e00", "model": model, "metric": "accuracy", "is_passed": True}
            | {"verdict": "no change seen", "materialized_at": at, "baseline": f"{model}@2026", "baseline_materialized_at": at}
            for model in models
        ]
        name = new_name("judgement", at)
        info = FileInfo(
            fingerprint=name,
            version=name,
            run_id="r",
            materialized_at=at.isoformat(),
            inputs={"suite": "nightly", "severity": "error"},
            counts={"level": 0.05, "alpha": 0.05},
        )
        for table in ("sample_changes", "looks", "regressions"):
            write_parquet(self._lake.folder(table, "nightly") / name, table_of(table, rows if table == "regressions" else []), info)

    def _table(self, table: str, columns: dict[str, object]) -> pa.Table:
        count = len(columns["sample_id"])  # type: ignore[arg-type]
        found = {}
        for field in TABLES[table]:
            value = columns.get(field.name)
            is_column = isinstance(value, pa.Array | pa.ChunkedArray)
            found[field.name] = value.cast(field.type) if is_column else pa.repeat(pa.scalar(value, field.type), count)  # type: ignore[union-attr]
        return pa.table(found, schema=TABLES[table])

    def _write(
        self, table: str, rows: pa.Table | dict[str, object], at: datetime, inputs: dict[str, str], version: str | None = None
    ) -> tuple[Path, str]:
        rows = self._table(table, rows) if isinstance(rows, dict) else rows
        version = version or f"{self._chance.integers(2**62):016x}"
        info = FileInfo(
            fingerprint=version, version=version, run_id="synthetic", materialized_at=at.isoformat(timespec="microseconds"), inputs=inputs
        )
        key = {name: rows.column(name)[0].as_py() for name in ("eval", "model")}
        return self._lake.write(table, rows, eval_name=key["eval"], model=key["model"], info=info).path, version


def make(folder: Path, share: float) -> None:
    """Write a home with that share of the samples."""
    lake = Lake(folder / "home")
    writer, models = Writer(lake), [f"m{number:02}" for number in range(MODELS)]
    for number in range(EVALS):
        writer.eval(f"e{number:02}", models, max(10, int(SAMPLES * share / 2)), _START + timedelta(days=NIGHTS))
        sys.stderr.write(f"{number + 1} of {EVALS} evals\n")
    writer.eval(LARGE, models[:LARGE_MODELS], max(10, int(LARGE_SAMPLES * share / 2)), _START + timedelta(days=NIGHTS))
    for night in range(NIGHTS):
        writer.eval("e00", models[:1], max(10, int(SAMPLES * share / 2)), _START + timedelta(days=night))
        writer.judgement(models[:5], _START + timedelta(days=night))
    publish(lake)


@contextmanager
def served(lake: Lake) -> Iterator[str]:
    """The address of the pages of a lake, served by a thread."""
    server = uvicorn.Server(uvicorn.Config(application(CatalogReader(lake)), host="127.0.0.1", port=0, log_level="warning", lifespan="off"))
    thread = Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


def pages(lake: Lake) -> dict[str, str]:
    """The address of each kind of page, by what it shows."""
    with CatalogReader(lake).state() as state:
        of = {
            name: {
                row["materialized_at"]
                for row in state.rows("select materialized_at from metrics_history where eval = $eval", {"eval": name})
            }
            for name in ("e00", LARGE)
        }
        ids = {
            name: state.rows("select min(sample_id) as id from scores where eval = $eval and model = 'm00'", {"eval": name})[0]["id"]
            for name in ("e00", LARGE)
        }
    old = quote(min(of["e00"]).astimezone(UTC).isoformat())
    found = {
        "last night": "/",
        "leaderboard": "/leaderboard",
        "matrix": "/matrix",
        "history": "/history?eval=e00&model=m00",
        "nights": "/nights",
        "one night": "/night?suite=nightly",
    }
    for name, title in (("e00", "10,000"), (LARGE, "500,000")):
        key = f"eval={name}&model=m01"
        found |= {
            f"comparison of two models, {title} scores each": f"/compare?eval={name}&a=m00&b=m01&metric=accuracy",
            "the same, continuous": f"/compare?eval={name}&a=m00&b=m01&metric=closeness",
            f"agreement of metrics, {title} scores": f"/agreement?{key}",
            f"samples, {title} scores": f"/samples?{key}",
            f"samples worse than another model's, {title} scores": f"/samples?{key}&against=m00&show=worse",
            f"samples sorted by score, {title} scores": f"/samples?{key}&metric=closeness&sort=highest",
            f"last part of the samples, {title} scores": f"/samples?{key}&page=9999999",
            f"samples with a text, {title} scores": f"/samples?{key}&text=more+than+a",
            f"one sample, {title} scores": f"/sample?{key}&sample={ids[name]}",
        }
        found = {(f"{each} ({title})" if each == "the same, continuous" else each): path for each, path in found.items()}
    found["samples of an old night"] = f"/samples?eval=e00&model=m00&at={old}"
    found["one sample over nights"] = f"/sample?eval=e00&model=m00&sample={ids['e00']}"
    return found


def seconds(address: str) -> float:
    """What a page takes, as a client sees it."""
    opener = build_opener(ProxyHandler({}))
    begin = time.perf_counter()
    try:
        with opener.open(address, timeout=120) as answer:
            answer.read()
    except HTTPError as error:
        raise RuntimeError(f"{address}: {error.code} {error.read().decode()}") from error
    return time.perf_counter() - begin


def measured(folder: Path) -> dict[str, tuple[float, float, float]]:
    """For each page the seconds of the first time, the median of the next ones, and of those the least seconds of the processor."""
    lake = Lake(folder / "home")
    with served(lake) as base:
        found = {}
        for title, path in pages(lake).items():
            first, again, busy = seconds(base + path), [], []
            for _ in range(_REPEATS):
                begin = time.process_time()
                again.append(seconds(base + path))
                busy.append(time.process_time() - begin)
            found[title] = (first, statistics.median(again), min(busy))
    return found


def main() -> None:
    """Make or measure a lake."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("make", "measure"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--share", type=float, default=1.0)
    options = parser.parse_args()
    if options.what == "make":
        os.fsync = lambda _: None
        make(options.folder.resolve(), options.share)
        return
    lines = ["| page | first | then | of the processor |", "|---|---|---|---|"]
    lines += [
        f"| {title} | " + " | ".join(f"{each * 1000:.0f} ms" for each in figures) + " |"
        for title, figures in measured(options.folder.resolve()).items()
    ]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
