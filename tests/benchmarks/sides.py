"""Both sides of a piece of work, each measurement in a process of its own, in turns, so that what else the machine does hits both."""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from agreement import compare
from token_tree import count_nodes, count_scored, inputs_of
from works import Work

_HERE = Path(__file__).parent
_PROBED = 32
"""About as many requests tell which batch size is best; a batch of the largest size is among them."""
_MOST_BARE_TOKENS = 16_384
"""The bare model's rate does not change any more after so many."""
_LONGEST_S = 3600
"""Seconds after which a process counts as one that hangs."""
_RATE = 0.85
_OVER_NODES = 1.05


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all rows have in common."""

    lm_eval: Path
    """The interpreter of the environment that holds lm-eval."""
    folder: Path
    """The model's, in safetensors."""
    scratch: Path
    repeats: int
    scale: float
    batch_sizes: tuple[int, ...]
    """Those of which lm-eval's best counts."""


@dataclass(kw_only=True)
class Row:
    """What was measured of one work; a goal that was missed is named in `missed`."""

    name: str
    title: str
    cells: dict[str, str] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)


def run_row(work: Work, asked: dict[str, Any], tokenizer: Any, setting: Setting, say: Any) -> Row:
    """Measure one work.

    Raises:
        RuntimeError: A side failed.
    """
    file = setting.scratch / f"{work.name}.json"
    file.write_text(json.dumps(asked), "utf-8")
    best, probes, is_whole = best_batch_size(work.name, asked, setting, say)
    theirs, ours = [probes[best]] if is_whole else [], []
    while len(ours) < setting.repeats:
        ours.append(run_side("engine_side.py", file, setting))
        say(f"{work.name}: this engine: {ours[-1]['seconds']:.1f} s")
        if len(theirs) == setting.repeats:
            continue
        theirs.append(run_lm_eval(file, best, setting))
        say(f"{work.name}: lm-eval, batch size {best}: {theirs[-1]['seconds']:.1f} s")
    nodes = count_nodes(inputs_of(asked, ours[0]["answers"], tokenizer))
    scored = count_scored(asked, ours[0]["answers"], tokenizer)
    bare = _bare(min(nodes, _MOST_BARE_TOKENS), scored / nodes, setting)
    return _row(work, asked, setting, ours, theirs, best, nodes, bare, {size: each.get("seconds") for size, each in probes.items()})


