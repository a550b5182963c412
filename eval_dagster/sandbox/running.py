"""Runs programs in the sandbox, and checks that its walls hold."""

import json
import os
import re
import secrets
import subprocess
from contextlib import suppress
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any, Literal

from eval_dagster.errors import EvalDagsterError, MachineError, RequirementError
from eval_dagster.sandbox import walls
from eval_dagster.sandbox.policy import ALLOW_KEY, execution_allowed
from eval_dagster.sandbox.watch import SandboxResult, SandboxWatch

Isolation = Literal["bubblewrap", "namespaces"]
"""What makes the walls: the program `bwrap`, or the kernel's calls for namespaces from Python."""

SCRIPTS = {"launcher": "launcher.py", "program": "program.py", "tester": "tester.py"}
"""What the processes in the sandbox start with, beside this module."""
_FOLDER = Path(__file__).resolve().parent
_IMPORTED = re.compile(rf"^from {re.escape(__package__)}\.(\w+) import", re.MULTILINE)
_LIMITS = {"processes": 33, "open_files": 64}
"""Processes and threads of the program with those of its tests, and open files of each process."""
_USERS = range(0x60000000, 0x70000000)
"""User ids of which each program gets one where root runs it; above those that systems give to users and containers."""
_FIRST_TO_GO = ("/bin/sh", "-c", '{ echo 1000 > /proc/self/oom_score_adj; } 2>/dev/null; exec "$@"', "sh")
"""Starts what follows as that which the kernel ends first when the machine has no memory left; its children inherit it."""
_IMPORT = """
import sys
from types import ModuleType
for name, text in {imported!r}:
    sys.modules[name] = ModuleType(name)
    exec(compile(text, name, "exec"), sys.modules[name].__dict__)
exec(compile({script!r}, {file!r}, "exec"), {{"__name__": "__main__"}})
"""
"""A program that makes modules of texts, since no file of this package is to be seen in the sandbox."""
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


def run_python(
    code: str,
    *,
    tests: str | None = None,
    given: str = "",
    entry: str | None = None,
    timeout_s: float = 10.0,
    memory_bytes: int = 2**30,
    disk_bytes: int = 2**26,
    output_bytes: int = 2**20,
    name: str = "__main__",
    isolation: Isolation | None = None,
) -> SandboxResult:
    """Run code as a module, wait for its end, and leave nothing of it.

    Args:
        code: Python source.
        tests: Python source that tests it, in a process of its own: with it, `completed` is that all of it was executed.
        given: The beginning of the code where that is not the model's: the tests take what it defines from here, all but its last
            definition, which the model has finished.
        entry: What the tests take from the code even where Python has something of that name.
        timeout_s: Seconds that the program may take, computing or sleeping, after which it is killed; the time in which it is ready
            and other programs have the processors does not count. Each process may compute a second longer at most.
        memory_bytes: Most address space of each process, and most memory of all its processes together: with more they are killed.
        disk_bytes: Most that it may write to its folder, which lies in memory.
        output_bytes: Most on standard output and error together; with more it is killed.
        name: The module's `__name__`.
        isolation: What makes the walls; the first that works where not given.

    Raises:
        RequirementError: The policy does not allow execution, or the machine has no isolation.
        MachineError: The sandbox itself failed, or the machine was too busy for the program; nothing is known of the code.
    """
    if not execution_allowed():
        raise RequirementError(
            "this metric runs code that a model wrote, which is not allowed; to allow it, set in evals.yaml\n"
            "  sandbox:\n    allow_code_execution: true\n"
            f"({ALLOW_KEY}: true). The code runs without network or access to files, in namespaces of its own"
        )
    request = {"code": code, "name": name, "tests": tests, "given": given, "entry": entry}
    return _run(isolation or available_isolation(), request, memory_bytes, disk_bytes, timeout_s, output_bytes)


@cache
def available_isolation() -> Isolation:
    """The first isolation that holds on this machine, tried out by a program that looks for gaps.

    Raises:
        RequirementError: None does.
    """
    reasons = []
    for isolation in ("bubblewrap", "namespaces"):
        try:
            probe(isolation)
        except EvalDagsterError as problem:
            reasons.append(f"{isolation}: {problem}")
        else:
            return isolation
    raise RequirementError(
        "code that a model wrote cannot be isolated on this machine, so it does not run (" + "; ".join(reasons) + "). On Linux, install "
        "bubblewrap (apt-get install bubblewrap) or allow user namespaces (sysctl user.max_user_namespaces and, on Ubuntu, "
        "kernel.apparmor_restrict_unprivileged_userns=0); in a container, give it the capability SYS_ADMIN"
    )


def probe(isolation: Isolation) -> None:
    """Try an isolation out.

    Raises:
        EvalDagsterError: It does not work here, or has gaps; the message says which.
    """
    # Where Python is installed below /tmp, the folders that lead to it are visible in the sandbox.
    expected = {Path(path).parts[2] for path in walls.visible_paths()[0] if Path(path).is_relative_to(walls.WORKDIR)}
    code = _PROBE.format(expected=sorted(expected))
    request = {"code": code, "name": "__main__", "tests": None, "given": "", "entry": None}
    result = _run(isolation, request, 2**30, 2**20, 10.0, 2**16)
    if not result.completed:
        raise EvalDagsterError(result.stderr.strip().rpartition("\n")[2] or f"the trial ended by {result.ended_by}")


def _run(
    isolation: Isolation, request: dict[str, Any], memory_bytes: int, disk_bytes: int, timeout_s: float, output_bytes: int
) -> SandboxResult:
    paths, links = walls.visible_paths()
    user = _USERS[0] + secrets.randbelow(len(_USERS))
    request |= {"paths": paths, "hidden": walls.package_folders(), "links": links, "devices": walls.DEVICES, "user": user, **_LIMITS}
    request |= {"memory_bytes": memory_bytes, "disk_bytes": disk_bytes, "cpu_s": ceil(timeout_s) + 1}
    request |= {"namespaces": isolation == "namespaces", "scripts": {name: _script(name) for name in ("program", "tester")}}
    behind = walls.bubblewrap(request) if isolation == "bubblewrap" else []
    status_read, status_write = os.pipe()
    request["status"] = status_write
    try:
        process = subprocess.Popen(
            [*_FIRST_TO_GO, *behind, walls.PYTHON, "-I", "-S", "-B", "-c", _script("launcher")],
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
        watch = SandboxWatch(process, status.fileno(), timeout_s, output_bytes, memory_bytes)
        try:
            _send(process, request)
            watch.until_the_end()
        finally:
            watch.kill()
    return watch.result()


@cache
def _script(process: str) -> str:
    """What an interpreter in the sandbox executes, as one text."""
    text = (_FOLDER / SCRIPTS[process]).read_text("utf-8")
    return _IMPORT.format(imported=list(_imports(text).items()), script=text, file=SCRIPTS[process])


def _imports(text: str) -> dict[str, str]:
    """The modules of this package that a text imports, by name; those that they import themselves come first."""
    found: dict[str, str] = {}
    for name in _IMPORTED.findall(text):
        module = (_FOLDER / f"{name}.py").read_text("utf-8")
        found |= {**_imports(module), f"{__package__}.{name}": module}
    return found


def _send(process: "subprocess.Popen[bytes]", request: dict[str, Any]) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:  # it ended before it had read all; its report or standard error says why
        process.stdin.write(json.dumps(request).encode())
