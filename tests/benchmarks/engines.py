"""Engines side by side on a GPU: `make bench-gpu VLLM_PYTHON=/opt/vllm/bin/python`. On a machine without one, on its CPU.

lm-eval with transformers, lm-eval with vLLM, vLLM through this package, and this package's own engine; each measurement in a process of
its own, in turns. A side that fails is a line of the table, and the others go on.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import engine_table
import meter
from random_model import SHAPES, random_model
from sides import run_process
from token_tree import count_nodes, inputs_of
from transformers import AutoConfig, AutoTokenizer
from works import GPU_WORKS, ROOT, MissingRowsError, Work, requests_of

from eval_dagster.models.transformers.weights.sources import open_checkpoint
from eval_dagster.project import Project

_DEMO = "smollm2-135m"
ERRORS = "errors.txt"
"""The file with the whole messages of sides that failed."""

_PART = 24
"""About as many requests find the best batch size, are scored by plain forward passes, and are profiled."""


@dataclass(kw_only=True)
class Side:
    """One way to the answers."""

    name: str
    python: Path
    script: str
    arguments: list[str]
    runs: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""

    def measure(self, work: Path, scratch: Path, folder: Path) -> dict[str, Any] | None:
        """One more measurement; None and `error` where it failed, from then on."""
        if self.error:
            return None
        try:
            found = run_process(self.python, self.script, scratch, folder, work, *self.arguments)
        except RuntimeError as problem:
            found = {"error": str(problem).strip().splitlines()[-1]}
            with (scratch / ERRORS).open("a", encoding="utf-8") as file:
                file.write(f"== {self.name}\n{problem}\n")
        if "error" in found:
            self.error = found["error"][:300]
            return None
        self.runs.append(found)
        return found

    def seconds(self) -> float | None:
        """The median; None without a measurement."""
        return statistics.median(run["seconds"] for run in self.runs) if self.runs else None

    def outcome(self) -> str:
        """The last measurement, in words."""
        return self.error or f"{self.runs[-1]['seconds']:.2f} s"


def main(arguments: Sequence[str]) -> int:
    """Exit status 1 if no side could be measured."""
    names = [work.name for work in GPU_WORKS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lm-eval", type=Path, required=True, help="interpreter of the environment that holds lm-eval")
    parser.add_argument("--vllm", type=Path, required=True, help="interpreter of the environment that holds vllm, lm-eval and eval_dagster")
    parser.add_argument("--only", default=",".join(names), help=f"rows, with commas between them: {', '.join(names)}")
    parser.add_argument("--models", default="demo,1b", help=f"demo (SmolLM2-135M) and random weights: {', '.join(SHAPES)}")
    parser.add_argument("--dtype", default="bfloat16" if meter.DEVICE == "cuda" else "float32", help="bfloat16, float16 or float32")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the questions, for trying out")
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each side, of which the median counts")
    parser.add_argument("--batch-sizes", default="1,16,64,128", help="of lm-eval with transformers; the best counts")
    options = parser.parse_args(arguments)
    chosen, models = options.only.split(","), options.models.split(",")
    if unknown := [*(set(chosen) - set(names)), *(set(models) - {"demo", *SHAPES})]:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; rows: {', '.join(names)}; models: demo, {', '.join(SHAPES)}")
    started, demo = datetime.now().astimezone(), _demo_model()
    tables: list[engine_table.Table] = []
    results = Path(__file__).parent / "results"
    with tempfile.TemporaryDirectory() as scratch:
        for model in models:
            cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "eval_dagster" / "benchmarks"
            cache.mkdir(parents=True, exist_ok=True)
            folder = demo if model == "demo" else random_model(model, options.dtype, demo, cache)
            for work in GPU_WORKS:
                if work.name in chosen:
                    place = Path(scratch) / f"{model}-{work.name}"
                    place.mkdir()
                    tables.append(_measure(work, model, folder, place, options))
                    # After each, so that nothing is lost where it is stopped.
                    path = engine_table.save(tables, started, options.dtype, options.repeats, folder=results, root=ROOT)
                    if (place / ERRORS).is_file():
                        with path.with_suffix(f".{ERRORS}").open("a", encoding="utf-8") as errors:
                            errors.write(f"# {model} {work.name}\n{(place / ERRORS).read_text('utf-8')}\n")
    sys.stdout.write(f"{path.read_text('utf-8')}\nWritten to {path}\n")
    return 0 if any(side.runs for table in tables for side in table.sides) else 1


def _measure(work: Work, model: str, folder: Path, scratch: Path, options: argparse.Namespace) -> engine_table.Table:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    table = engine_table.Table(work=work, model=model, dtype=options.dtype, scale=options.scale)
    try:
        asked = requests_of(work, options.scale, tokenizer, scratch)
    except MissingRowsError as problem:
        table.skipped = str(problem)
        _say(f"{work.name}: skipped, {problem}")
        return table
    table.asked = asked
    file, part = scratch / "work.json", scratch / "part.json"
    step = -(-len(asked["items"]) // _PART)
    file.write_text(json.dumps(asked), "utf-8")
    part.write_text(json.dumps({**asked, "items": asked["items"][::step]}), "utf-8")
    table.step = step
    # vLLM keeps one token of the context for what it generates.
    longest = AutoConfig.from_pretrained(folder).max_position_embeddings - 1
    batch = _best_batch(part, scratch, folder, options)
    table.sides = [
        _hf(options, batch),
        Side(name="lm-eval, vLLM", python=options.vllm, script="lm_eval_vllm_side.py", arguments=[options.dtype, str(longest)]),
        Side(
            name="vLLM through eval_dagster", python=options.vllm, script="engine_side.py", arguments=["vllm", options.dtype, str(longest)]
        ),
        Side(
            name=engine_table.OURS,
            python=Path(sys.executable),
            script="engine_side.py",
            arguments=["transformers", options.dtype, str(longest)],
        ),
    ]
    for _ in range(options.repeats):
        for side in table.sides:
            side.measure(file, scratch, folder)
            _say(f"{model} {work.name}: {side.name}: {side.outcome()}")
    if work.settings is None or "continuations" in asked["items"][0]:
        plain = _hf(options, 1).measure(part, scratch, folder)
        table.plain = plain["answers"] if plain else None
    ours = table.sides[-1]
    if ours.runs:
        table.nodes = count_nodes(inputs_of(asked, ours.runs[0]["answers"], tokenizer))
    profile = Side(name="profile", python=Path(sys.executable), script="profile_side.py", arguments=ours.arguments)
    table.profile = profile.measure(part, scratch, folder) or {"error": profile.error}
    return table


def _hf(options: argparse.Namespace, batch: int) -> Side:
    # A batch of a GPU fails by itself where it is too large; the other number bounds the main memory of a CPU.
    arguments = [str(batch), str(2**36), options.dtype]
    return Side(name=f"{engine_table.PEER} (batch {batch})", python=options.lm_eval, script="lm_eval_side.py", arguments=arguments)


def _best_batch(part: Path, scratch: Path, folder: Path, options: argparse.Namespace) -> int:
    """The batch size at which lm-eval is fastest on a part of the requests; the smallest where it fails at all."""
    sizes = [int(size) for size in options.batch_sizes.split(",")]
    probed = {size: _hf(options, size) for size in sizes}
    for side in probed.values():
        side.measure(part, scratch, folder)
        _say(f"{side.name}: {side.outcome()}")
    return min(sizes, key=lambda size: (probed[size].seconds() is None, probed[size].seconds() or 0.0, size))


def _demo_model() -> Path:
    project = Project.open(config_path=ROOT / "evals.yaml")
    return open_checkpoint(_DEMO, project.model(_DEMO).source, folder=ROOT, home=project.home).folder()


def _say(line: str) -> None:
    sys.stderr.write(f"{datetime.now():%H:%M:%S} {line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
