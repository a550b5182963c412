"""The limits that the system sets to this process and those beside it, such as the memory of its container."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_MEMORY_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file"),
    2: ("memory.max", "memory.current", "inactive_file", "active_file"),
}
"""By version of control groups: the files with the limit and the use of a group, and the names in `memory.stat` of the cached bytes of
files, which count as used. The kernel frees them before it ends a process: first what was read once, then what was read again."""


@dataclass(frozen=True, kw_only=True)
class MemoryLimit:
    """The memory of a control group. If it is full, the kernel kills one of its processes."""

    limit: int
    """In bytes."""
    used: int
    """Without the bytes of files that were read once."""
    needed: int
    """Without any bytes of files."""


def memory_limits() -> Iterator[MemoryLimit]:
    """The limits of all groups of this process. A group without a limit has none, and a container may hide some."""
    for version, group in own_groups("memory"):
        most, used, once, again = _MEMORY_FILES[version]
        with suppress(OSError, ValueError):
            limit, taken = (int((group / name).read_text("utf-8")) for name in (most, used))
            counts = dict(line.split() for line in (group / "memory.stat").read_text("utf-8").splitlines())
            read_once, read_again = int(counts.get(once, 0)), int(counts.get(again, 0))
            yield MemoryLimit(limit=limit, used=taken - read_once, needed=taken - read_once - read_again)


def own_groups(controller: str) -> list[tuple[int, Path]]:
    """The groups of this process under a controller such as `memory`, the innermost first. The limits of all of them apply.

    Each is a version of control groups (1 or 2) and a folder. A container may not see all of the folders.
    """
    found: list[tuple[int, Path]] = []
    with suppress(OSError):  # no Linux
        for line in _OWN_GROUPS.read_text("utf-8").splitlines():
            _, controllers, own = line.split(":", 2)
            # The second version has one hierarchy for all controllers, and its line does not list their names.
            if controllers and controller not in controllers.split(","):
                continue
            version, root = (1, _GROUPS / controller) if controllers else (2, _GROUPS)
            folder = root / own.strip("/")
            found += [(version, group) for group in (folder, *folder.parents) if group.is_relative_to(root)]
    return found
