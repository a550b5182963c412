"""Both sides beside busy processes: what is left of their speed, against what a fair share of the cores would leave."""

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from fairness import judge
from sides import Row, Setting, best_batch_size, run_lm_eval, run_side
from transformers import AutoTokenizer
from works import WORKS, requests_of

_NEIGHBOURS = 2


def run_busy(setting: Setting, say: Any) -> Row:
    """A work alone and beside processes that do nothing but keep a core busy, by both sides in turns.

    Raises:
        MissingRowsError: The questions are not there.
        RuntimeError: A side failed.
    """
    work = next(work for work in WORKS if work.name == "mmlu_few")
    home = setting.scratch / "busy"
    home.mkdir()
    asked = requests_of(work, setting.scale, AutoTokenizer.from_pretrained(setting.folder), home)
    file = setting.scratch / "busy.json"
    file.write_text(json.dumps(asked), "utf-8")
    best, _, _ = best_batch_size("busy", asked, setting, say)
    runs: dict[tuple[str, int], list[dict[str, Any]]] = {(side, count): [] for side in ("ours", "lm-eval") for count in (0, _NEIGHBOURS)}
    for _ in range(setting.repeats):
        for (side, count), done in runs.items():
            with _neighbours(count):
                done.append(run_side("engine_side.py", file, setting) if side == "ours" else run_lm_eval(file, best, setting))
            say(f"busy: {side} beside {count}: {done[-1]['seconds']:.1f} s, {done[-1]['cpu_seconds']:.1f} s of processor time")
    seconds = {case: statistics.median(run["seconds"] for run in done) for case, done in runs.items()}
    row = Row(name="busy", title=f"Beside {_NEIGHBOURS} busy processes: {work.title_at(setting.scale)}, lm-eval at batch {best}")
    row.cells, row.missed = judge(seconds, threads=torch.get_num_threads(), neighbours=_NEIGHBOURS)
    row.figures = {
        f"{side}_beside_{count}_{figure}": [run[figure] for run in done]
        for (side, count), done in runs.items()
        for figure in ("seconds", "cpu_seconds")
    }
    return row


@contextmanager
def _neighbours(count: int) -> Iterator[None]:
    """Processes that keep a core busy each."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
