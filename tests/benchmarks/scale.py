"""The cost of many samples: the peak memory of a run and its processor time, on a model that answers at once."""

import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from overhead import cpu_seconds, environment_of
from sides import Row, Setting
from works import ROOT

TASK = Path(__file__).with_name("long_rows.py")
_EVERY_S = 0.1
_BATCH = 10_000
_MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Size:
    """A dataset that is measured, with its goals."""

    samples: int
    characters: int
    """Length of each question."""
    most_mib: int
    most_cpu_s: float

    def __str__(self) -> str:
        return f"{self.samples:,} samples of {self.characters:,} characters"


SIZES = (
    Size(samples=100_000, characters=100, most_mib=600, most_cpu_s=56),
    Size(samples=100_000, characters=10_000, most_mib=1536, most_cpu_s=60),
    Size(samples=1_000_000, characters=100, most_mib=1536, most_cpu_s=150),
)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Time and memory of a command and the processes that it started."""

    seconds: float
    cpu_s: float
    peak_mib: float
    """Memory of all processes at one moment. A page that several share counts once."""

    def told(self) -> str:
        """For a table."""
        return f"{self.peak_mib:,.0f} MiB, {self.cpu_s:.0f} s of a processor, {self.seconds:.0f} s"


def run_scale(setting: Setting, say: Any) -> Row:
    """Peak memory and processor time of `eval-dagster run` for each size."""
    row = Row(name="scale", title="Many samples")
    for size in SIZES:
        scaled = Size(samples=int(size.samples * setting.scale), characters=size.characters, most_mib=0, most_cpu_s=0)
        data = setting.scratch / f"rows-{size.samples}-{size.characters}"
        write_rows(data, scaled)
        costs = []
        for repeat in range(setting.repeats):
            home = setting.scratch / f"scale-{size.samples}-{size.characters}-{repeat}"
            costs.append(run(home, data))
            say(f"scale: {scaled}: {costs[-1].told()}")
        peak, cpu = (statistics.median(values) for values in zip(*((each.peak_mib, each.cpu_s) for each in costs), strict=True))
        middle = min(costs, key=lambda each: abs(each.peak_mib - peak))
        row.cells[str(scaled)] = f"{middle.told()} (goals {size.most_mib:,} MiB, {size.most_cpu_s:.0f} s)"
        row.figures[str(scaled)] = {"peak_mib": peak, "cpu_s": cpu, "seconds": middle.seconds}
        if setting.scale >= 1:
            row.missed += [f"memory of {size}"] if peak > size.most_mib else []
            row.missed += [f"time of {size}"] if cpu > size.most_cpu_s else []
    return row


def write_rows(folder: Path, size: Size) -> None:
    """Write a dataset of questions that differ, as one Parquet file."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn, first = Random(size.characters), "".join(Random(0).choices("abcdefghij ", k=size.characters))
    schema = pa.schema([("question", pa.string()), ("answer", pa.string())])
    with pq.ParquetWriter(folder / "test.parquet", schema) as file:
        for start in range(0, size.samples, _BATCH):
            rows = []
            for number in range(start, min(start + _BATCH, size.samples)):
                place = drawn.randrange(size.characters)
                question = f"{number}: {first[place:]}{first[:place]}"[: size.characters]
                rows.append({"question": question, "answer": str(number % 7)})
            file.write_table(pa.Table.from_pylist(rows, schema=schema))


def run(home: Path, data: Path, *options: str) -> Cost:
    """Run `eval-dagster run` on a dataset in a new home, or in one of an earlier run.

    Raises:
        RuntimeError: It failed.
    """
    home.mkdir(parents=True, exist_ok=True)
    content = {
        "models": {"model": {"backend": "scripted", "function": f"{TASK}:answer"}},
        "evals": {"rows": {"task": f"{TASK}:LongRows"}},
    }
    if not (home / "rows").exists():
        (home / "rows").symlink_to(data.resolve())
    (home / "evals.yaml").write_text(yaml.safe_dump(content), "utf-8")
    return measured(home, "run", *options)


def measured(home: Path, *command: str) -> Cost:
    """Run a command of `eval-dagster` on the evals.yaml of a home. Raises `RuntimeError` if it failed."""
    started, before = time.perf_counter(), cpu_seconds()
    whole: Sequence[str] = [sys.executable, "-m", "eval_dagster.cli", *command]
    with (home / "log.txt").open("wb") as log:
        process = subprocess.Popen(whole, env=environment_of(home), cwd=ROOT, stdout=log, stderr=log)
        with _peak_of(process.pid) as peak:
            status = process.wait()
    if status:
        raise RuntimeError(f"eval-dagster {' '.join(command)} ended with status {status}:\n{(home / 'log.txt').read_text()[-2000:]}")
    return Cost(seconds=time.perf_counter() - started, cpu_s=cpu_seconds() - before, peak_mib=peak[0] / _MIB)


@contextmanager
def _peak_of(pid: int) -> Iterator[list[int]]:
    """Watch the memory of a process and its descendants within the block. Afterwards the list has its peak, in bytes."""
    peak, is_over = [0], threading.Event()

    def watch() -> None:
        while not is_over.wait(_EVERY_S):
            with suppress(psutil.Error):
                root = psutil.Process(pid)
                total = 0
                for process in (root, *root.children(recursive=True)):
                    with suppress(psutil.Error):
                        total += process.memory_full_info().pss
                peak[0] = max(peak[0], total)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        is_over.set()
        watcher.join()
