"""Checks that a text ends with the correct mathematical expression."""

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from eval_dagster.errors import DataError, MachineError
from eval_dagster.metrics.base import AnswerMetric, extra_module, gold_texts
from eval_dagster.records import Completion

_WORKER = Path(__file__).with_name("math_worker.py")
_MACHINE_SIGNALS = (signal.SIGALRM, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that end the process for a reason outside the text: minutes without processor time, no memory, a shutdown."""


class MathEqual(AnswerMetric):
    r"""Whether the text's expression equals a correct one by the rules of computer algebra: `\frac{1}{2}`, 1/2 and 0.5 are the same.

    By the package math-verify 0.9, in a process of its own. The text's expression is what it boxes or calls its answer, else its last
    formula or number; a text equal to the correct one needs none. A correct answer without delimiters (`$`, `\boxed`, ...) is a
    formula as a whole. A text that takes more processor time than `TIMEOUT_S` to read or compare, or more than 4 GiB of memory, is wrong.
    What another program takes does not count: a process that the load of the machine ends is a failure of the machine.
    """

    NAME = "math_equal"
    ANSWER = "mathematical expression"
    COMPANIONS = ("eval_dagster.metrics.math_worker",)
    PACKAGES = ("antlr4-python3-runtime", "latex2sympy2-extended", "math-verify", "sympy")
    TIMEOUT_S: ClassVar[float] = 10.0
    """Seconds of processor time for one text and one correct answer."""

    def calculate(self, response: Completion) -> float:
        """Return 1 or 0.

        Raises:
            RequirementError: The package is not installed.
            MachineError: The process does not start, or the machine ended it.
            DataError: A correct answer holds no expression, or there is none.
        """
        truths = gold_texts(response)
        for truth in truths:
            if self._ask(text=truth, is_gold=True) is None:
                raise DataError(f"the gold answer {truth!r} holds no {self.ANSWER}; expected one for the metric {self.NAME}")
        text = response.completion_text.strip()
        return float(any(text == truth.strip() or self._ask(text=text, gold=truth) for truth in truths))

    def answer_of(self, text: str) -> str | None:
        """The text's expression in the notation of sympy. Equal expressions in two forms are two answers: 1/2 and 0.5."""
        found = self._ask(text=text)
        return None if found is None else str(found)

    def _ask(self, **request: Any) -> Any:
        if find_spec("math_verify") is None:
            extra_module("math_verify", self.NAME)
        return _worker.ask({**request, "timeout_s": self.TIMEOUT_S})


class _Worker:
    """The process that reads mathematics. It is started at the first request, and again after a request has ended it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._owner = 0

    def ask(self, request: dict[str, Any]) -> Any:
        """The answer, or None if the request took too much time or memory.

        Raises:
            MachineError: The process does not start, or something else than the request ended it.
        """
        with self._lock:
            process = self._running()
            if self._send(process, request) and (found := self._receive(process)):
                return found[0]
            self._end()
            status = process.wait()
            if -status in _MACHINE_SIGNALS:
                raise MachineError(
                    f"the process that reads mathematics was ended by {signal.Signals(-status).name}, not by its limit of "
                    f"{request['timeout_s']:g} s of processor time: the machine was too busy, or short of memory"
                )
            return None

    def stop(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _running(self) -> "subprocess.Popen[str]":
        if self._process is not None and self._owner == os.getpid():
            if self._process.poll() is None:
                return self._process
            self._end()  # something else ended it since the last request, as a machine out of memory does
        command = [sys.executable, "-P", str(_WORKER)]
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, encoding="utf-8")
        except OSError as problem:
            raise MachineError(f"the process that reads mathematics cannot be started: {problem}") from problem
        self._process, self._owner = process, os.getpid()
        if not self._receive(process):
            self._end()
            raise MachineError(f"the process that reads mathematics does not start; to see why: {sys.executable} -P {_WORKER}")
        return process

    def _send(self, process: "subprocess.Popen[str]", request: dict[str, Any]) -> bool:
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            return False
        return True

    def _receive(self, process: "subprocess.Popen[str]") -> list[Any]:
        """The answer in a list; an empty one if the process ended instead."""
        assert process.stdout is not None
        line = process.stdout.readline()
        if line:
            return [json.loads(line)]
        process.wait()
        return []

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            process.kill()  # nothing where it has ended
            process.communicate()


_worker = _Worker()
atexit.register(_worker.stop)