def best_batch_size(name: str, asked: dict[str, Any], setting: Setting, say: Any) -> tuple[int, dict[int, dict[str, Any]], bool]:
    """The batch size at which lm-eval is fastest on a part of the requests, evenly taken from all of them.

    Returns:
        The size, what was measured at each, and whether the part is the whole.

    Raises:
        RuntimeError: lm-eval failed at all of them.
    """
    part = setting.scratch / f"{name}-part.json"
    step = -(-len(asked["items"]) // _PROBED)
    part.write_text(json.dumps({**asked, "items": asked["items"][::step]}), "utf-8")
    probes: dict[int, dict[str, Any]] = {}
    for size in setting.batch_sizes:
        probes[size] = _lm_eval(part, size, setting)
        say(f"{name}: lm-eval, batch size {size}: {_outcome(probes[size])}")
    running = {size: probe for size, probe in probes.items() if "error" not in probe}
    if not running:
        raise RuntimeError(f"lm-eval failed at every batch size: {next(iter(probes.values()))['error']}")
    return min(running, key=lambda size: float(running[size]["seconds"])), probes, step == 1


def _row(
    work: Work,
    asked: dict[str, Any],
    setting: Setting,
    ours: Sequence[dict[str, Any]],
    theirs: Sequence[dict[str, Any]],
    best: int,
    nodes: int,
    bare: dict[str, Any],
    probes: dict[int, float | None],
) -> Row:
    our_s, their_s = (statistics.median(run["seconds"] for run in runs) for runs in (ours, theirs))
    our_peak, their_peak = (statistics.median(run["peak_bytes"] for run in runs) for runs in (ours, theirs))
    computed = max(run["tokens"] for run in ours)
    rate = computed / our_s
    agreed = compare(asked, ours[0]["answers"], theirs[0]["answers"], str(setting.folder))
    row = Row(name=work.name, title=work.title_at(setting.scale))
    row.cells = {
        "not by default": f"the number of questions{work.apart and f', {work.apart}'}",
        "lm-eval": f"{their_s:.1f} s (batch {best})",
        "this engine": f"{our_s:.1f} s",
        "times as fast": f"{their_s / our_s:.2f} (goal {work.times:g})",
        "results": agreed.summary,
        "peak above weights, lm-eval": _mib(their_peak),
        "this engine's": f"{_mib(our_peak)} (goal {_mib(work.memory * their_peak)})",
        "tokens computed": f"{computed:,} ({theirs[0]['tokens']:,} by lm-eval)",
        "nodes of the tree": f"{nodes:,} ({computed / nodes:.3f}, goal {_OVER_NODES})",
        "of the bare rate": f"{rate / bare['rate']:.2f} of {bare['rate']:.0f} tokens/s (goal {_RATE})",
        "with the head": f"{rate / bare['rate_with_head']:.2f} of {bare['rate_with_head']:.0f} tokens/s",
    }
    goals = {
        "speed": their_s / our_s >= work.times,
        "equal results": agreed.is_equal,
        "memory": our_peak <= work.memory * their_peak,
        "tokens computed": computed <= _OVER_NODES * nodes,
        "rate": rate >= _RATE * bare["rate"],
    }
    row.missed = [name for name, is_met in goals.items() if not is_met]
    row.figures = {
        "ours_s": [run["seconds"] for run in ours],
        "lm_eval_s": [run["seconds"] for run in theirs],
        "lm_eval_batch_sizes_s": probes,
        "ours_peak_bytes": [run["peak_bytes"] for run in ours],
        "lm_eval_peak_bytes": [run["peak_bytes"] for run in theirs],
        "tokens": computed,
        "nodes": nodes,
        "bare": bare,
    }
    return row


def run_side(script: str, work: Path, setting: Setting) -> dict[str, Any]:
    """What a script of this environment measured of a piece of work.

    Raises:
        RuntimeError: It failed.
    """
    return _process(Path(sys.executable), script, setting, work)


def run_lm_eval(work: Path, batch_size: int, setting: Setting) -> dict[str, Any]:
    """What was measured of lm-eval.

    Raises:
        RuntimeError: It failed.
    """
    found = _lm_eval(work, batch_size, setting)
    if "error" in found:
        raise RuntimeError(f"lm-eval failed at batch size {batch_size}: {found['error']}")
    return found


def run_lm_eval_served(work: Path, concurrencies: Sequence[int], setting: Setting) -> dict[str, Any]:
    """What was measured of lm-eval as the client of a server, by the number of requests at once.

    Raises:
        RuntimeError: It failed.
    """
    return _process(setting.lm_eval, "lm_eval_served_side.py", setting, work, ",".join(map(str, concurrencies)))


def run_served_client(work: Path, what: str, setting: Setting) -> dict[str, Any]:
    """What was measured of the client before a server that answers at once.

    Raises:
        RuntimeError: It failed.
    """
    return _process(Path(sys.executable), "served_client_side.py", setting, work, what)


def _lm_eval(work: Path, batch_size: int, setting: Setting) -> dict[str, Any]:
    memory = int(psutil.virtual_memory().available * 0.8)
    return _process(setting.lm_eval, "lm_eval_side.py", setting, work, str(batch_size), str(memory))


def _bare(tokens: int, scored: float, setting: Setting) -> dict[str, Any]:
    runs = [_process(Path(sys.executable), "bare_side.py", setting, None, str(tokens), str(scored)) for _ in range(setting.repeats)]
    return sorted(runs, key=lambda run: float(run["rate"]))[len(runs) // 2]


def _process(python: Path, script: str, setting: Setting, work: Path | None, *arguments: str) -> dict[str, Any]:
    return run_process(python, script, setting.scratch, setting.folder, work, *arguments)


def run_process(python: Path, script: str, scratch: Path, folder: Path, work: Path | None, *arguments: str) -> dict[str, Any]:
    """What a script of this folder wrote, run by an interpreter for a piece of work and the model in a folder.

    Raises:
        RuntimeError: It failed.
    """
    result = scratch / f"{Path(script).stem}.result.json"
    result.unlink(missing_ok=True)
    command = [str(python), str(_HERE / script), *([str(work)] if work else []), str(result), str(folder), *arguments]
    # Each side chooses how its threads wait: the choice of this process is that of the package, which it has imported.
    inherited = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    # By default, vLLM logs to the standard output. Its log names the cause of a failure.
    quiet = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "VLLM_LOGGING_STREAM": "ext://sys.stderr"}
    try:
        done = subprocess.run(command, env={**inherited, **quiet}, capture_output=True, text=True, check=False, timeout=_LONGEST_S)
    except subprocess.TimeoutExpired as problem:
        raise RuntimeError(f"{script} did not end within {_LONGEST_S} s") from problem
    if done.returncode or not result.is_file():
        raise RuntimeError(f"{script} ended with status {done.returncode}:\n{done.stderr[-20_000:]}")
    found: dict[str, Any] = json.loads(result.read_text("utf-8"))
    return found


def _outcome(run: dict[str, Any]) -> str:
    return str(run["error"])[:200] if "error" in run else f"{run['seconds']:.1f} s"


def _mib(count: float) -> str:
    return f"{count / 2**20:,.0f} MiB"
