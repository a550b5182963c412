"""Runs programs in the sandbox, and checks that its walls have no gaps."""

import json
import os
import re
import secrets
import subprocess
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

from eval_dagster.errors import EvalDagsterError, MachineError, RequirementError
from eval_dagster.sandbox import walls
from eval_dagster.sandbox.policy import ALLOW_KEY, execution_allowed
from eval_dagster.sandbox.records import Limits, Program, SandboxResult, Toolchain
from eval_dagster.sandbox.watch import SandboxWatch

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
            "this metric runs code that a model wrote, which is not allowed; to allow it, set in evals.yaml\n"
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
