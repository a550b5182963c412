"""What a partition costs around its model: many evals of ten questions on two models that answer at once, new and then all current.

Alone: `python tests/benchmarks/around.py`, in the environment of the project.
"""

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import yaml
from overhead import QUESTIONS, Run, run_command
from sides import Row, Setting

_PARTITIONS = (100, 1_000)
_MODELS = 2
_GOAL_S, _GROWTH = 0.15, 1.2


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """A home's run of so many partitions, and the same run again."""

    new: Run
    current: Run


def run_around(setting: Setting, say: Callable[[str], None]) -> Row:
    """Seconds of a further partition: of a run of 100 without those of a run of one, and of one of 1,000 without those of one of 100."""
    sizes = (2, *(max(10, int(size * setting.scale)) for size in _PARTITIONS))
    found = {size: [_pair(setting.scratch / f"around-{size}-{turn}", size) for turn in range(setting.repeats)] for size in sizes}
    row = Row(name="around", title="Around a model that answers at once, 10 questions a partition")
    for kind in ("new", "current"):
        runs = {size: sorted((getattr(pair, kind) for pair in pairs), key=lambda run: run.cpu_seconds) for size, pairs in found.items()}
        middle = {size: ordered[len(ordered) // 2] for size, ordered in runs.items()}
        slopes = [_slope(middle[less], middle[more], more - less) for less, more in pairwise(sizes)]
        for size, run in middle.items():
            say(f"around: {size:,} partitions, {kind}: {run.told()}")
        for size, (wall, processor) in zip(sizes[1:], slopes, strict=True):
            row.cells[f"{kind}, up to {size:,}"] = f"{wall:.3f} s each, {processor:.3f} s of a processor (goal {_GOAL_S})"
        row.figures[kind] = {"sizes": sizes, "seconds": [middle[size].seconds for size in sizes], "per_partition": slopes}
        if any(processor > _GOAL_S for _, processor in slopes):
            row.missed.append(f"time a partition, {kind}")
        if slopes[-1][1] > _GROWTH * slopes[0][1]:
            row.missed.append(f"linear growth, {kind}")
    return row


def _pair(home: Path, partitions: int) -> _Pair:
    home.mkdir()
    evals = {
        # Other examples for each eval, so that no eval is answered from the cache of another one.
        f"e{number:04}": {"task": f"{QUESTIONS}:InventedQuestions", "subjects": ["10"], "num_fewshot": 3, "seed": number}
        for number in range(partitions // _MODELS)
    }
    models = {f"m{number}": {"backend": "scripted", "function": f"{QUESTIONS}:answer"} for number in range(_MODELS)}
    (home / "evals.yaml").write_text(yaml.safe_dump({"models": models, "evals": evals}), "utf-8")
    return _Pair(new=run_command(home), current=run_command(home))


def _slope(less: Run, more: Run, partitions: int) -> tuple[float, float]:
    return (more.seconds - less.seconds) / partitions, (more.cpu_seconds - less.cpu_seconds) / partitions


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        alone = Setting(lm_eval=Path(), folder=Path(), scratch=Path(folder), repeats=3, scale=1.0, batch_sizes=())
        print(run_around(alone, lambda line: print(line, file=sys.stderr)).cells)  # noqa: T201 - its result
