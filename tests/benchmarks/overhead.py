"""What everything around a model costs: the command as users run it, on a model that answers at once, and on the demo model."""

import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from sides import Row, Setting
from works import ROOT

from eval_dagster.lake.files import Lake

QUESTIONS = Path(__file__).with_name("scripted_rows.py")
_SIZES = (1_000, 10_000, 100_000)
_MIDDLE = 10_000
_MS_A_SAMPLE, _CACHED_S, _GROWTH, _SHARE = 3.0, 5.0, 1.2, 0.10
_LOADING = re.compile(r"load \S+: ([\d.]+) s")


def run_scripted(setting: Setting, say: Any) -> Row:
    """Seconds of `eval-dagster run` for 1,000 to 100,000 samples, and of a second run that finds all current."""
    sizes = [size for size in _SIZES if size <= _SIZES[-1] * setting.scale] or [_SIZES[0]]
    evals = {f"q{size}": {"subjects": [str(size)], "num_fewshot": 3} for size in (100, *sizes)}
    home = _home(setting, "scripted", evals, {"backend": "scripted", "function": f"{QUESTIONS}:answer"})
    say(f"overhead: a home's first run, 100 samples: {_run(home, 'q100').seconds:.1f} s")
    runs: dict[int, Run] = {}
    for size in sizes:
        runs[size] = _run(home, f"q{size}")
        say(f"overhead: {size:,} samples: {runs[size].told()}, {1000 * runs[size].seconds / size:.2f} ms a sample")
    seconds = {size: run.seconds for size, run in runs.items()}
    middle = _MIDDLE if _MIDDLE in runs else sizes[-1]
    cached = sorted((_run(home, f"q{middle}") for _ in range(setting.repeats)), key=lambda run: run.seconds)[setting.repeats // 2]
    say(f"overhead: {middle:,} samples, all current: {cached.told()}")
    row = Row(name="overhead", title="Around a scripted model")
    row.cells = {f"{size:,} samples": f"{runs[size].told()}, {1000 * seconds[size] / size:.2f} ms each" for size in sizes}
    row.cells[f"{middle:,} samples again, all current"] = f"{cached.told()} (goal {_CACHED_S:g})"
    row.figures = {"seconds": seconds, "cpu_s": {size: run.cpu_seconds for size, run in runs.items()}, "cached_s": cached.seconds}
    if middle == _MIDDLE and 1000 * seconds[middle] / middle > _MS_A_SAMPLE:
        row.missed.append("time a sample")
    if cached.seconds > _CACHED_S:
        row.missed.append("a cached run")
    if len(seconds) == len(_SIZES):
        growth = _growth(seconds)
        row.cells["growth"] = f"a sample more costs {growth:.2f} times as much from 10,000 on as before (goal {_GROWTH})"
        row.missed += ["linear growth"] if growth > _GROWTH else []
    return row


def run_with_model(setting: Setting, say: Any) -> Row:
    """The share of everything but loading and running the demo model, for 1,000 questions without examples."""
    size = next(size for size in (100, 300, 1_000) if size >= 1_000 * setting.scale or size == 1_000)
    model = {"backend": "transformers", "source": {"folder": str(setting.folder)}, "dtype": "float32"}
    home = _home(setting, "model", {f"q{size}": {"subjects": [str(size)]}, "first": {"subjects": ["100"], "limit": 1}}, model)
    _run(home, "first")
    done = _run(home, f"q{size}")
    seconds = done.seconds
    counts = Lake(home).require("responses", "model_outputs", f"q{size}", "model").info.counts
    if counts["errors"]:
        raise RuntimeError(f"{counts['errors']:.0f} of {size} questions failed")
    loading = sum(map(float, _LOADING.findall(done.log)))
    around = seconds - loading - counts["model_seconds"]
    say(f"overhead: {size:,} questions to the demo model: {seconds:.1f} s, of which the model {counts['model_seconds']:.1f} s")
    row = Row(name="overhead_model", title=f"Around the demo model, {size:,} questions")
    row.cells = {
        "whole command": f"{seconds:.1f} s",
        "model": f"{counts['model_seconds']:.1f} s and {loading:.1f} s to load",
        "around": f"{around:.1f} s, {around / seconds:.1%} (goal {_SHARE:.0%})",
    }
    row.missed = ["share"] if around > _SHARE * seconds else []
    row.figures = {"seconds": seconds, "model_seconds": counts["model_seconds"], "loading_s": loading}
    return row


def _growth(seconds: dict[int, float]) -> float:
    """What a sample costs between the two larger sizes, by what it costs between the two smaller ones: 1 where growth is linear."""
    small, middle, large = sorted(seconds)
    return (seconds[large] - seconds[middle]) / (large - middle) / ((seconds[middle] - seconds[small]) / (middle - small))


def _home(setting: Setting, name: str, evals: dict[str, dict[str, Any]], model: dict[str, Any]) -> Path:
    home = setting.scratch / name
    home.mkdir()
    content = {
        "models": {"model": model},
        "evals": {each: {"task": f"{QUESTIONS}:InventedQuestions", **settings} for each, settings in evals.items()},
    }
    (home / "evals.yaml").write_text(yaml.safe_dump(content), "utf-8")
    return home


@dataclass(frozen=True, kw_only=True)
class Run:
    """A command that is done."""

    seconds: float
    """From its start to its end, imports included."""
    cpu_seconds: float
    """What it had of the processors: less, where it waited for others."""
    log: str

    def told(self) -> str:
        """For a table."""
        return f"{self.seconds:.1f} s ({self.cpu_seconds:.1f} s of a processor)"


def _run(home: Path, eval_name: str) -> Run:
    return run_command(home, "--eval", eval_name)


def run_command(home: Path, *options: str) -> Run:
    """Run `eval-dagster run` on the evals.yaml of a home.

    Raises:
        RuntimeError: It failed.
    """
    command: Sequence[str] = [sys.executable, "-m", "eval_dagster.cli", "run", *options]
    started, cpu_before = time.perf_counter(), cpu_seconds()
    done = subprocess.run(command, env=environment_of(home), cwd=ROOT, capture_output=True, text=True, check=False)
    run = Run(seconds=time.perf_counter() - started, cpu_seconds=cpu_seconds() - cpu_before, log=done.stderr)
    if done.returncode:
        raise RuntimeError(f"eval-dagster run {' '.join(options)} ended with status {done.returncode}:\n{done.stderr[-2000:]}")
    return run


def environment_of(home: Path) -> dict[str, str]:
    """The environment of a command on the evals.yaml of a home."""
    places = {"EVAL_DAGSTER_CONFIG": str(home / "evals.yaml"), "EVAL_DAGSTER_HOME": str(home), "DAGSTER_HOME": str(home / "dagster")}
    return {**os.environ, **places}


def cpu_seconds() -> float:
    """What the processes that this one started and that have ended had of the processors."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
