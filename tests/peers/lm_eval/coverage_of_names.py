# ruff: noqa: T201
"""Loads every task of lm-eval and counts why some are refused: `python -m tests.peers.lm_eval.coverage_of_names`, ten minutes."""

import re
import sys
from collections import Counter
from pathlib import Path

from eval_dagster.errors import TaskDefinitionError
from eval_dagster.peers.lm_eval.index import VERSION, package_index
from eval_dagster.peers.lm_eval.registry import LmEvalRegistry
from eval_dagster.tasks.benchmark import adapter_task

_REASONS = {
    r"images or sound": "asks about images or sound",
    r"runs code that the model wrote": "runs code that the model wrote, outside a sandbox",
    r"evaluate\.load": "scores with code that `evaluate.load` fetches",
    r"transformers\.data\.metrics|load_metric": "imports a module that transformers 5 or datasets 4 do not have",
    r"beam search": "wants beam search",
    r"generation_kwargs": "has a setting of generation that has no counterpart",
    r"knows its metrics only after": "is a class that knows its metrics only after another package brought its rows (Unitxt)",
    r"data_files|data_dir": "names files of its dataset by a pattern, a folder or an address",
    r"ModuleNotFoundError|ImportError|AssertionError|SystemExit": "needs a package or a program that is not installed",
    r"AttributeError": "names a function that lm-eval does not have",
}


def reason_of(message: str) -> str:
    """The group of a refusal."""
    return next((reason for pattern, reason in _REASONS.items() if re.search(pattern, message)), f"other: {message[:120]}")


def refusal(name: str) -> str | None:
    """Why a task is refused; None where it loads."""
    try:
        benchmark = LmEvalRegistry().benchmark(name, Path())
        task = adapter_task(benchmark)
        for subject in task.SUBJECTS:
            benchmark.splits(subject, fewshot=False)
    except TaskDefinitionError as error:
        return reason_of(str(error))
    return None


def main() -> None:
    """Print the table."""
    names = [name for name, entry in package_index().items() if entry.kind == "task"]
    counts: Counter[str | None] = Counter()
    for number, name in enumerate(names, 1):
        counts[refusal(name)] += 1
        if number % 1000 == 0:
            print(number, file=sys.stderr)
    print(f"lm-eval {VERSION}: {len(names)} tasks, {counts[None]} load ({counts[None] / len(names):.1%})")
    for reason, count in counts.most_common():
        if reason is not None:
            print(f"| {reason} | {count} |")


if __name__ == "__main__":
    main()
