"""Runs the command line in processes that are forked from one with the libraries imported, in a fraction of the time of a new process.

A test starts a process by `subprocess` if it sends signals, has a terminal or a standard input, or if the start itself is its subject.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

_TESTS = Path(__file__).parent
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(
    ["dagster._core.execution.api", "eval_dagster.assets.definitions", "mlflow.store.tracking.sqlalchemy_store", "pandas"]
)


def run_command(
    *arguments: str | Path, folder: Path | None = None, environment: Mapping[str, str] | None = None, timeout: float = 300
) -> "subprocess.CompletedProcess[str]":
    """Run `eval-dagster` and wait for its end.

    Args:
        arguments: Of the command line.
        folder: The current folder of the process; by default this process's.
        environment: All environment variables; by default this process's.
        timeout: Seconds.

    Raises:
        subprocess.TimeoutExpired: It did not end in time, and was killed.
    """
    command = ["eval-dagster", *map(str, arguments)]
    with tempfile.TemporaryDirectory() as outputs:
        files = [Path(outputs, name) for name in ("stdout", "stderr")]
        variables = dict(os.environ if environment is None else environment)
        process = _PROCESSES.Process(target=_command, args=(command, folder or Path.cwd(), variables, files))
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(command, timeout, *(file.read_bytes() for file in files))
        printed = [file.read_text("utf-8", "backslashreplace") for file in files]
        return subprocess.CompletedProcess(command, process.exitcode, *printed)


def _command(command: list[str], folder: Path, environment: dict[str, str], outputs: list[Path]) -> NoReturn:
    for number, (name, output) in enumerate(zip(("stdout", "stderr"), outputs, strict=True), start=1):
        file = os.open(output, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, number)
        os.close(file)
        setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", closefd=False))
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = command
    installed = [each for each in sys.path if not Path(each).is_relative_to(_TESTS)]
    sys.path[:] = [str(folder), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), *installed]
    from eval_dagster.cli.program import program  # not before: the modules of the command line read the environment and the streams

    program()
