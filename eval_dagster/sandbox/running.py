"""Runs programs in the sandbox, watches their time, memory and output from outside, and checks that the walls have no gaps."""

import json
import math
import os
import re
import resource
import secrets
import selectors
import signal
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

from eval_dagster.errors import EvalDagsterError, MachineError, RequirementError
from eval_dagster.sandbox import walls
from eval_dagster.sandbox.records import ALLOW_KEY, EndedBy, Limits, Program, SandboxResult, Toolchain, execution_allowed
from eval_dagster.sandbox.walls import WORKDIR

_FOLDER = Path(__file__).resolve().parent
_IMPORTED = re.compile(rf"^from {re.escape(__package__)}\.(\w+) import", re.MULTILINE)
_LIMITS = {"processes": 33, "open_files": 64}
"""Processes and threads of the program and its tests together, and open files of each process."""
_USERS = range(0x60000000, 0x70000000)
"""If root runs the sandbox, each program has one of these user ids. Systems give lower ones to users and containers."""
_FIRST_TO_GO = ("/bin/sh", "-c", '{ echo 1000 > /proc/self/oom_score_adj; } 2>/dev/null; exec "$@"', "sh")
"""Starts a command that the kernel kills first when the machine has no memory left; its children inherit this."""
_IMPORT = """
import sys
from types import ModuleType
for name, text in {imported!r}:
    sys.modules[name] = ModuleType(name)
    exec(compile(text, name, "exec"), sys.modules[name].__dict__)
exec(compile({script!r}, {file!r}, "exec"), {{"__name__": "__main__"}})
"""
"""Makes modules from texts: no file of this package is visible in the sandbox."""
_PROBE = """
import os, socket
assert os.getuid() != 0, "the code would run as root"
assert os.getppid() == 1, "the code would see other processes"
for family in range(64):
    try:
        socket.socket(family, socket.SOCK_DGRAM).close()
    except OSError:
        continue
    assert family == socket.AF_UNIX, f"the code could open sockets of the family {{family}}"
assert set(os.listdir(".")) <= set({expected}), f"the folder holds {{sorted(os.listdir('.'))}}"
for path in ("/probe", "/usr/probe", os.path.join(os.path.dirname(os.__file__), "probe")):
    try:
        open(path, "w")
    except OSError:
        continue
    raise AssertionError(f"the code could write to {{path}}")
"""


def run_python(program: Program, limits: Limits = Limits(), toolchain: Toolchain | None = None) -> SandboxResult:  # noqa: B008 - frozen
    """Run a program as a module, wait for its end, and leave nothing of it. It may start the compiler of the toolchain.

    Raises:
        RequirementError: The policy does not allow execution, or the machine has no sandbox.
        MachineError: The sandbox itself failed, or the machine was too busy; this tells nothing about the program.
    """
    if not execution_allowed():
        raise RequirementError(
            "code that a model wrote would run, which is not allowed; to allow it, set in evals.yaml\n"
            "  sandbox:\n    allow_code_execution: true\n"
            f"({ALLOW_KEY}: true). The code runs in a sandbox without network or access to files"
        )
    require_sandbox()
    return _run(program, limits, toolchain)


@cache
def require_sandbox() -> None:
    """Check that programs can run in the sandbox on this machine, by a trial program that looks for gaps.

    Raises:
        RequirementError: bubblewrap is missing, cannot make its walls, or leaves a gap.
    """
    try:
        probe()
    except EvalDagsterError as problem:
        raise RequirementError(
            f"code that a model wrote does not run, because this machine has no sandbox for it: {problem}. {walls.cure(str(problem))}"
        ) from problem


def probe() -> None:
    """Run the trial program. Raises `EvalDagsterError`, which names the failure or the gap."""
    # If Python is installed below /tmp, the folders that lead to it are visible in the sandbox.
    expected = {Path(path).parts[2] for path in walls.visible_paths()[0] if Path(path).is_relative_to(walls.WORKDIR)}
    code = _PROBE.format(expected=sorted(expected))
    result = _run(Program(code=code), Limits(disk_bytes=2**20, output_bytes=2**16))
    if not result.completed:
        raise EvalDagsterError(result.stderr.strip().rpartition("\n")[2] or f"the trial ended by {result.ended_by}")


def _run(program: Program, limits: Limits, toolchain: Toolchain | None = None) -> SandboxResult:
    request: dict[str, Any] = asdict(program) | asdict(limits) | _LIMITS
    request |= {"cpu_s": ceil(limits.timeout_s) + 1, "user": _USERS[0] + secrets.randbelow(len(_USERS))}
    request |= {"scripts": {"program": _script("program.py"), "tester": _script("tester.py")}}
    command = [*_FIRST_TO_GO, *walls.bubblewrap(limits.disk_bytes, toolchain), walls.PYTHON, "-I", "-S", "-B", "-c", _script("launcher.py")]
    status_read, status_write = os.pipe()
    request["status"] = status_write
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={},
            cwd="/",
            pass_fds=[status_write],
            start_new_session=True,
        )
    except OSError as problem:
        os.close(status_read)
        raise MachineError(f"cannot start: {problem}") from problem
    finally:
        os.close(status_write)
    with process, open(status_read, "rb", buffering=0) as status:  # noqa: PTH123 - a descriptor
        watch = SandboxWatch(process, status.fileno(), limits)
        try:
            _send(process, request)
            watch.until_the_end()
        finally:
            watch.kill()
    return watch.result()


