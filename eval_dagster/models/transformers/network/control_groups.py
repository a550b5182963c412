"""Control groups of Linux: the folders with the limits of this process, such as its container's."""

from contextlib import suppress
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


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
