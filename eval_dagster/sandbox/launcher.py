"""Inside the sandbox: what starts and ends the program. Standard library alone; started as a text, with the modules that it imports.

Processes, each with less power than the one before:

1. The launcher makes the namespaces with the kernel's own calls; where bubblewrap is installed, that does it.
2. The init process is process 1 of the new process namespace: when it ends, the kernel kills whatever the program left running.
3. The program and its tests start anew, each in a process with an empty environment, without privileges and under limits.

Only the init process can write the report. Tests report through a descriptor that the program does not have. A program without tests shows
that it came to its end by handing a secret back, so that leaving early with exit status 0 is no success; that is its own word, though,
since a program that looks for the sandbox's descriptors can read the secret earlier.
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

from eval_dagster.sandbox.namespaces import NOBODY, PR_SET_PDEATHSIG, WORKDIR, call, make_namespaces
from eval_dagster.sandbox.system_calls import install_filter

PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, CAPABILITY_VERSION = 4, 38, 0x20080522
_LAST_WORDS_S = 1.0
"""What the program may still take, when its tests have ended, to write what it has printed."""
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": WORKDIR, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "MALLOC_ARENA_MAX": "1"}
"""With more arenas, 14 threads would reserve all the address space."""


def main() -> None:
    """Read the request from standard input, and carry it out."""
    request = json.load(sys.stdin.buffer)
    os.set_inheritable(request["status"], False)
    try:
        if request["namespaces"]:
            make_namespaces(request)
            if child := os.fork():
                os.close(request["status"])
                os.waitpid(child, 0)
                os._exit(0)
            call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        run_init(request)
    except Exception as problem:
        _report(request, error=f"{type(problem).__name__}: {problem}")


def run_init(request: dict[str, Any]) -> NoReturn:
    """Start the program and its tests, wait for them, report how they ended, and take everything in the namespace along."""
    if (interfaces := {name for _, name in socket.if_nameindex()}) - {"lo"}:
        raise OSError(f"the code would have a network: {', '.join(sorted(interfaces))}")
    # Without root the program has this process's user. Of signals from within, process 1 ignores those that have no handler, as
    # Python gives to this one; the program's Python sets its own again.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    call("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0)
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
    except BlockingIOError:  # a process that the program left behind still holds the other end
        completed = False
    if request["tests"] is not None:
        _wait_for(program)
    _report(request, exit_code=os.waitstatus_to_exitcode(ended[1]), completed=completed)


def _start(request: dict[str, Any], failed: tuple[int, int], script: str, *arguments: object) -> int:
    """Start a fresh interpreter without privileges; numbers among the arguments are descriptors that it has."""
    child = os.fork()
    if child:
        return child
    try:
        _become_nobody(request)
        for argument in arguments:
            if isinstance(argument, int):
                os.set_inheritable(argument, True)
        command = [sys.executable, "-s", "-S", "-P", "-B", "-c", request["scripts"][script], *map(str, arguments)]
        os.execve(sys.executable, command, _ENVIRONMENT)  # noqa: S606
    except Exception as problem:
        os.write(failed[1], f"{type(problem).__name__}: {problem}".encode())
    os._exit(127)


def _become_nobody(request: dict[str, Any]) -> None:
    """Give up every privilege, and take on the limits."""
    os.setsid()
    os.chdir(WORKDIR)
    os.umask(0o077)
    if os.geteuid() == 0:
        os.setgroups([])
        _become_user(request["user"])
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    call("capset", (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)())
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
    """Become a user that no other program is: the kernel limits processes, pipes and messages by user."""
    for number in (user, NOBODY):  # a container may have fewer users
        try:
            os.setresgid(number, number, number)
            os.setresuid(number, number, number)
        except OSError as problem:
            if problem.errno != errno.EINVAL or number == NOBODY:
                raise
        else:
            return


def _file_of(text: str) -> int:
    """A descriptor of a file in memory, to be read from its beginning."""
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
        except ChildProcessError:  # it had ended before
            return
        time.sleep(0.002)


def _report(request: dict[str, Any], **fields: object) -> NoReturn:
    os.write(request["status"], json.dumps(fields).encode())
    os._exit(0)


if __name__ == "__main__":
    main()
