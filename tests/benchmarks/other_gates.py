"""Verdicts of other packages' own code about simulated suites, beside the gate's: `python tests/benchmarks/other_gates.py FOLDER`.

FOLDER has an environment for each package, which is made as in `ENVIRONMENTS`. The verdicts go to `results/other_gates.json`, and their
table is printed, for docs/explanation/gate.md. Those of a package without an environment stay as they are.

One eval of ten falls. Each package is asked about each distinct pair of counts once, since its verdict about an eval depends on nothing
else. A suite is bad if one of its evals is, and good if all are: the rule of `nel gate`, and the only one that the others leave.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy.special

from eval_dagster.statistics.noninferiority import LEVEL, exact_p_value, not_worse
from eval_dagster.statistics.paired import Comparison
from eval_dagster.statistics.significance import exact_mcnemar
from eval_dagster.statistics.verdicts import holm

ENVIRONMENTS = {
    "mlflow": "pip install mlflow==3.17.2; pip install --no-deps mlflow==3.18.0",  # mlflow-skinny 3.18.0 may be missing
    "nemo-evaluator": "pip install nemo-evaluator==0.3.0",
    "lmms-eval": "pip install torch transformers evaluate loguru pytz pyyaml sacrebleu scipy; pip install --no-deps lmms-eval==0.7.3",
    "lm-eval": "pip install lm-eval==0.4.13 pandas scipy torch",  # and the script of its repository, as FOLDER/lm-eval/model_comparator.py
}
"""Commands that make the environment FOLDER/NAME (`python -m venv`) of a package. nemo-evaluator takes Python 3.12."""
HEAD = "| samples | flips | one eval falls by |"
RESULTS = Path(__file__).parent / "results" / "other_gates.json"
OTHERS = ("mlflow", "nemo-evaluator", "nemo-evaluator, 3 points", "lmms-eval", "lm-eval")
OURS = ("eval_dagster", "eval_dagster, 8 states")
EVALS, SHARE, MARGIN, ALPHA, STATES = 10, 0.6, 0.03, 0.05, 8
NIGHTS = 200
CELLS = [(n, flips, fall) for n in (300, 1000) for flips in (0.02, 0.1) for fall in (0.0, 0.02, 0.05, 0.1)]
"""Samples of an eval, share of the answers that flip, and fall of one eval."""

Pair = tuple[int, int, int]
"""Samples, those that rose, and those that fell."""
Counts = "np.ndarray[tuple[int, ...], np.dtype[np.int64]]"


def draw(n: int, flips: float, fall: float, nights: int) -> Counts:
    """Nights x evals x outcomes. An outcome is tonight's answer, wrong or right, for each number of right answers in the earlier states.

    A share of the samples is right in half of the nights. A fall takes right answers, whichever they are.
    """
    rng, right = np.random.default_rng([n, round(1000 * flips), round(1000 * fall)]), np.arange(STATES + 1)
    ease, shares = np.array([0.0, 1.0, 0.5]), np.array([(1 - 2 * flips) * (1 - SHARE), (1 - 2 * flips) * SHARE, 2 * flips])
    pooled = scipy.special.comb(STATES, right) * ease[:, None] ** right * (1 - ease[:, None]) ** (STATES - right)
    found = []
    for lost in [fall] + [0.0] * (EVALS - 1):
        tonight = ease * (1 - lost / float(ease @ shares))
        chances = np.concatenate([shares @ (pooled * (1 - tonight[:, None])), shares @ (pooled * tonight[:, None])])
        found.append(rng.multinomial(n, chances / chances.sum(), size=nights))
    return np.stack(found, axis=1)


def pairs_of(night: Counts, rng: np.random.Generator) -> list[Pair]:
    """The counts of each eval against one of the earlier states."""
    right = np.arange(STATES + 1)
    found: list[Pair] = []
    for counts in night:
        # Of samples that were right in k of 8 states, each is right in the newest with the probability k / 8.
        was_right = rng.binomial(counts, np.tile(right / STATES, 2))
        found.append((int(counts.sum()), int((counts - was_right)[STATES + 1 :].sum()), int(was_right[: STATES + 1].sum())))
    return found


@cache
def _mcnemar(risen: int, fallen: int) -> float:
    return float(exact_mcnemar(np.int64(risen), np.int64(fallen)))


def is_red(pairs: Sequence[Pair]) -> bool:
    """Whether the gate finds a suite red that is judged every night, and whose baseline is its anchor."""
    p_values = holm([_mcnemar(risen, fallen) for _, risen, fallen in pairs])
    return any(p is not None and p <= 2 * ALPHA / 30 and fallen > risen for p, (_, risen, fallen) in zip(p_values, pairs, strict=True))


def is_proven_by_one(pair: Pair) -> bool:
    """Whether an eval is proven not to be worse than one state."""
    n, risen, fallen = pair
    return risen - fallen + n * MARGIN > 0 and exact_p_value(n, risen, fallen, MARGIN) <= LEVEL


def verdicts_of(name: str, pairs: Sequence[Pair], folder: Path) -> tuple[str, list[str]]:
    """The version of a package, and its verdict about each pair."""
    with tempfile.TemporaryDirectory() as work:
        asked, answered = Path(work, "pairs.json"), Path(work, "verdicts.json")
        asked.write_text(json.dumps(pairs))
        python, side = folder / name.partition(",")[0] / "bin" / "python", Path(__file__).with_name("other_gates_side.py")
        subprocess.run([python, side, name, asked, answered], check=True, cwd=work)
        found = json.loads(answered.read_text("utf-8"))
    return found["version"], found["verdicts"]


def suite_verdict(evals: Sequence[str]) -> str:
    """The verdict about a suite, by those about its evals."""
    return "bad" if "bad" in evals else "good" if all(each == "good" for each in evals) else "undecided"


def our_verdicts(name: str, nights: Counts, pairs: Sequence[Sequence[Pair]]) -> Iterator[str]:
    """The gate's verdicts about suites."""
    for night, of_night in zip(nights, pairs, strict=True):
        if is_red(of_night):
            yield "bad"
        elif name == OURS[0]:
            yield "good" if all(map(is_proven_by_one, of_night)) else "undecided"
        else:
            yield "good" if all(map(is_proven_by_states, night)) else "undecided"


