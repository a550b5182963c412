"""The page of the engines side by side: one table for each piece of work and model, with goals, agreement and profile."""

import json
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from report import asked_of_driver, machine
from works import Work

PEER = "lm-eval, transformers"
PEER_VLLM = "lm-eval, vLLM"
OURS = "this engine"

_OVER_NODES = 1.05
_SLOWER_TEXTS = 1.5
"""Times the seconds of vLLM that generation may take."""
_BOUNDS = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 2e-2}
"""Differences of log-probabilities from the plain forward of the same type."""
_BATCHING = 1.5
"""Times the greatest difference of lm-eval's batches, which is allowed where it is more: no batching keeps to the bound in bfloat16. In
float32 the bound alone counts."""


@dataclass(kw_only=True)
class Table:
    """What was measured of one piece of work with one model."""

    work: Work
    model: str
    dtype: str
    scale: float
    asked: dict[str, Any] = field(default_factory=dict)
    step: int = 1
    """Each so many-th item was also scored by plain forward passes."""
    sides: list[Any] = field(default_factory=list)
    plain: list[Any] | None = None
    """The answers of plain forward passes, one text at a time."""
    nodes: int = 0
    profile: dict[str, Any] = field(default_factory=dict)
    skipped: str = ""

    def side(self, name: str) -> Any:
        """The side whose name begins so."""
        return next(side for side in self.sides if side.name.startswith(name))


def missed(table: Table) -> list[str]:
    """The goals that were missed, and those that could not be judged."""
    ours, peer, served = (table.side(name).seconds() for name in (OURS, PEER, PEER_VLLM))
    found = []
    if ours is None:
        return ["no measurement of this engine"]
    if table.work.name in ("mmlu", "hellaswag"):
        if peer is None or peer / ours < table.work.times:
            found.append(f"{table.work.times:g} times as fast as lm-eval with transformers")
        if served is None or served < ours:
            found.append("as fast as lm-eval with vLLM")
    if table.work.name == "gsm8k" and (served is None or ours > _SLOWER_TEXTS * served):
        found.append(f"texts within {_SLOWER_TEXTS:g} times of vLLM")
    if table.nodes and max(run["tokens"] for run in table.side(OURS).runs) > _OVER_NODES * table.nodes:
        found.append(f"tokens at most {_OVER_NODES} of the tree")
    differences = _differences(table, table.side(OURS))
    batches = [] if table.dtype == "float32" else _differences(table, table.side(PEER))
    bound = max([_BOUNDS[table.dtype], *(_BATCHING * difference for difference in batches)])
    if differences and max(differences) > bound:
        found.append(f"log-probabilities to {bound:.2g}")
    return found


def markdown(table: Table) -> list[str]:
    """The lines of one table."""
    scale = "" if table.scale == 1 else f" (x {table.scale:g})"
    head = [f"## {table.work.title}{scale}, {table.model}", ""]
    if table.skipped:
        return [*head, f"Skipped: {table.skipped}", ""]
    ours = table.side(OURS).seconds()
    titles = ["side", "seconds", f"of {OURS}", "loading", "tokens computed", "of the tree", "peak above weights", "answers"]
    lines = [*head, f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]
    for side in table.sides:
        if side.error:
            lines.append(f"| {side.name} | failed: {_one_line(side.error)} |{' |' * (len(titles) - 2)}")
            continue
        run, seconds = side.runs[0], side.seconds()
        tokens, peak = run["tokens"], run["peak_bytes"]
        cells = [
            f"{seconds:.2f}",
            f"{seconds / ours:.2f}" if ours else "",
            f"{run['loading_s']:.1f} s",
            "not seen" if tokens is None else f"{tokens:,}",
            f"{tokens / table.nodes:.3f}" if tokens is not None and table.nodes else "",
            "its own share" if peak is None else f"{peak / 2**20:,.0f} MiB",
            _agreement(table, side),
        ]
        lines.append(f"| {side.name} | {' | '.join(cells)} |")
    versions = {name: number for side in table.sides for run in side.runs[:1] for name, number in run["versions"].items()}
    lines += [
        "",
        f"Goals missed: {', '.join(missed(table)) or 'none'}. {', '.join(f'{name} {number}' for name, number in versions.items())}.",
        "",
    ]
    ways = table.side(OURS).runs[0]["ways"] if table.side(OURS).runs else {}
    return [*lines, *(f"{kind.capitalize()}: {_one_line(way)}.  " for kind, way in ways.items()), "", *_profile(table.profile), ""]


