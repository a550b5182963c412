"""The cores and the memory that a network may use: control groups, threads on a CPU, and the free memory of a device."""

import logging
import os
import time
from math import ceil
from pathlib import Path
from statistics import median

import psutil
import torch

from eval_dagster.control_groups import memory_limits, own_groups
from eval_dagster.wait_policy import IS_SPINNING_LIMITED

_LOG = logging.getLogger(__name__)

_STATE = Path("/proc/stat")
_CPUS = Path("/sys/devices/system/cpu")

_LOOKS = 7
_PAUSE_S = 0.01
"""The machine's running threads are counted several times. The median counts, so that a short burst of work does not."""

_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")

_replaced: dict[int, int] = {}
"""The original number of threads of torch, by the number that replaced it."""


def set_threads() -> None:
    """Set torch's number of threads by the cores, quota and load of now. A number that the user chose is only ever lowered."""
    if not IS_SPINNING_LIMITED:
        _LOG.warning(
            "torch was imported before eval_dagster, so its threads spin where they wait: beside other busy processes this model will be "
            "several times slower than it could be. Import eval_dagster first, or set GOMP_SPINCOUNT=1000 in the environment."
        )
    if any(name in os.environ for name in _VARIABLES):
        return
    given = _replaced.get(torch.get_num_threads(), torch.get_num_threads())
    cores, quota = available_cores(), cpu_quota()
    neighbours = busy_neighbours() * cores / (os.cpu_count() or cores)
    count = best_count(cores, min(given, cores if quota is None else ceil(quota)), round(neighbours))
    torch.set_num_threads(count)
    _replaced.clear()
    _replaced[count] = given
    limit = "" if quota is None else f", a quota of {quota:g}"
    _LOG.info("%d threads: %d cores%s, %.1f other running threads", count, cores, limit, neighbours)


def best_count(cores: int, most: int, neighbours: int) -> int:
    """The number of threads that are fastest together; of equally fast numbers the greatest.

    All threads wait for the slowest one at every step, which shares its core. With `n` threads beside `neighbours` busy threads of other
    processes, it has the part `1 / ceil((n + neighbours) / cores)` of a core. `most` is the greatest number allowed.
    """
    return max(range(1, max(1, most) + 1), key=lambda count: (count / ceil((count + neighbours) / cores), count))


def available_cores() -> int:
    """Physical cores that this process may run on: two threads on one core share what computes."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cores = set()
    for cpu in os.sched_getaffinity(0):
        try:
            # Linux lists the logical processors that share a core.
            cores.add((_CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text("utf-8").strip())
        except OSError:
            cores.add(str(cpu))
    return len(cores)


def cpu_quota() -> float | None:
    """The CPU limit of the control groups of this process, such as its container's, in cores; None without a limit."""
    quotas = []
    for version, group in own_groups("cpu"):
        try:
            if version == 1:
                texts = [(group / f"cpu.cfs_{name}_us").read_text("utf-8") for name in ("quota", "period")]
            else:
                texts = (group / "cpu.max").read_text("utf-8").split()
            quota, period = map(int, texts)
        except (OSError, ValueError):  # not there, or `max`
            continue
        if quota > 0:
            quotas.append(quota / period)
    return min(quotas, default=None)


def busy_neighbours() -> float:
    """Other threads of this machine that run or wait for a core; 0 if the system does not count them."""
    counts = []
    for _ in range(_LOOKS):
        try:
            lines = _STATE.read_text("utf-8").splitlines()
        except OSError:
            return 0.0
        counts.append(next((int(line.split()[1]) for line in lines if line.startswith("procs_running")), 1))
        time.sleep(_PAUSE_S)
    return max(0.0, median(counts) - 1)


def free_memory(device: str) -> int:
    """Bytes of a device that tensors of this process may still take."""
    if device.startswith("cuda"):
        # The allocator keeps what tensors gave back. The driver counts it as used, but the next tensor gets it.
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + kept
    free = int(psutil.virtual_memory().available)
    # Beyond the memory limit of a control group, such as that of its container, the kernel kills the process.
    free = min([free, *(max(0, each.limit - each.used) for each in memory_limits())])
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
