"""The walls of the sandbox: the parts of the machine that code sees, and the command of bubblewrap that sets them up."""

import os
import shutil
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from eval_dagster.errors import MachineError, RequirementError
from eval_dagster.sandbox.records import Toolchain

PYTHON = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
WORKDIR = "/tmp"  # noqa: S108 - the sandbox's own, in memory
DEVICES = ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom")
"""Without /dev/zero: mapped into memory, it holds memory that belongs to no process."""
_SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", "/nix/store")
_OWN_EXECUTABLE = "/proc/self/exe"
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - for Python's locks and shared memory; here a link to the folder
_PACKAGES = (
    "lib*/python3*/site-packages",
    "lib*/python3*/dist-packages",
    "local/lib*/python3*/site-packages",
    "local/lib*/python3*/dist-packages",
)
"""Folders of installed packages, below a prefix."""
_APPARMOR = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
_CONTAINER = (Path("/.dockerenv"), Path("/run/.containerenv"))
"""Files that Docker and Podman create in each container."""


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
    """Folders of installed packages within the folders that code may read. They look empty to it."""
    shown = visible_paths()[0]
    found = {folder.resolve() for path in shown for pattern in _PACKAGES for folder in Path(path).glob(pattern) if folder.is_dir()}
    return sorted(str(folder) for folder in found if any(folder.is_relative_to(path) for path in shown))


def is_visible(path: str) -> bool:
    """Whether every program may read a file or folder."""
    return any(Path(path).resolve().is_relative_to(shown) for shown in visible_paths()[0])


def bubblewrap(disk_bytes: int, toolchain: Toolchain | None = None, folders: Sequence[str] = ()) -> list[str]:
    """The command of bubblewrap, to which the command to run is appended.

    Args:
        disk_bytes: Most bytes of the files in the folder that code may write to.
        toolchain: A compiler that code may start.
        folders: Further folders that code may read, also folders of installed packages.

    Raises:
        MachineError: bubblewrap is not installed.
        RequirementError: The toolchain or a folder would show the home of the user.
    """
    program = shutil.which("bwrap")
    if program is None:
        raise MachineError("the program bwrap is not installed")
    # As root no user namespace is needed, and the launcher becomes another user: root would be free of the limit on processes.
    user = ("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID") if os.geteuid() == 0 else ("--unshare-user", "--uid", "1", "--gid", "1")
    workdir = ("--perms", "1777", "--size", str(disk_bytes), "--tmpfs", WORKDIR)
    paths, links = visible_paths()
    if toolchain is not None:
        paths = [*paths, *_paths_of(toolchain)]
        links = links | {_OWN_EXECUTABLE: toolchain.executable}
    hidden = package_folders()
    folders = [each for each in folders if not is_visible(each) or any(Path(each).resolve().is_relative_to(path) for path in hidden)]
    _require_no_home(folders, "what runs in the sandbox")
    leading = {str(parent) for path in (*paths, *folders, *DEVICES, *links) for parent in Path(path).parents} - {"/", WORKDIR}
    # bubblewrap would open unnamed folders to their owner only. Sorted: outer folders come first.
    shown = [part for folder in sorted(leading) for part in ("--perms", "0755", "--dir", folder)]
    shown += [part for path in paths for part in ("--ro-bind", path, path)]
    shown += [part for path in hidden for part in ("--perms", "0755", "--tmpfs", path)]
    shown += [part for path in folders for part in ("--ro-bind", path, path)]
    shown += [part for path in hidden for part in ("--remount-ro", path)]
    shown += [part for link, target in links.items() for part in ("--symlink", target, link)]
    shown += [part for device in DEVICES for part in ("--dev-bind", device, device)]
    namespaces = ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try")
    end = ("--remount-ro", "/", "--chdir", "/", "--die-with-parent", "--as-pid-1", "--")
    return [program, *namespaces, *user, *workdir, *shown, *end]


def _paths_of(toolchain: Toolchain) -> list[str]:
    """The paths of a toolchain that not every program sees."""
    _require_no_home(toolchain.paths, f"the compiler {toolchain.executable}")
    return [path for path in toolchain.paths if not is_visible(path)]


def _require_no_home(paths: Sequence[str], what: str) -> None:
    try:
        home = Path.home().resolve()
    except RuntimeError:  # the user has none
        return
    for path in paths:
        if home.is_relative_to(Path(path).resolve()):
            raise RequirementError(f"{what} needs the folder {path}, which contains {home}; install it elsewhere")


def cure(problem: str) -> str:
    """Advice for a sandbox that failed with this error message."""
    if sys.platform == "linux" and shutil.which("bwrap") is None:
        return "Install bubblewrap: apt install bubblewrap (Debian, Ubuntu) or dnf install bubblewrap (Fedora, Red Hat)"
    if "bwrap: " not in problem:
        return "The sandbox needs bubblewrap, and Linux on x86_64 or aarch64"
    is_root = os.geteuid() == 0
    if any(file.exists() for file in _CONTAINER):
        rights = "--cap-add SYS_ADMIN --cap-add NET_ADMIN" if is_root else "--security-opt seccomp=unconfined"
        return f"A container needs the right to make namespaces: docker run {rights} --security-opt apparmor=unconfined"
    if not is_root and _APPARMOR.exists() and _APPARMOR.read_text().strip() == "1":
        return f"AppArmor denies user namespaces, as it does on Ubuntu; allow them: sudo sysctl kernel.{_APPARMOR.name}=0"
    return "The kernel must allow user namespaces: sudo sysctl user.max_user_namespaces=10000"
