"""What the processes of a program in the sandbox use, as the kernel shows it outside."""

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from eval_dagster.sandbox.walls import WORKDIR

_PAGE = os.sysconf("SC_PAGE_SIZE")
_FILE_BYTES = 2048
"""What the kernel needs for a file besides its content."""


def processes_of_program(launcher: int) -> list[int] | None:
    """What a launcher's init process has started, by process id; none where the kernel does not show that process."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            # The name before the last parenthesis may hold anything; state and parent follow.
            children.setdefault(int(path.read_text(errors="replace").rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
    if launcher not in children:
        return None
    found = [process for init in children[launcher] for process in children.get(init, [])]
    for process in found:
        found += children.get(process, [])
    return found


def times_of_threads(process: int) -> dict[int, tuple[float, float]]:
    """Of each thread of a process: seconds on a processor, and seconds ready and without one."""
    found = {}
    for path in Path("/proc", str(process), "task").glob("*/schedstat"):
        with suppress(OSError, ValueError):  # it has ended
            computed, waited, _ = map(int, path.read_text().split())
            found[int(path.parent.name)] = (computed / 1e9, waited / 1e9)
    return found


def memory_of_program(processes: Collection[int]) -> int:
    """Bytes that a program holds: in its processes, and in what the kernel keeps for it.

    Of memory that processes share each has a part; where the kernel hides the parts, each has all of it.
    """
    total = sum(map(_memory, processes))
    for process in processes:  # the first that has not ended: all have the same folder and network
        with suppress(OSError, ValueError):
            return total + _files(process) + _sockets(process) * _bytes_of_socket()
    return total


def _memory(process: int) -> int:
    """In memory and swapped out; of files only what is mapped, and not what lies in the folder, which counts by itself."""
    folder = Path("/proc", str(process))
    with suppress(OSError, ValueError, KeyError):
        lines = (folder / "smaps_rollup").read_text().splitlines()[1:]
        kilobytes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        parts = ("Pss_Anon", "Pss_File", "SwapPss", "Private_Hugetlb", "Shared_Hugetlb")
        return sum(kilobytes[part] for part in parts) * 1024
    # A process whose first thread has ended has no memory by the kernel's account, although the others use it.
    for path in (folder, *folder.glob("task/*")):
        with suppress(OSError, ValueError, IndexError):
            if resident := int((path / "statm").read_text().split()[1]):
                return resident * _PAGE
    return 0


def _files(process: int) -> int:
    """Bytes of the folder that the program may write to."""
    found = os.statvfs(f"/proc/{process}/root{WORKDIR}")
    return (found.f_blocks - found.f_bfree) * found.f_frsize + (found.f_files - found.f_ffree) * _FILE_BYTES


def _sockets(process: int) -> int:
    """Open sockets, including those that are sent to another process or not yet accepted."""
    line = Path(f"/proc/{process}/net/sockstat").read_text().partition("\n")[0]
    return int(line.rpartition(" ")[2])


def _bytes_of_socket() -> int:
    """Most that one socket can hold: messages up to its limit, and one that exceeds it."""
    return 2 * int(Path("/proc/sys/net/core/wmem_default").read_text())
