"""What code in the sandbox sees of the machine, and the program that can build walls around it."""

import os
import shutil
import sys
from functools import cache
from pathlib import Path
from typing import Any

from eval_dagster.errors import MachineError

PYTHON = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
WORKDIR = "/tmp"  # noqa: S108 - the sandbox's own, in memory
DEVICES = ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom")
"""Not /dev/zero: mapped into memory, it holds memory that belongs to no process."""
_SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", "/nix/store")
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - where Python's locks and shared memory lie; here in the folder
_PACKAGES = (
    "lib*/python3*/site-packages",
    "lib*/python3*/dist-packages",
    "local/lib*/python3*/site-packages",
    "local/lib*/python3*/dist-packages",
)
"""Where package managers put what is no part of Python, below a prefix."""


@cache
def visible_paths() -> tuple[list[str], dict[str, str]]:
    """Files and folders that code may read, and symbolic links with their targets."""
    links = {path: str(Path(path).readlink()) for path in _SYSTEM if Path(path).is_symlink()}
    prefixes = [os.path.realpath(prefix) for prefix in (sys.base_prefix, sys.base_exec_prefix)]
    paths: list[str] = []
    for path in (*_SYSTEM, *prefixes, PYTHON):
        if path not in links and Path(path).exists() and not any(Path(path).is_relative_to(shown) for shown in paths):
            paths.append(path)
    return paths, links | {_SHARED_MEMORY: WORKDIR}


@cache
def package_folders() -> list[str]:
    """Folders of installed packages among what code may read."""
    shown = visible_paths()[0]
    found = {folder.resolve() for path in shown for pattern in _PACKAGES for folder in Path(path).glob(pattern) if folder.is_dir()}
    return sorted(str(folder) for folder in found if any(folder.is_relative_to(path) for path in shown))


def bubblewrap(request: dict[str, Any]) -> list[str]:
    """The command that runs what follows it behind bubblewrap's walls.

    Raises:
        MachineError: It is not installed.
    """
    # As root no user namespace is needed, and the launcher becomes another user: root would be free of the limit on processes.
    user = ("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID") if os.geteuid() == 0 else ("--unshare-user", "--uid", "1", "--gid", "1")
    workdir = ("--perms", "1777", "--size", str(request["disk_bytes"]), "--tmpfs", WORKDIR)
    shown_as = (*request["paths"], *request["devices"], *request["links"])
    leading = {str(parent) for path in shown_as for parent in Path(path).parents} - {"/", WORKDIR}
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
