"""Finds the free memory of a device."""

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
    """Free bytes of a device."""
    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info(device)[0])
    # Beyond the memory limit of a control group, such as that of its container, the kernel kills the process.
    left = [room for version, group in own_groups("memory") for room in _left_in(group, *_GROUP_FILES[version])]
    return min([int(psutil.virtual_memory().available), *left])


def _left_in(group: Path, most: str, used: str, read_files: str) -> list[int]:
    """Free bytes under the limit of a control group; empty without a limit, or where a container hides the group."""
    try:
        limit, taken = (int((group / name).read_text("utf-8")) for name in (most, used))
        counts = dict(line.split() for line in (group / "memory.stat").read_text("utf-8").splitlines())
    except (OSError, ValueError):
        return []
    return [max(0, limit - taken + int(counts.get(read_files, 0)))]
