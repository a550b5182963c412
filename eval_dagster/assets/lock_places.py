"""Where a process runs, for locks of files, which hold among the processes that see one folder through one kernel."""

import socket
from functools import cache
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def place_of(folder: Path) -> str:
    """The name of this machine, its start, and an existing folder: `<name> <boot> <device>:<inode>`.

    Containers of one host have names of their own, and share the kernel. Those that mount one folder respect each other's locks there.
    """
    facts = folder.stat()
    return f"{socket.gethostname()} {_boot()} {facts.st_dev}:{facts.st_ino}"


def sees_locks_of(place: str, folder: Path) -> bool:
    """Whether a lock that was taken at a place shows in a folder of this process, or ended with an earlier start of this machine."""
    if not place:
        return True
    name, boot, _ = place.split(" ", 2)
    own_name, own_boot, _ = (own := place_of(folder)).split(" ", 2)
    return own.partition(" ")[2] == place.partition(" ")[2] if boot == own_boot else name == own_name


@cache
def _boot() -> str:
    return _BOOT.read_text().strip() if _BOOT.exists() else "unknown"