def walled(command: Sequence[str], folders: Sequence[str], environment: Mapping[str, str], limits: Limits) -> list[str]:
    """The command that runs another one within the walls of the sandbox, for a process that answers many times.

    It ends with its standard input. Only its own code runs in it: the policy is not asked, and its time is not limited.

    Args:
        command: The command with its arguments.
        folders: Folders that it may read.
        environment: Its environment.
        limits: Its memory and files.

    Raises:
        RequirementError: The machine has no sandbox.
    """
    require_sandbox()
    user = _USERS[0] + secrets.randbelow(len(_USERS))
    request = asdict(limits) | _LIMITS | {"cpu_s": resource.RLIM_INFINITY, "user": user}
    started = json.dumps({**request, "command": list(command), "environment": dict(environment)})
    walls_of_it = walls.bubblewrap(limits.disk_bytes, folders=folders)
    return [*_FIRST_TO_GO, *walls_of_it, walls.PYTHON, "-I", "-S", "-B", "-c", _script("resident.py"), started]


@cache
def _script(file: str) -> str:
    """The code that an interpreter in the sandbox executes, as one text."""
    text = (_FOLDER / file).read_text("utf-8")
    return _IMPORT.format(imported=list(_imports(text).items()), script=text, file=file)


def _imports(text: str) -> dict[str, str]:
    """The modules of this package that a text imports, by name. A module comes after those that it imports."""
    found: dict[str, str] = {}
    for name in _IMPORTED.findall(text):
        module = (_FOLDER / f"{name}.py").read_text("utf-8")
        found |= {**_imports(module), f"{__package__}.{name}": module}
    return found


def _send(process: "subprocess.Popen[bytes]", request: dict[str, Any]) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:  # it has ended early; its report or standard error has the reason
        process.stdin.write(json.dumps(request).encode())


_PAGE = os.sysconf("SC_PAGE_SIZE")
_FILE_BYTES = 2048
"""Memory of the kernel for a file, besides its content."""


def processes_of_program(launcher: int) -> list[int] | None:
    """Ids of the processes that the sandbox's process 1 has started; None if the kernel does not show it. `launcher` is bubblewrap."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            # The name, up to the last parenthesis, can contain anything; state and parent follow.
            children.setdefault(int(path.read_text(errors="replace").rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
    if launcher not in children:
        return None
    found = [process for init in children[launcher] for process in children.get(init, [])]
    for process in found:
        found += children.get(process, [])
    return found


def times_of_threads(process: int) -> dict[int, tuple[float, float]]:
    """For each thread of a process: seconds on a processor, and seconds of waiting for one."""
    found = {}
    with suppress(OSError):  # the process has ended
        for path in Path("/proc", str(process), "task").glob("*/schedstat"):
            with suppress(OSError, ValueError):  # the thread has ended
                computed, waited, _ = map(int, path.read_text().split())
                found[int(path.parent.name)] = (computed / 1e9, waited / 1e9)
    return found


def memory_of_program(processes: Collection[int]) -> int:
    """Bytes that a program holds: in its processes, its files, and the buffers of its sockets.

    Shared memory is divided among its processes. If the kernel does not show the parts, all of it counts for each process.
    """
    total = sum(map(_memory, processes))
    for process in processes:  # one process that has not ended is enough: all have the same folder and network
        with suppress(OSError, ValueError):
            return total + _files(process) + _sockets(process) * _bytes_of_socket()
    return total


def _memory(process: int) -> int:
    """Memory and swap of a process. Of files, only mapped parts; files in the folder count separately."""
    folder = Path("/proc", str(process))
    with suppress(OSError, ValueError, KeyError):
        lines = (folder / "smaps_rollup").read_text().splitlines()[1:]
        kilobytes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        parts = ("Pss_Anon", "Pss_File", "SwapPss", "Private_Hugetlb", "Shared_Hugetlb")
        return sum(kilobytes[part] for part in parts) * 1024
    # If the first thread of a process has ended, the kernel reports no memory for the process, although other threads use it.
    with suppress(OSError):  # the process has ended
        for path in (folder, *folder.glob("task/*")):
            with suppress(OSError, ValueError, IndexError):
                if resident := int((path / "statm").read_text().split()[1]):
                    return resident * _PAGE
    return 0


def _files(process: int) -> int:
    """Bytes of the folder that the program may write to."""
    found = os.statvfs(f"/proc/{process}/root{WORKDIR}")
    return (found.f_blocks - found.f_bfree) * found.f_frsize + (found.f_files - found.f_ffree) * _FILE_BYTES


def _sockets(process: int) -> int:
    """Number of open sockets, including those that are in transfer to another process or not yet accepted."""
    line = Path(f"/proc/{process}/net/sockstat").read_text().partition("\n")[0]
    return int(line.rpartition(" ")[2])


def _bytes_of_socket() -> int:
    """Most bytes that a socket can hold: messages up to its limit, and one that exceeds it."""
    return 2 * int(Path("/proc/sys/net/core/wmem_default").read_text())


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
