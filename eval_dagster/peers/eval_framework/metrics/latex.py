"""Reads LaTeX by sympy: in this process for files that import its parser, and for computer algebra in a process of its own.

An expression can take endless time or all memory.
"""

import atexit
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from eval_dagster.errors import MachineError
from eval_dagster.metrics.base import extra_module

WORKER = "eval_dagster.peers.eval_framework.metrics.latex_worker"
"""A metric that asks has this name in its `COMPANIONS`."""
LATEX_PACKAGES = ("antlr4-python3-runtime", "sympy")
_SCRIPT = Path(__file__).with_name("latex_worker.py")
_PATIENCE_S = 120.0
"""Most seconds of wall time for a request; the process has limits of its own."""


class _Algebra:
    """The process. It is started at the first request, and again after a request has ended it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._owner = 0

    def ask(self, request: Mapping[str, object]) -> Any:
        """The answer; None if the process ended or did not answer in time."""
        with self._lock:
            process = self._running()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
                is_ready = bool(select.select([process.stdout], [], [], _PATIENCE_S)[0])
                line = process.stdout.readline() if is_ready else ""
            except BrokenPipeError:
                line = ""
            if not line:
                self.stop()
                return None
            return json.loads(line)

    def stop(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            process.kill()
            process.communicate()

    def _running(self) -> "subprocess.Popen[str]":
        if self._process is not None and self._owner == os.getpid() and self._process.poll() is None:
            return self._process
        self.stop()
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", str(_SCRIPT)], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, encoding="utf-8"
            )
        except OSError as problem:
            raise MachineError(f"the process for computer algebra cannot be started: {problem}") from problem
        self._process, self._owner = process, os.getpid()
        return process


_algebra = _Algebra()
atexit.register(_algebra.stop)


def ask_algebra(request: Mapping[str, object]) -> Any:
    """The answer of the process to a request; None without one.

    Raises:
        MachineError: The process cannot be started.
    """
    return _algebra.ask(request)


def accept_antlr(metric_name: str, *, reads_latex: bool) -> None:
    """Let sympy's parser use the installed antlr, if a file has imported the parser. Without this, files that catch every error give 0.

    The parser asks for antlr 4.11. Its tables have the format of 4.10 and later, which 4.13 reads.

    Raises:
        RequirementError: antlr is not installed, and the metric reads LaTeX.
    """
    if "sympy.parsing.latex" not in sys.modules or not (reads_latex or find_spec("antlr4")):
        return
    extra_module("antlr4", metric_name)
    grammar: Any = import_module("sympy.parsing.latex._parse_latex_antlr")
    if grammar.version("antlr4-python3-runtime").startswith("4.11"):
        return
    grammar.version = lambda _: "4.11"
    for each in (grammar.LaTeXLexer, grammar.LaTeXParser):
        each.checkVersion = lambda *_: None  # it prints both versions for each text