def save(tables: Sequence[Table], started: datetime, dtype: str, repeats: int, *, folder: Path, root: Path) -> Path:
    """Write page and figures."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True, check=False).stdout.strip()
    where = "" if torch.cuda.is_available() else "**No GPU was found: all sides computed on the CPU.** "
    driver = f", CUDA {torch.version.cuda}, driver {asked_of_driver('driver_version')}" if torch.cuda.is_available() else ""
    head = (
        f"{where}{machine()}{driver}. Python {platform.python_version()}, commit {commit}, {dtype}. Median of {repeats}; seconds of the "
        "answers, without loading. Differences are those from plain forward passes of one text in the same type."
    )
    lines = [f"# Engines side by side, {started:%Y-%m-%d %H:%M}", "", head, ""]
    for table in tables:
        lines += markdown(table)
    path = folder / f"engines-{started:%Y-%m-%d-%H%M}.md"
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines), "utf-8")
    figures = [
        {
            "work": table.work.name,
            "model": table.model,
            "nodes": table.nodes,
            "sides": {
                side.name: [{name: value for name, value in run.items() if name != "answers"} for run in side.runs] for side in table.sides
            },
            "profile": table.profile,
        }
        for table in tables
    ]
    path.with_suffix(".json").write_text(json.dumps(figures, indent=1), "utf-8")
    return path


def _agreement(table: Table, side: Any) -> str:
    answers = side.runs[0]["answers"]
    if table.asked["kind"] == "text":
        peer = table.side(PEER)
        if not peer.runs or peer is side:
            return ""
        equal = sum(one["text"] == other["text"] for one, other in zip(answers, peer.runs[0]["answers"], strict=True))
        return f"{equal} of {len(answers)} texts equal"
    parts = []
    if table.asked["kind"] == "choices":
        right = [scores.index(max(scores)) in item["gold"] for item, scores in zip(table.asked["items"], answers, strict=True)]
        parts.append(f"accuracy {sum(right) / len(right):.3f}")
    differences = _differences(table, side)
    if differences:
        parts.append(f"differs by {max(differences):.1e} at most, {sum(differences) / len(differences):.1e} on average")
    return ", ".join(parts)


def _differences(table: Table, side: Any) -> list[float]:
    """How far log-probabilities are from those of plain forward passes; of whole texts, divided by their tokens."""
    if table.plain is None or not side.runs:
        return []
    answers = side.runs[0]["answers"][:: table.step]
    if table.asked["kind"] == "choices":
        pairs = [pair for one, other in zip(answers, table.plain, strict=True) for pair in zip(one, other, strict=True)]
        return [abs(one - other) for one, other in pairs]
    lengths = [len(item["context"].split()) for item in table.asked["items"][:: table.step]]
    return [abs(one - other) / length for one, other, length in zip(answers, table.plain, lengths, strict=True)]


def _profile(profile: dict[str, Any]) -> list[str]:
    if "operators" not in profile:
        return [f"No profile: {_one_line(profile.get('error', 'not made'))}"]
    seconds, busy = profile["seconds"], profile["in_operators_s"]
    parts = [f"`{name}` {taken / busy:.0%}" for name, taken in profile["operators"].items() if busy]
    return [f"Profile of {OURS}, part of the requests: operators {busy:.2f} s of {seconds:.2f} s; of these {', '.join(parts)}."]


def _one_line(text: str) -> str:
    return " ".join(text.replace("|", "/").split())
