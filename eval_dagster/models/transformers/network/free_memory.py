"""Finds the free memory of a device, and gives back what its allocator keeps."""

from pathlib import Path

import psutil
import torch

from eval_dagster.models.transformers.network.control_groups import own_groups

_GROUP_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}
"""By version of control groups: the files with the limit and the use of a group, and the name in `memory.stat` of the cached bytes of
files, which count as used although the kernel frees them first."""


def free_memory(device: str) -> int:
    """Bytes of a device that tensors of this process may still take."""
    if device.startswith("cuda"):
        # The allocator keeps what tensors gave back. The driver counts it as used, but the next tensor gets it.
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + kept
    free = _free_main_memory()
    if device == "mps":
        # The GPU shares the main memory, and takes no more than this part of it.
        return max(0, min(free, int(torch.mps.recommended_max_memory()) - int(torch.mps.current_allocated_memory())))
    return free


def release_memory() -> None:
    """Give back the memory that the allocators of GPUs keep for later. Another process may need it, and a larger tensor of this one."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()


def _free_main_memory() -> int:
    # Beyond the memory limit of a control group, such as that of its container, the kernel kills the process.
    left = [room for version, group in own_groups("memory") for room in _left_in(group, *_GROUP_FILES[version])]
    return min([int(psutil.virtual_memory().available), *left])


def _left_in(group: Path, most: str, used: str, read_files: str) -> list[int]:
    """Free bytes under the limit of a control group; empty without a limit, or if a container hides the group."""
    try:
        limit, taken = (int((group / name).read_text("utf-8")) for name in (most, used))
        counts = dict(line.split() for line in (group / "memory.stat").read_text("utf-8").splitlines())
    except (OSError, ValueError):
        return []
    return [max(0, limit - taken + int(counts.get(read_files, 0)))]
