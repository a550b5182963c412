"""Inside the sandbox: starts and ends the program. It uses the standard library only, and is passed to Python as text.

Each process has less power than the one before:

1. The launcher, started by bubblewrap, is process 1 of the sandbox. When it ends, the kernel kills everything else in it.
2. The program and its tests run in a new interpreter each, with an empty environment, no privileges, and limits.

Only the launcher can write the report. Tests report through a descriptor that the program does not have. A program without tests returns
a secret at its end, so that leaving early with exit status 0 does not count as success. This proves less: a program that looks for the
sandbox's descriptors can read the secret earlier.
"""

import ctypes
import errno
import json
import os
import resource
import signal
import socket
import sys
import time
from typing import Any, NoReturn

from eval_dagster.sandbox.system_calls import install_filter

PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, CAPABILITY_VERSION = 4, 38, 0x20080522
_NOBODY = 65534
_WORKDIR = "/tmp"  # noqa: S108 - the sandbox's own, in memory
_LAST_WORDS_S = 1.0
"""Seconds that the program has to write its output after its tests have ended."""
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": _WORKDIR, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "MALLOC_ARENA_MAX": "1"}
"""With more arenas, 14 threads would reserve all the address space."""
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Read the request from standard input, and carry it out."""
    request = json.load(sys.stdin.buffer)
    os.set_inheritable(request["status"], False)
    try:
        _run(request)
    except Exception as problem:
        _report(request, error=f"{type(problem).__name__}: {problem}")


def _run(request: dict[str, Any]) -> NoReturn:
    """Start the program and its tests, wait for their end, and report it."""
    require_no_network()
    # Without root the program has the same user, and process 1 ignores signals from the sandbox that have no handler. Python installs a
    # handler for SIGINT: remove it here; the program's interpreter installs its own.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    _call("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0)
    code = _file_of(request["code"])
    done_read, done_write = os.pipe()
    failed = os.pipe()
    if request["tests"] is None:
        secret_read, secret_write = os.pipe()
        expected = os.urandom(32)
        os.write(secret_write, expected)
        os.write(request["status"], b"\n")
        last = _start(request, failed, "program", request["name"], code, secret_read, done_write)
    else:
        expected = b"passed"
        channel, other = (end.detach() for end in socket.socketpair())
        tests = _file_of(json.dumps({"tests": request["tests"], "given": request["given"], "entry": request["entry"]}))
        os.write(request["status"], b"\n")
        last = _start(request, failed, "tester", tests, channel, done_write)
        program = _start(request, failed, "program", request["name"], code, other)
        for descriptor in (channel, other):
            os.close(descriptor)
    os.close(done_write)
    os.close(failed[1])
    while (ended := os.wait())[0] != last:
        pass
    if problem := os.read(failed[0], 4096):
        _report(request, error=problem.decode())
    os.set_blocking(done_read, False)
    try:
        completed = os.read(done_read, 64) == expected
    except BlockingIOError:  # a process that the program left running still holds the other end
        completed = False
    if request["tests"] is not None:
        _wait_for(program)
    _report(request, exit_code=os.waitstatus_to_exitcode(ended[1]), completed=completed)


def _start(request: dict[str, Any], failed: tuple[int, int], script: str, *arguments: object) -> int:
    """Start a new interpreter without privileges. Numbers among the arguments are descriptors that it inherits."""
    child = os.fork()
    if child:
        return child
    try:
        become_nobody(request)
        for argument in arguments:
            if isinstance(argument, int):
                os.set_inheritable(argument, True)
        command = [sys.executable, "-s", "-S", "-P", "-B", "-c", request["scripts"][script], *map(str, arguments)]
        os.execve(sys.executable, command, _ENVIRONMENT)  # noqa: S606
    except Exception as problem:
        os.write(failed[1], f"{type(problem).__name__}: {problem}".encode())
    os._exit(127)


def require_no_network() -> None:
    """Raise `OSError` if there is a network."""
    if (interfaces := {name for _, name in socket.if_nameindex()}) - {"lo"}:
        raise OSError(f"the code would have a network: {', '.join(sorted(interfaces))}")


def become_nobody(request: dict[str, Any]) -> None:
    """Give up every privilege, and set the limits of a request."""
    os.setsid()
    os.chdir(_WORKDIR)
    os.umask(0o077)
    if os.geteuid() == 0:
        os.setgroups([])
        _become_user(request["user"])
    _call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _call("capset", (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)())
    install_filter()
    limits = {
        resource.RLIMIT_AS: request["memory_bytes"],
        resource.RLIMIT_CPU: request["cpu_s"],
        resource.RLIMIT_FSIZE: request["disk_bytes"],
        resource.RLIMIT_NOFILE: request["open_files"],
        resource.RLIMIT_NPROC: request["processes"],
        resource.RLIMIT_SIGPENDING: request["processes"] * 16,
        **dict.fromkeys((resource.RLIMIT_CORE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_MSGQUEUE), 0),
    }
    for what, most in limits.items():
        resource.setrlimit(what, (most, most))


def _become_user(user: int) -> None:
    """Change to a user id that no other program has: the kernel limits processes, pipes and messages by user."""
    for number in (user, _NOBODY):  # a container may have fewer user ids
        try:
            os.setresgid(number, number, number)
            os.setresuid(number, number, number)
        except OSError as problem:
            if problem.errno != errno.EINVAL or number == _NOBODY:
                raise
        else:
            return


def _file_of(text: str) -> int:
    """A descriptor of a file in memory that contains the text."""
    descriptor = os.memfd_create("text", 0)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(text.encode("utf-8", "surrogatepass"))
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _wait_for(process: int) -> None:
    deadline = time.monotonic() + _LAST_WORDS_S
    while time.monotonic() < deadline:
        try:
            if os.waitpid(process, os.WNOHANG)[0]:
                return
        except ChildProcessError:  # it has already ended
            return
        time.sleep(0.002)


def _call(name: str, *arguments: Any) -> None:
    """Call a function of the C library that returns -1 and sets errno if it fails."""
    if getattr(_libc, name)(*arguments) == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _report(request: dict[str, Any], **fields: object) -> NoReturn:
    os.write(request["status"], json.dumps(fields).encode())
    os._exit(0)


if __name__ == "__main__":
    main()
