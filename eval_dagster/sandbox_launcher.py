"""The inner side of the sandbox: a script that `eval_dagster.sandbox` starts as a text, and nothing imports. Standard library alone.

Three processes, each with less power than the one before:

1. The launcher makes the namespaces with the kernel's own calls; where bubblewrap is installed, that does it.
2. The init process is process 1 of the new process namespace: when it ends, the kernel kills whatever the program left running.
3. The program starts anew with an empty environment, without privileges and under limits.

Only the init process can write the report. The program shows that it came to its end by handing a secret back, which it can read no
earlier than that, so that leaving early with exit status 0 is no success. A program that looks for the sandbox's own file descriptors
could read it: the sandbox holds programs in, but does not stop one that is out to forge its own score.
"""

import ctypes
import errno
import json
import os
import resource
import signal
import site
import struct
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

# Numbers of the kernel's interface, the same on every architecture.
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x1000, 0x4000, 0x40000
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 0x1, 0x2, 0x4
AT_FDCWD, AT_RECURSIVE, MNT_DETACH = -100, 0x8000, 0x2
SYS_MOUNT_SETATTR = 442
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
SECCOMP_MODE_FILTER, SECCOMP_KILL, SECCOMP_ERROR, SECCOMP_ALLOW = 2, 0x80000000, 0x00050000, 0x7FFF0000
BPF_LOAD, BPF_EQUAL, BPF_AT_LEAST, BPF_ANY_BIT, BPF_RETURN = 0x20, 0x15, 0x35, 0x45, 0x06

FORBIDDEN_CALLS = (
    *("unshare", "setns", "mount", "ptrace", "add_key", "request_key", "keyctl", "bpf", "perf_event_open", "userfaultfd"),
    *("memfd_create", "shmget", "semget", "msgget"),
)
"""New namespaces would free a program from its limits; the next are of no use to it and have had holes; the last four would give it
memory that no process has, and so no limit counts."""
ARCHITECTURES = {
    "x86_64": (0xC000003E, 56, (272, 308, 165, 101, 248, 249, 250, 321, 298, 323, 319, 29, 64, 68)),
    "aarch64": (0xC00000B7, 220, (97, 268, 40, 117, 217, 218, 219, 280, 241, 282, 279, 194, 190, 186)),
}
"""For each machine its number in seccomp, the number of `clone`, and those of the forbidden calls."""
CLONE3, IO_URING_SETUP, MEMFD_SECRET, X32_CALLS = 435, 425, 447, 0x40000000
CLONE_NEW_ANY = 0x7E020000

