"""How many samples an asked one is worth with `estimate: {history}`: `python tests/benchmarks/history.py FOLDER`.

FOLDER has the answers that `variant_answers.py` wrote. Each variant in turn is the new model, and the others are its history; strangers
have all variants as theirs. Right and wrong answers and the figures go to `results/history.json`, and the table is printed, for
docs/how-to/estimate.md. Without FOLDER the stored answers are measured again.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eval_dagster.statistics.borrowed import BorrowedEstimate, BorrowedLook, choose, estimate, next_end, predict

RESULTS = Path(__file__).parent / "results" / "history.json"
HEAD = "| new model | asked |"
HEAD_BY_VARIANT = "| variant |"
SHARES = (0.125, 0.25, 0.5)
"""Parts of the questions that may be asked."""
TIMES = 100
"""Draws of a model at each number."""
STRANGERS = {"longest option": "the longest option", "simulated": "a simulated model, 60 % right at random"}

Answers = NDArray[np.float64]


def measure(history: Answers, truth: Answers, most: int, rng: np.random.Generator) -> BorrowedEstimate:
    """An estimate of a model whose answers are `truth`, of which at most so many are asked."""
    answers, rest, looks, done = np.full(len(truth), np.nan), np.arange(len(truth)), list[BorrowedLook](), 0
    while (end := next_end(done, most, len(truth))) > done:
        look = choose(rest, predict(history, answers)[rest], end - done, rng)
        drawn = rest[look.drawn]
        answers[drawn] = truth[drawn]
        rest, done = np.setdiff1d(rest, drawn), end
        looks.append(look)
    return estimate(looks, answers, is_proportion=True)


def cell(cases: Sequence[tuple[Answers, Answers]], most: int, times: int) -> dict[str, Any]:
    """The figures of some new models, each with its history."""
    even, squares, printed, covered, dropped, factors = 0.0, 0.0, list[float](), list[bool](), list[bool](), list[float]()
    for number, (history, truth) in enumerate(cases):
        rng = np.random.default_rng([number, most])
        found = [measure(history, truth, most, rng) for _ in range(times)]
        of_even = float(truth.var(ddof=1)) * (1 - most / len(truth)) / most
        of_found = float(np.mean([(each.value - truth.mean()) ** 2 for each in found]))
        even, squares = even + of_even, squares + of_found
        factors.append(of_even / of_found)
        printed += [each.factor for each in found]
        covered += [bool(each.ci_low <= truth.mean() <= each.ci_high) for each in found]
        dropped += [each.is_dropped for each in found]
    return {
        "asked": most,
        "factor": even / squares,
        "least": min(factors),
        "printed": float(np.median(printed)),
        "coverage": float(np.mean(covered)),
        "dropped": float(np.mean(dropped)),
        "factors": factors,
    }


def cases_of(variants: Mapping[str, Answers], strangers: Mapping[str, Answers]) -> dict[str, list[tuple[Answers, Answers]]]:
    """The new models of each row of the table, with their histories."""
    every = np.array(list(variants.values()))
    return {
        "variant": [(np.delete(every, place, axis=0), every[place]) for place in range(len(every))],
        **{name: [(every, answers)] for name, answers in strangers.items()},
    }


def table(results: Mapping[str, Any]) -> str:
    """The table of the page."""
    count, names = len(results["variants"]), {"variant": f"a variant, of {len(results['variants']) - 1} others", **STRANGERS}
    lines = [f"{HEAD} factor reached | of the worst variant | factor stated (median) | coverage of the 95 % interval | history dropped |"]
    lines.append("|---" * 7 + "|")
    for name, cells in results["cells"].items():
        for each in cells:
            worst = f"{each['least']:.1f}" if name == "variant" and count > 1 else "–"
            figures = f"{each['factor']:.1f} | {worst} | {each['printed']:.1f} | {each['coverage']:.0%} | {each['dropped']:.0%}"
            lines.append(f"| {names[name]} | {each['asked']} of {results['questions']} | {figures} |")
    return "\n".join(lines) + "\n"


def table_by_variant(results: Mapping[str, Any]) -> str:
    """The table of single variants, at the number in the middle, those that gain most first."""
    variants = {name: unpacked(text, results["questions"]) for name, text in results["variants"].items()}
    cells = results["cells"]["variant"]
    middle = cells[len(cells) // 2]
    lines = [f"{HEAD_BY_VARIANT} right | like the nearest other variant | factor reached, {middle['asked']} asked |", "|---" * 4 + "|"]
    for factor, name in sorted(zip(middle["factors"], variants, strict=True), reverse=True):
        others = [float((variants[name] == other).mean()) for key, other in variants.items() if key != name]
        lines.append(f"| {name} | {variants[name].mean():.1%} | {max(others):.1%} | {factor:.1f} |")
    return "\n".join(lines) + "\n"


def packed(answers: Answers) -> str:
    """Right and wrong answers as hexadecimal digits."""
    return np.packbits(answers.astype(bool)).tobytes().hex()


def unpacked(text: str, count: int) -> Answers:
    """Answers as 1 and 0."""
    return np.unpackbits(np.frombuffer(bytes.fromhex(text), np.uint8))[:count].astype(float)


def stored() -> tuple[dict[str, Answers], dict[str, Answers]]:
    """The answers of variants and of strangers that were measured last."""
    results = json.loads(RESULTS.read_text("utf-8"))
    variants, strangers = (
        {name: unpacked(text, results["questions"]) for name, text in results[key].items()} for key in ("variants", "strangers")
    )
    return variants, strangers


def read(folder: Path) -> tuple[dict[str, Answers], dict[str, Answers]]:
    """The answers in a folder. Those of a simulated stranger are added."""
    variants: dict[str, Answers] = {}
    strangers: dict[str, Answers] = {}
    for file in sorted(folder.glob("*.json")):
        made = json.loads(file.read_text("utf-8"))
        right = np.argmax(np.array(made["logprobs"]), axis=1) == np.array(made["gold"])
        (strangers if made["variant"] in STRANGERS else variants)[made["variant"]] = right.astype(float)
    count = len(next(iter(variants.values())))
    return variants, strangers | {"simulated": (np.random.default_rng(0).random(count) < 0.6).astype(float)}


def main(folder: str = "", times: str = str(TIMES)) -> None:
    """Measure, write the figures and print their table."""
    variants, strangers = read(Path(folder)) if folder else stored()
    count = len(next(iter(variants.values())))
    cells = {
        name: [cell(cases, round(share * count), int(times) * (1 if name == "variant" else 5)) for share in SHARES]
        for name, cases in cases_of(variants, strangers).items()
    }
    results = {
        "questions": count,
        "times": int(times),
        "scores": {name: float(answers.mean()) for name, answers in variants.items()},
        "cells": cells,
        "variants": {name: packed(answers) for name, answers in variants.items()},
        "strangers": {name: packed(answers) for name, answers in strangers.items()},
    }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    sys.stdout.write(f"{table(results)}\n{table_by_variant(results)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