def is_proven_by_states(counts: Counts) -> bool:
    """Whether an eval is proven not to be worse than the mean of the states."""
    right = np.tile(np.arange(STATES + 1), 2)
    differences = np.repeat([0.0, 1.0], STATES + 1) - right / STATES
    if not counts[right % STATES > 0].any():
        return is_proven_by_one((int(counts.sum()), int(counts[differences == 1].sum()), int(counts[differences == -1].sum())))
    # As `compare_means` has it, whose interval takes most of the time.
    n = int(counts.sum())
    mean = float(counts @ differences) / n
    stderr = float(np.sqrt(counts @ (differences - mean) ** 2 / (n - 1) / n))
    found = Comparison(
        difference=mean,
        stderr=stderr,
        n_common=n,
        n_only_a=0,
        n_only_b=0,
        n_neither=0,
        n_clusters=n,
        groups=float(n),
        heaviest=1 / n,
        width=1.0,
    )
    return not_worse(found, margin=MARGIN, higher_is_better=True).is_proven


def simulate(cell: tuple[int, float, float], nights: int) -> tuple[Counts, list[list[Pair]]]:
    """The nights of a cell, with the counts of each eval against one state."""
    drawn, rng = draw(*cell, nights), np.random.default_rng(nights)
    return drawn, [pairs_of(night, rng) for night in drawn]


def shares(verdicts: Sequence[str]) -> dict[str, float]:
    """The share of each verdict."""
    return {word: verdicts.count(word) / len(verdicts) for word in ("bad", "good", "undecided")}


def table(results: Mapping[str, Any]) -> str:
    """The table of the page."""
    names = [*OURS, *OTHERS]
    heads = []
    for name in names:
        package, _, how = name.partition(", ")
        heads.append(", ".join(filter(None, [f"{package} {results['versions'].get(name, '')}".strip(), how])))
    lines = [
        f"{HEAD} {' | '.join(heads)} |",
        "|---" * (len(names) + 3) + "|",
    ]
    for cell in results["cells"]:
        shown = [" · ".join(f"{cell[name][word]:.0%}" for word in ("bad", "good", "undecided")) for name in names]
        lines.append(f"| {cell['samples']:,} | {cell['flips']:.0%} | {cell['fall'] * 100:.0f} points | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def main(folder: str) -> None:
    """Ask the packages that have an environment, write the verdicts and print their table."""
    known = json.loads(RESULTS.read_text("utf-8"))
    asked = [name for name in OTHERS if Path(folder, name.partition(",")[0]).is_dir()]
    drawn = {cell: simulate(cell, NIGHTS) for cell in CELLS}
    distinct = sorted({pair for _, pairs in drawn.values() for night in pairs for pair in night})
    with ThreadPoolExecutor(2) as pool:
        answers = dict(zip(asked, pool.map(lambda name: verdicts_of(name, distinct, Path(folder)), asked), strict=True))
    cells = []
    for (cell, (counts, pairs)), before in zip(drawn.items(), known["cells"], strict=True):
        found = {name: list(our_verdicts(name, counts, pairs)) for name in OURS}
        for name, (_, verdicts) in answers.items():
            of_pair = dict(zip(distinct, verdicts, strict=True))
            found[name] = [suite_verdict([of_pair[pair] for pair in night]) for night in pairs]
        new = dict(zip(("samples", "flips", "fall"), cell, strict=True))
        if any(before[name] != value for name, value in new.items()):
            raise SystemExit(f"{RESULTS} has other cells; ask all packages again")
        new |= {name: shares(each) for name, each in found.items()}
        cells.append(before | new)
    versions = known["versions"] | {name: version for name, (version, _) in answers.items()}
    results = {"nights": NIGHTS, "versions": versions, "cells": cells}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    sys.stdout.write(table(results))


if __name__ == "__main__":
    main(sys.argv[1])
