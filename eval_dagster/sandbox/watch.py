"""Watches a sandbox from outside: its report, output, time, memory and end."""

import json
import math
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Collection
from contextlib import suppress

from eval_dagster.errors import MachineError
from eval_dagster.sandbox.records import EndedBy, Limits, SandboxResult
from eval_dagster.sandbox.usage import memory_of_program, processes_of_program, times_of_threads

_START_S = 60.0
"""Longest time until the code starts. It does not count as the code's time."""
_CHECK_S = 0.2
"""Seconds between two checks of time and memory."""
_PATIENCE = 30
"""Longest wall time of a program, in multiples of its own time. After it, the machine is too busy to run the program."""


class SandboxWatch:
    """Reads the output of a sandbox, and kills the sandbox when the program exceeds its limits.

    The time of a program is the time in which it computes or sleeps. Time in which it waits for a processor does not count, so a busy
    machine fails no program. If the kernel does not show how long a program waited, all time counts.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", status: int, limits: Limits) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self.process = process
        self.status, self.stdout, self.stderr = status, process.stdout.fileno(), process.stderr.fileno()
        self.read = {self.status: bytearray(), self.stdout: bytearray(), self.stderr: bytearray()}
        self.limits = limits
        self.started: float | None = None
        self.times: dict[int, tuple[float, float]] = {}
        """By thread: seconds on a processor, and seconds of waiting for one."""
        self.deadline = self.ended = self.next_check = 0.0
        self.ended_by: EndedBy = "exit"

    def until_the_end(self) -> None:
        """Read until the last process of the sandbox has ended."""
        self.deadline, self.next_check = time.monotonic() + _START_S, time.monotonic() + _CHECK_S
        with selectors.DefaultSelector() as selector:
            for descriptor in self.read:
                selector.register(descriptor, selectors.EVENT_READ)
            while selector.get_map():
                ready = selector.select(max(0.0, min(self.deadline, self.next_check) - time.monotonic()))
                if time.monotonic() >= self.deadline:
                    self._give_up()
                if time.monotonic() >= self.next_check:
                    self._check()
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
            self.deadline = self.started + _PATIENCE * self.limits.timeout_s
        if self.ended_by == "exit" and len(self.read[self.stdout]) + len(self.read[self.stderr]) > self.limits.output_bytes:
            self._stop("output")

    def _check(self) -> None:
        if self.started is not None and self.ended_by == "exit":
            processes = processes_of_program(self.process.pid)
            if self._own_time(processes, time.monotonic() - self.started) >= self.limits.timeout_s:
                self._stop("timeout")
            elif memory_of_program(processes or ()) > self.limits.memory_bytes:
                self._stop("memory")
        self.next_check = time.monotonic() + _CHECK_S

    def _own_time(self, processes: Collection[int] | None, wall_s: float) -> float:
        """Seconds that count: computed by all threads, or passed while no thread waited for a processor.

        All time counts if the kernel does not show the program or its waiting; none before the program has a process.
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
        timeout_s = self.limits.timeout_s
        raise MachineError(
            f"the machine was too busy: of {_PATIENCE * timeout_s:g} s the program had less than its {timeout_s:g} s for itself"
        )

    def _stop(self, reason: EndedBy) -> None:
        self.ended_by = reason
        self.deadline = time.monotonic() + _START_S
        self.kill()

    def result(self) -> SandboxResult:
        """The result that the sandbox reported. Raises `MachineError` if it failed or reported nothing."""
        report = json.loads(self.read[self.status].strip() or b"{}")
        most = self.limits.output_bytes
        stdout, stderr = (bytes(self.read[part][:most]).decode(errors="replace") for part in (self.stdout, self.stderr))
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
        """Kill bubblewrap and the launcher. The kernel then kills all other processes of the sandbox."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
