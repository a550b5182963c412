"""Time and memory of a program in the sandbox, as the kernel shows them outside."""

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from eval_dagster.sandbox.walls import WORKDIR

_PAGE = os.sysconf("SC_PAGE_SIZE")
_FILE_BYTES = 2048
"""Memory of the kernel for a file, besides its content."""


def processes_of_program(launcher: int) -> list[int] | None:
    """Ids of the processes that the sandbox's process 1 has started; None if the kernel does not show it. `launcher` is bubblewrap."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            # The name, up to the last parenthesis, can contain anything; state and parent follow.
            children.setdefault(int(path.read_text(errors="replace").rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
    if launcher not in children:
        return None
    found = [process for init in children[launcher] for process in children.get(init, [])]
    for process in found:
        found += children.get(process, [])
    return found


def times_of_threads(process: int) -> dict[int, tuple[float, float]]:
    """For each thread of a process: seconds on a processor, and seconds of waiting for one."""
    found = {}
    with suppress(OSError):  # the process has ended
        for path in Path("/proc", str(process), "task").glob("*/schedstat"):
            with suppress(OSError, ValueError):  # the thread has ended
                computed, waited, _ = map(int, path.read_text().split())
                found[int(path.parent.name)] = (computed / 1e9, waited / 1e9)
    return found


def memory_of_program(processes: Collection[int]) -> int:
    """Bytes that a program holds: in its processes, its files, and the buffers of its sockets.

    Shared memory is divided among its processes. If the kernel does not show the parts, all of it counts for each process.
    """
    total = sum(map(_memory, processes))
    for process in processes:  # one process that has not ended is enough: all have the same folder and network
        with suppress(OSError, ValueError):
            return total + _files(process) + _sockets(process) * _bytes_of_socket()
    return total


def _memory(process: int) -> int:
    """Memory and swap of a process. Of files, only mapped parts; files in the folder count separately."""
    folder = Path("/proc", str(process))
    with suppress(OSError, ValueError, KeyError):
        lines = (folder / "smaps_rollup").read_text().splitlines()[1:]
        kilobytes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        parts = ("Pss_Anon", "Pss_File", "SwapPss", "Private_Hugetlb", "Shared_Hugetlb")
        return sum(kilobytes[part] for part in parts) * 1024
    # If the first thread of a process has ended, the kernel reports no memory for the process, although other threads use it.
    with suppress(OSError):  # the process has ended
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
    """Number of open sockets, including those that are in transfer to another process or not yet accepted."""
    line = Path(f"/proc/{process}/net/sockstat").read_text().partition("\n")[0]
    return int(line.rpartition(" ")[2])


def _bytes_of_socket() -> int:
    """Most bytes that a socket can hold: messages up to its limit, and one that exceeds it."""
    return 2 * int(Path("/proc/sys/net/core/wmem_default").read_text())
