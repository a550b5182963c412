"""Runs of the command on a folder of their own, to be killed and interrupted."""

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import duckdb

from eval_dagster.lake.answers.responses import journal_rows

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIG = """
    models:
      slow: {backend: scripted, function: "answer.py:answer"}
    evals:
      sums: {task: arithmetic, num_fewshot: 2}
      capitals: {task: capitals, num_fewshot: 1}
      names: {task: capitals_completion}
"""
ANSWER = """
    import os, time
    from pathlib import Path

    LOG = Path(os.environ["ASKED_LOG"])

    def answer(request):
        time.sleep(float(os.environ["ANSWER_S"]))
        with LOG.open("a") as log:
            log.write(request.request_id + "\\n")
        if request.choices is not None:
            return [-float(sum(map(ord, choice)) % 17) for choice in request.choices]
        return f" {len(request.prompt) % 10}"
"""
"""Answers slowly, and writes down what it is asked."""


class Workplace:
    """A folder with an evals.yaml, in which runs are started and ended."""

    def __init__(self, folder: Path, config: str = CONFIG) -> None:
        self.folder = folder
        self.log = folder / "asked.log"
        (folder / "evals.yaml").write_text(textwrap.dedent(config))
        (folder / "answer.py").write_text(textwrap.dedent(ANSWER))

    def start(
        self, answer_s: float = 0, *, command: Sequence[str] = ("-m", "eval_dagster.cli"), more: Mapping[str, str] | None = None
    ) -> "subprocess.Popen[bytes]":
        """Start a run; `command` is what Python is given before `run`, `more` is added to the environment."""
        self.log.unlink(missing_ok=True)
        environment = os.environ | {
            "EVAL_DAGSTER_CONFIG": str(self.folder / "evals.yaml"),
            "EVAL_DAGSTER_HOME": str(self.folder / "home"),
            "DAGSTER_HOME": str(self.folder / "home" / "dagster"),
            "PYTHONPATH": str(REPOSITORY),
            "ASKED_LOG": str(self.log),
            "ANSWER_S": str(answer_s),
            **(more or {}),
        }
        with (self.folder / "output.log").open("ab") as output:
            return subprocess.Popen(
                [sys.executable, *command, "run"], env=environment, stdout=output, stderr=output, start_new_session=True
            )

    def output(self) -> str:
        return (self.folder / "output.log").read_text()

    def asked(self) -> list[str]:
        return self.log.read_text().split() if self.log.exists() else []

    def flushed(self) -> set[str]:
        return flushed_in(self.folder / "home")


def flushed_in(home: Path) -> set[str]:
    """The requests whose answers the response cache of a home holds, in a file or in a journal."""
    cache = home / "lake" / "response_cache"
    written = {row["request_id"] for path in cache.rglob("*.journal") for row in journal_rows(path)}
    files = [str(path) for path in cache.rglob("[!.]*.parquet")]
    if not files:
        return written
    with duckdb.connect() as connection:
        return written | {row[0] for row in connection.execute("select request_id from read_parquet($files)", {"files": files}).fetchall()}


def wait_until(condition: Callable[[], bool], process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, "the run ended too early"
        assert time.monotonic() < deadline, "the run did not come to ask the model"
        time.sleep(0.02)