NOBODY = 65534
WORKDIR = "/tmp"  # noqa: S108 - one of the sandbox's own, in memory
_NEW_ROOT = "/sys"
"""A folder that every Linux has and the program does not need: the new root is built over it, in the sandbox's own mount namespace."""
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Run as the launcher, or, with arguments, as the program."""
    if len(sys.argv) > 1:
        name, code, secret, done = sys.argv[1], *map(int, sys.argv[2:])
        run_program(name, code, secret, done)
    request = json.load(sys.stdin.buffer)
    os.set_inheritable(request["status"], False)
    try:
        if request["namespaces"]:
            make_namespaces(request)
            if child := os.fork():
                os.close(request["status"])
                os.waitpid(child, 0)
                os._exit(0)
            _call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        run_init(request)
    except Exception as problem:
        _report(request, error=f"{type(problem).__name__}: {problem}")


def make_namespaces(request: dict[str, Any]) -> None:
    """Leave the machine's processes, network and files behind; what is forked from here on is in the new process namespace."""
    _call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    flags = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        _call("unshare", flags)
    else:
        _call("unshare", flags | CLONE_NEWUSER)
        Path("/proc/self/setgroups").write_text("deny")
        # Not mapped to 0: so the program loses every capability in its own user namespace when it starts.
        Path("/proc/self/uid_map").write_text(f"{NOBODY} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{NOBODY} {group} 1")
    os.umask(0o022)
    _mount("none", "/", None, MS_REC | MS_PRIVATE)
    _mount("tmpfs", _NEW_ROOT, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m")
    _mkdir(WORKDIR)
    _mount("tmpfs", _NEW_ROOT + WORKDIR, "tmpfs", MS_NOSUID | MS_NODEV, f"mode=1777,size={request['disk_bytes']},nr_inodes=4096")
    for path in request["paths"]:
        _bind(path, read_only=True)
    for path in request["hidden"]:
        _mount("tmpfs", _NEW_ROOT + path, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=4k")
        _restrict(_NEW_ROOT + path, MOUNT_ATTR_RDONLY, 0)
    for link, target in request["links"].items():
        _mkdir(os.path.dirname(link))  # noqa: PTH120 - a path of the new root, kept as text
        os.symlink(target, _NEW_ROOT + link)  # noqa: PTH211
    for device in request["devices"]:
        _bind(device, read_only=False)
    _restrict(_NEW_ROOT, MOUNT_ATTR_RDONLY, 0)
    os.chdir(_NEW_ROOT)
    _call("pivot_root", b".", b".")
    _call("umount2", b".", MNT_DETACH)
    os.chdir("/")


def run_init(request: dict[str, Any]) -> NoReturn:
    """Start the program, wait for it, report how it ended, and take everything in the namespace along."""
    # Without root the program has this process's user. Of signals from within, process 1 ignores those that have no handler, as
    # Python gives to this one; the program's Python sets its own again.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    _call("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0)
    code = os.memfd_create("program", 0)
    with open(code, "wb", closefd=False) as file:
        file.write(request["code"].encode("utf-8", "surrogatepass"))
    os.lseek(code, 0, os.SEEK_SET)
    secret_read, secret_write = os.pipe()
    done_read, done_write = os.pipe()
    failed_read, failed_write = os.pipe()
    secret = os.urandom(32)
    os.write(secret_write, secret)
    os.write(request["status"], b"\n")
    child = os.fork()
    if not child:
        try:
            become_program(request, code, secret_read, done_write)
        except Exception as problem:
            os.write(failed_write, f"{type(problem).__name__}: {problem}".encode())
        os._exit(127)
    os.close(done_write)
    os.close(failed_write)
    while (ended := os.wait())[0] != child:
        pass
    if failed := os.read(failed_read, 4096):
        _report(request, error=failed.decode())
    os.set_blocking(done_read, False)
    try:
        completed = os.read(done_read, 64) == secret
    except BlockingIOError:  # a process that the program left behind still holds the other end
        completed = False
    _report(request, exit_code=os.waitstatus_to_exitcode(ended[1]), completed=completed)


def become_program(request: dict[str, Any], code: int, secret: int, done: int) -> NoReturn:
    """Give up every privilege, take on the limits, and start a fresh interpreter."""
    os.setsid()
    os.chdir(WORKDIR)
    os.umask(0o077)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    _call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _forbid_calls()
    limits = {
        resource.RLIMIT_AS: request["memory_bytes"],
        resource.RLIMIT_CPU: request["cpu_s"],
        resource.RLIMIT_FSIZE: request["disk_bytes"],
        resource.RLIMIT_NOFILE: request["open_files"],
        resource.RLIMIT_NPROC: request["processes"],
        resource.RLIMIT_CORE: 0,
    }
    for what, most in limits.items():
        resource.setrlimit(what, (most, most))
    for descriptor in (code, secret, done):
        os.set_inheritable(descriptor, True)
    arguments = [sys.executable, "-s", "-S", "-P", "-B", "-c", request["launcher"], request["name"], *map(str, (code, secret, done))]
    environment = {"PATH": "/usr/bin:/bin", "HOME": WORKDIR, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
    os.execve(sys.executable, arguments, environment)  # noqa: S606


def run_program(name: str, code: int, secret: int, done: int) -> NoReturn:
    """Run the code as a module of its own, and hand the secret back if it comes to its end."""
    with open(code, "rb") as file:
        source = file.read()
    module = ModuleType(name)
    sys.modules[name] = module
    site.setquit()  # `exit` and `quit`, which Python adds by the module that would also look for installed packages
    sys.argv = [""]
    try:
        exec(compile(source, "<program>", "exec"), module.__dict__)  # noqa: S102 - what the sandbox is for
    except Exception as problem:
        sys.excepthook(type(problem), problem, problem.__traceback__ and problem.__traceback__.tb_next)
        sys.exit(1)
    for stream in ("stdout", "stderr", "__stdout__", "__stderr__"):
        with suppress(Exception):  # the program may have closed it, or put anything in its place
            getattr(sys, stream).flush()
    os.write(done, os.read(secret, 64))
    os._exit(0)


def _forbid_calls() -> None:
    """Make the forbidden calls fail from here on. Machines that the table does not name go without."""
    if (machine := os.uname().machine) not in ARCHITECTURES:
        return
    architecture, clone, calls = ARCHITECTURES[machine]
    refuse = (BPF_RETURN, 0, 0, SECCOMP_ERROR | errno.EPERM)
    program = [
        (BPF_LOAD, 0, 0, 4),  # the architecture
        (BPF_EQUAL, 1, 0, architecture),
        (BPF_RETURN, 0, 0, SECCOMP_KILL),
        (BPF_LOAD, 0, 0, 0),  # the number of the call
        (BPF_AT_LEAST, 0, 1, X32_CALLS),
        refuse,
        (BPF_EQUAL, 0, 1, CLONE3),  # its flags lie where a filter cannot read; the C library falls back to clone
        (BPF_RETURN, 0, 0, SECCOMP_ERROR | errno.ENOSYS),
    ]
    for call in (*calls, IO_URING_SETUP, MEMFD_SECRET):
        program += [(BPF_EQUAL, 0, 1, call), refuse]
    program += [(BPF_EQUAL, 0, 3, clone), (BPF_LOAD, 0, 0, 16), (BPF_ANY_BIT, 0, 1, CLONE_NEW_ANY), refuse]  # 16: its flags
    program.append((BPF_RETURN, 0, 0, SECCOMP_ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
    _call("prctl", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))


def _report(request: dict[str, Any], **fields: object) -> NoReturn:
    os.write(request["status"], json.dumps(fields).encode())
    os._exit(0)


def _bind(path: str, *, read_only: bool) -> None:
    """Show a file or folder of the machine under the same path of the new root."""
    target = _NEW_ROOT + path
    if Path(path).is_dir():
        _mkdir(path)
    else:
        _mkdir(os.path.dirname(path))  # noqa: PTH120 - a path of the new root, kept as text
        Path(target).touch()
    _mount(path, target, None, MS_BIND | MS_REC)
    if read_only:
        _restrict(target, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, AT_RECURSIVE)


def _mkdir(path: str) -> None:
    Path(_NEW_ROOT + path).mkdir(parents=True, exist_ok=True)


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    encoded = [None if part is None else part.encode() for part in (source, target, kind, options)]
    _call("mount", *encoded[:3], ctypes.c_ulong(flags), encoded[3])


def _restrict(path: str, attributes: int, flags: int) -> None:
    """Add attributes to a mount, and with `AT_RECURSIVE` to all within it (Linux 5.12)."""
    structure = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    _call(
        "syscall",
        ctypes.c_long(SYS_MOUNT_SETATTR),
        AT_FDCWD,
        path.encode(),
        ctypes.c_uint(flags),
        ctypes.byref(structure),
        ctypes.c_size_t(ctypes.sizeof(structure)),
    )


def _call(name: str, *arguments: Any) -> None:
    """Call a function of the C library that returns -1 and sets errno where it fails."""
    if getattr(_libc, name)(*arguments) == -1:
        number = ctypes.get_errno()
        shown = [part.decode() for part in arguments if isinstance(part, bytes)]
        raise OSError(number, f"{name}: {os.strerror(number)}", *shown[-1:])


if __name__ == "__main__":
    main()
