"""The table of the results, with the machine on which they were measured."""

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

import psutil
import torch
from sides import Row, Setting
from works import ROOT


def machine() -> str:
    """Processor, accelerator and memory, in words."""
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines() if Path("/proc/cpuinfo").is_file() else []
    processor = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())
    device = f", {asked_of_driver('name')}" if torch.cuda.is_available() else ""
    return f"{processor}, {os.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB{device}"


def asked_of_driver(name: str) -> str:
    """What the driver says of the first GPU. Torch would keep some of its memory for the answer."""
    command = ["nvidia-smi", f"--query-gpu={name}", "--format=csv,noheader"]
    found = subprocess.run(command, capture_output=True, text=True, check=False) if shutil.which(command[0]) else None
    return found.stdout.strip().splitlines()[0] if found and found.returncode == 0 and found.stdout.strip() else "unknown"


def markdown(rows: Sequence[Row], skipped: Mapping[str, str], started: datetime, load: float, setting: Setting) -> str:
    """A page: what was measured where and when, and one table a row, since a row has more figures than a page is wide."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    head = [
        f"# Benchmarks, {started:%Y-%m-%d %H:%M}",
        "",
        f"{machine()}. Python {platform.python_version()}, torch {version('torch')}, transformers {version('transformers')}, "
        f"commit {commit}. {_name(setting.folder)} in float32. Median of {setting.repeats}; seconds of the engines without loading. "
        f"Load of the machine before the first measurement: {load:.1f}.",
        "",
    ]
    engines = [row for row in rows if "lm-eval" in row.cells]
    if engines:
        titles = list(engines[0].cells)
        head += [f"| work | {' | '.join(titles)} | goals missed |", f"|---|{'---|' * (len(titles) + 1)}"]
        head += [f"| {row.title} | {' | '.join(row.cells[title] for title in titles)} | {_missed(row)} |" for row in engines]
        head.append("")
    for row in rows:
        if row not in engines:
            head += [f"| {row.title} | |", "|---|---|", *(f"| {name} | {cell} |" for name, cell in row.cells.items())]
            head += [f"| goals missed | {_missed(row)} |", ""]
    return "\n".join([*head, *(f"Skipped: {name}: {reason}" for name, reason in skipped.items())]).rstrip() + "\n"


def save(page: str, rows: Sequence[Row], started: datetime, *, whole: bool) -> Path:
    """Write page and figures; the name of a run that is not whole says so."""
    path = Path(__file__).parent / "results" / f"{started:%Y-%m-%d-%H%M}{'' if whole else '-partial'}.md"
    path.parent.mkdir(exist_ok=True)
    path.write_text(page, "utf-8")
    path.with_suffix(".json").write_text(json.dumps([asdict(row) for row in rows], indent=1), "utf-8")
    return path


def _name(folder: Path) -> str:
    """What a model's configuration says of it."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    sizes = (config.get(name) for name in ("num_hidden_layers", "hidden_size", "vocab_size"))
    return f"{config['model_type']} of {' x '.join(map(str, sizes))}"


def _missed(row: Row) -> str:
    return ", ".join(row.missed) or "none"
