"""lm-eval: which tasks of a release are described, and drawn ones beside lm-eval's own evaluation."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from eval_dagster.peers.lm_eval.registry import LmEvalRegistry
from tests.peers.watch.environments import environment_with
from tests.peers.watch.outcomes import Look, Looked

ROOT = Path(__file__).resolve().parents[3]
DRAWN = 100
"""Tasks that are compared. Drawn ones that are refused, or that no invented rows fit, are not counted."""


class LmEval:
    """Requests, values of documents, and aggregates."""

    name = LmEvalRegistry.NAME
    distribution = "lm-eval"
    what = (
        f"every task is described; {DRAWN} drawn ones are compared, on invented rows, at 0 examples and at their own number, as text and "
        "as messages: requests, values of documents and aggregates"
    )

    def interpreter(self) -> str:
        return sys.executable

    def environment(self, folder: Path, release: str) -> Path:
        # Beside the packages of this environment, since lm-eval and this project are compared in one process.
        return environment_with(folder / f"{self.name}-{release}", [f"lm_eval=={release}"], is_beside=True)

    def look(self, python: Path, release: str, scratch: Path, most: int | None) -> Look:
        command = [str(python), "-m", "tests.peers.watch.lm_eval_side", release, *([] if most is None else [str(most)])]
        return read_lines(command, scratch / "errors.txt")


def read_lines(command: list[str], errors: Path) -> Look:
    """A look that a process writes as lines of JSON. If it ends early, the iterator raises `LookupError`."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with errors.open("w") as written:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=written, text=True)
    assert process.stdout is not None
    lines = process.stdout

    def failed() -> LookupError:
        lines.close()
        said = errors.read_text().strip().splitlines() or ["it says nothing"]
        return LookupError(f"its process ended with status {process.wait()}: {said[-1]}")

    def found() -> Iterator[Looked]:
        with process:
            for line in lines:
                name, word, reason = json.loads(line)
                yield Looked(name, word, reason)
        if process.returncode:
            raise failed()

    first = lines.readline()
    if not first:
        raise failed()
    return Look(json.loads(first), found())
