"""Inside the sandbox: new namespaces and a root of their own, by the kernel's calls. Standard library alone."""

import ctypes
import os
import signal
from pathlib import Path
from typing import Any

# Numbers of the kernel's interface, the same on every architecture.
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x1000, 0x4000, 0x40000
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 0x1, 0x2, 0x4
AT_FDCWD, AT_RECURSIVE, MNT_DETACH = -100, 0x8000, 0x2
SYS_MOUNT_SETATTR = 442
PR_SET_PDEATHSIG = 1

NOBODY = 65534
WORKDIR = "/tmp"  # noqa: S108 - one of the sandbox's own, in memory
_NEW_ROOT = "/sys"
"""A folder that every Linux has and the program does not need: the new root is built over it, in the sandbox's own mount namespace."""
_libc = ctypes.CDLL(None, use_errno=True)


def make_namespaces(request: dict[str, Any]) -> None:
    """Leave the machine's processes, network and files behind; what is forked from here on is in the new process namespace."""
    call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    flags = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        call("unshare", flags)
    else:
        call("unshare", flags | CLONE_NEWUSER)
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
    call("pivot_root", b".", b".")
    call("umount2", b".", MNT_DETACH)
    os.chdir("/")


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
    call("mount", *encoded[:3], ctypes.c_ulong(flags), encoded[3])


def _restrict(path: str, attributes: int, flags: int) -> None:
    """Add attributes to a mount, and with `AT_RECURSIVE` to all within it (Linux 5.12)."""
    structure = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    call(
        "syscall",
        ctypes.c_long(SYS_MOUNT_SETATTR),
        AT_FDCWD,
        path.encode(),
        ctypes.c_uint(flags),
        ctypes.byref(structure),
        ctypes.c_size_t(ctypes.sizeof(structure)),
    )


def call(name: str, *arguments: Any) -> None:
    """Call a function of the C library that returns -1 and sets errno where it fails."""
    if getattr(_libc, name)(*arguments) == -1:
        number = ctypes.get_errno()
        shown = [part.decode() for part in arguments if isinstance(part, bytes)]
        raise OSError(number, f"{name}: {os.strerror(number)}", *shown[-1:])
