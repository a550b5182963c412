"""Nights of a scripted model whose answers flip although its version stays the same."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from random import Random
from shutil import rmtree
from typing import Any

from judged_project import Nights, row

from eval_dagster.gate.judgement import judge
from eval_dagster.gate.records import GateResult
from eval_dagster.gate.results import write_result
from eval_dagster.records.judgements import Regression

SAMPLES = 300
FLIPPING = range(30)
"""Samples that are right in half of the nights: 5 % differ between two of them."""


class FlippingNights:
    """Nights of a suite whose model reads from a file which samples it has wrong. So its version stays the same."""

    result: GateResult
    """The last judgement."""
    row: Regression
    """Its row of the eval `left`."""

    def __init__(self, folder: Path) -> None:
        self.nights = Nights(folder)
        self._wrong, self._random = folder / "wrong.txt", Random(8)

    def ask(self, *, wrong: Collection[int] = (), version: int = 1, **files: Any) -> None:
        """Ask all samples of a version of the model anew. `wrong` are wrong besides those that happen to be."""
        flipped = {number for number in FLIPPING if self._random.random() < 0.5}
        self._wrong.write_text(" ".join(map(str, sorted(flipped | set(wrong)))))
        lake = self.nights.project().lake
        for folder in (lake.folder("responses", "left", "one"), lake.root / "response_cache"):
            rmtree(folder, ignore_errors=True)  # nothing is asked again as long as its answers are there
        code = f"number = -1 if str(number) in Path({str(self._wrong)!r}).read_text().split() else number"
        self.nights.evaluate(
            evals=["left"], numbers=tuple(range(SAMPLES)), raising=f"from pathlib import Path; {code}; version = {version}", **files
        )

    def judge(self, gate: str = "", *, is_kept: bool = True) -> Regression:
        """The row of a judgement, which later ones know if it is kept."""
        policy = gate if "pool" in gate else f"pool: 8, {gate}"
        project = replace(self.nights.project(baseline="last_passed", gate=f"require: [left], {policy}".rstrip(", ")))
        result = judge(project, "nightly", run_id="gate")
        if is_kept:
            write_result(project.lake, result)
        self.result, self.row = result, row(result)
        return self.row

    def night(self, *, gate: str = "", **settings: Any) -> Regression:
        """Ask and judge."""
        self.ask(**settings)
        return self.judge(gate)
