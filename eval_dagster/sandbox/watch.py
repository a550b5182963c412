"""Watches a process of the sandbox from outside: its report, its output, its time, its memory, and its end."""

import json
import math
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from eval_dagster.errors import MachineError
from eval_dagster.sandbox.usage import memory_of_program, processes_of_program, times_of_threads

_START_S = 60.0
"""Most seconds until the code starts; they do not count as its own."""
_LOOK_S = 0.2
"""Seconds between two looks at time and memory."""
_PATIENCE = 30
"""Wall time of a program, in multiples of its own time, after which the machine is too busy to run it."""

EndedBy = Literal["exit", "timeout", "output", "memory"]


@dataclass(frozen=True, kw_only=True)
class SandboxResult:
    """How a program ended."""

    completed: bool
    """Whether the code came to its last line: neither an exception nor an early exit, whatever its status, ended it."""
    exit_code: int | None
    """Negative for a signal; null where the sandbox ended it."""
    ended_by: EndedBy
    """The program itself, or its time, its output or the memory of all its processes, of which there was too much."""
    stdout: str
    stderr: str
    duration_s: float
    """Wall time from the start of the program to its end."""


class SandboxWatch:
    """Reads what a sandbox writes, and kills it when it takes too long, writes too much or holds too much memory.

    The time of a program is its own: what it computes and what it sleeps. Time in which it is ready and other programs have the
    processors does not count, so that a busy machine fails no program. Where the kernel does not say how long that is, it counts.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", status: int, timeout_s: float, output_bytes: int, memory_bytes: int) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self.process = process
        self.status, self.stdout, self.stderr = status, process.stdout.fileno(), process.stderr.fileno()
        self.read = {self.status: bytearray(), self.stdout: bytearray(), self.stderr: bytearray()}
        self.timeout_s, self.output_bytes, self.memory_bytes = timeout_s, output_bytes, memory_bytes
        self.started: float | None = None
        self.times: dict[int, tuple[float, float]] = {}
        """By thread: seconds on a processor, and seconds ready and without one."""
        self.deadline = self.ended = self.next_look = 0.0
        self.ended_by: EndedBy = "exit"

    def until_the_end(self) -> None:
        """Read until no process of the sandbox is left that could write."""
        self.deadline, self.next_look = time.monotonic() + _START_S, time.monotonic() + _LOOK_S
        with selectors.DefaultSelector() as selector:
            for descriptor in self.read:
                selector.register(descriptor, selectors.EVENT_READ)
            while selector.get_map():
                ready = selector.select(max(0.0, min(self.deadline, self.next_look) - time.monotonic()))
                if time.monotonic() >= self.deadline:
                    self._give_up()
                if time.monotonic() >= self.next_look:
                    self._look()
                for key, _ in ready:
                    if part := os.read(key.fd, 2**16):
                        self._take(key.fd, part)
                    else:
                        selector.unregister(key.fd)
        self.ended = time.monotonic()

    def _take(self, descriptor: int, part: bytes) -> None:
        if self.ended_by == "exit":
            self.read[descriptor] += part
        if descriptor == self.status and self.started is None:
            self.started = time.monotonic()
            self.deadline = self.started + _PATIENCE * self.timeout_s
        if self.ended_by == "exit" and len(self.read[self.stdout]) + len(self.read[self.stderr]) > self.output_bytes:
            self._stop("output")

    def _look(self) -> None:
        if self.started is not None and self.ended_by == "exit":
            processes = processes_of_program(self.process.pid)
            if self._own_time(processes, time.monotonic() - self.started) >= self.timeout_s:
                self._stop("timeout")
            elif memory_of_program(processes or ()) > self.memory_bytes:
                self._stop("memory")
        self.next_look = time.monotonic() + _LOOK_S

    def _own_time(self, processes: Collection[int] | None, wall_s: float) -> float:
        """Seconds that a program took for itself: computed by all its threads, or passed while none of them was kept waiting.

        All that passed, where the kernel does not show the program or what it waited; nothing before the program has a process.
        """
        for process in processes or ():
            self.times |= times_of_threads(process)
        if not self.times:
            return wall_s if processes is None or processes else 0.0
        computed, waited = (math.fsum(column) for column in zip(*self.times.values(), strict=True))
        return max(computed, wall_s - waited)

    def _give_up(self) -> None:
        if self.ended_by != "exit":
            raise MachineError(f"a process of the sandbox is still there {_START_S} s after it was killed")
        if self.started is None:
            raise MachineError(f"the program did not start within {_START_S:g} s")
        raise MachineError(
            f"the machine was too busy: of {_PATIENCE * self.timeout_s:g} s the program had less than its {self.timeout_s:g} s for itself"
        )

    def _stop(self, reason: EndedBy) -> None:
        self.ended_by = reason
        self.deadline = time.monotonic() + _START_S
        self.kill()

    def result(self) -> SandboxResult:
        """What the sandbox reported; a `MachineError` where that is nothing, or that it failed."""
        report = json.loads(self.read[self.status].strip() or b"{}")
        stdout, stderr = (bytes(self.read[part][: self.output_bytes]).decode(errors="replace") for part in (self.stdout, self.stderr))
        if "error" in report or self.started is None or (self.ended_by == "exit" and not report):
            raise MachineError(report.get("error") or stderr.strip() or "the sandbox ended without a report")
        killed = self.ended_by != "exit"
        return SandboxResult(
            completed=not killed and report["completed"] and report["exit_code"] == 0,
            exit_code=None if killed else report["exit_code"],
            ended_by=self.ended_by,
            stdout=stdout,
            stderr=stderr,
            duration_s=self.ended - self.started,
        )

    def kill(self) -> None:
        """Kill launcher and init process; with the latter the kernel kills all others."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
