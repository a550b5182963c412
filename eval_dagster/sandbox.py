"""Runs code that a model wrote, where it can harm nothing.

The code runs in a process of its own that sees no network, no other process, and of the machine's files only Python and the system's
libraries, read-only; it may write to an empty folder in memory that ends with it. It has no privileges and an empty environment, and
its time, memory, output, files and processes are limited. Linux namespaces do this, made by bubblewrap where that works, else by the
kernel's own calls; where neither can, nothing runs. Code sees the standard library alone, so that a result does not depend on what
else is installed: folders of installed packages look empty. The kernel is shared: who expects attacks on it runs evals in a virtual
machine.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any, Literal

from eval_dagster.errors import EvalDagsterError, MachineError, RequirementError
from eval_dagster.sandbox_watch import SandboxResult, SandboxWatch

Isolation = Literal["bubblewrap", "namespaces"]
"""What makes the walls: the program `bwrap`, or the kernel's calls for namespaces from Python."""

ALLOW_KEY = "sandbox.allow_code_execution"
"""The key of evals.yaml that allows execution."""
_LAUNCHER = Path(__file__).resolve().with_name("sandbox_launcher.py")
_PYTHON = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
_WORKDIR = "/tmp"  # noqa: S108 - the sandbox's own, in memory
_SYSTEM = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/nix/store")
_PACKAGES = (
    "lib*/python3*/site-packages",
    "lib*/python3*/dist-packages",
    "local/lib*/python3*/site-packages",
    "local/lib*/python3*/dist-packages",
)
"""Where package managers put what is no part of Python, below a prefix."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_LIMITS = {"processes": 32, "open_files": 64}
_FIRST_TO_GO = ("/bin/sh", "-c", '{ echo 1000 > /proc/self/oom_score_adj; } 2>/dev/null; exec "$@"', "sh")
"""Starts what follows as that which the kernel ends first when the machine has no memory left; its children inherit it."""
_PROBE = """
import os, socket
assert os.getuid() != 0, "the code would run as root"
assert os.getppid() == 1, "the code would see other processes"
assert [name for _, name in socket.if_nameindex()] in ([], ["lo"]), "the code would have a network"
assert set(os.listdir(".")) <= set({expected}), f"the folder holds {{sorted(os.listdir('.'))}}"
for path in ("/probe", "/usr/probe", os.path.join(os.path.dirname(os.__file__), "probe")):
    try:
        open(path, "w")
    except OSError:
        continue
    raise AssertionError(f"the code could write to {{path}}")
"""


@dataclass(frozen=True, kw_only=True)
class SandboxPolicy:
    """What a project permits."""

    allowed: bool = False
    """Whether code that a model wrote may run at all."""


_NOTHING_ALLOWED = SandboxPolicy()
_policy: ContextVar[SandboxPolicy] = ContextVar("sandbox_policy", default=_NOTHING_ALLOWED)


@contextmanager
def sandbox_policy(policy: SandboxPolicy) -> Iterator[None]:
    """Hold to a policy within the block. A new thread starts without one: nothing may run there."""
    token = _policy.set(policy)
    try:
        yield
    finally:
        _policy.reset(token)


def execution_allowed() -> bool:
    """Whether the policy that holds here lets code run."""
    return _policy.get().allowed


def run_python(
    code: str,
    *,
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
    request = {"code": code, "name": name, "memory_bytes": memory_bytes, "disk_bytes": disk_bytes, **_LIMITS}
    return _run(isolation or available_isolation(), request, timeout_s, output_bytes)


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
    # Where Python lies in a folder of that name, the way there is all that is seen of it.
    expected = {Path(path).parts[2] for path in _visible_paths()[0] if Path(path).is_relative_to(_WORKDIR)}
    request = {"code": _PROBE.format(expected=sorted(expected)), "name": "__main__", "memory_bytes": 2**30, "disk_bytes": 2**20, **_LIMITS}
    result = _run(isolation, request, 10.0, 2**16)
    if not result.completed:
        raise EvalDagsterError(result.stderr.strip().rpartition("\n")[2] or f"the trial ended by {result.ended_by}")


def _run(isolation: Isolation, request: dict[str, Any], timeout_s: float, output_bytes: int) -> SandboxResult:
    paths, links = _visible_paths()
    request |= {"paths": paths, "hidden": _package_folders(), "links": links, "devices": _DEVICES}
    # As text: its file may lie in a folder that looks empty in there.
    request |= {"cpu_s": ceil(timeout_s) + 1, "namespaces": isolation == "namespaces", "launcher": _LAUNCHER.read_text()}
    walls = _bubblewrap(request) if isolation == "bubblewrap" else []
    status_read, status_write = os.pipe()
    request["status"] = status_write
    try:
        process = subprocess.Popen(
            [*_FIRST_TO_GO, *walls, _PYTHON, "-I", "-S", "-B", "-c", request["launcher"]],
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
        watch = SandboxWatch(process, status.fileno(), timeout_s, output_bytes, request["memory_bytes"])
        try:
            _send(process, request)
            watch.until_the_end()
        finally:
            watch.kill()
    return watch.result()


def _bubblewrap(request: dict[str, Any]) -> list[str]:
    # As root no user namespace is needed, and the launcher becomes another user: root would be free of the limit on processes.
    user = ("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID") if os.geteuid() == 0 else ("--unshare-user", "--uid", "1", "--gid", "1")
    workdir = ("--perms", "1777", "--size", str(request["disk_bytes"]), "--tmpfs", _WORKDIR)
    leading = {str(parent) for path in (*request["paths"], *request["devices"]) for parent in Path(path).parents} - {"/", _WORKDIR}
    # Named because bubblewrap would else open them to their owner alone; sorted, so that outer ones come first.
    shown = [part for folder in sorted(leading) for part in ("--perms", "0755", "--dir", folder)]
    shown += [part for path in request["paths"] for part in ("--ro-bind", path, path)]
    shown += [part for path in request["hidden"] for part in ("--perms", "0755", "--tmpfs", path, "--remount-ro", path)]
    shown += [part for link, target in request["links"].items() for part in ("--symlink", target, link)]
    shown += [part for device in request["devices"] for part in ("--dev-bind", device, device)]
    namespaces = ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try")
    end = ("--remount-ro", "/", "--chdir", "/", "--die-with-parent", "--as-pid-1", "--")
    program = shutil.which("bwrap")
    if program is None:
        raise MachineError("the program bwrap is not installed")
    return [program, *namespaces, *user, *workdir, *shown, *end]


@cache
def _visible_paths() -> tuple[list[str], dict[str, str]]:
    """Files and folders that code may read, and symbolic links with their targets."""
    links = {path: str(Path(path).readlink()) for path in _SYSTEM if Path(path).is_symlink()}
    prefixes = [os.path.realpath(prefix) for prefix in (sys.base_prefix, sys.base_exec_prefix)]
    paths: list[str] = []
    for path in (*_SYSTEM, *prefixes, _PYTHON):
        if path not in links and Path(path).exists() and not any(Path(path).is_relative_to(shown) for shown in paths):
            paths.append(path)
    return paths, links


@cache
def _package_folders() -> list[str]:
    """Folders of installed packages among what code may read."""
    shown = _visible_paths()[0]
    found = {folder.resolve() for path in shown for pattern in _PACKAGES for folder in Path(path).glob(pattern) if folder.is_dir()}
    return sorted(str(folder) for folder in found if any(folder.is_relative_to(path) for path in shown))


def _send(process: "subprocess.Popen[bytes]", request: dict[str, Any]) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:  # it ended before it had read all; its report or standard error says why
        process.stdin.write(json.dumps(request).encode())
