"""Chooses the number of threads of a network on a CPU: as many as have a core to run on."""

import logging
import os
import time
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from statistics import median

import torch

from eval_dagster.models.transformers.network.control_groups import own_groups
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
    return len({_core(cpu) for cpu in os.sched_getaffinity(0)})


def _core(cpu: int) -> str:
    """The logical processors that share a core with this one, as Linux lists them."""
    try:
        return (_CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text("utf-8").strip()
    except OSError:
        return str(cpu)


def cpu_quota() -> float | None:
    """The CPU limit of the control groups of this process, such as its container's, in cores; None without a limit."""
    quotas = [quota for version, group in own_groups("cpu") if (quota := _quota(version, group)) is not None]
    return min(quotas, default=None)


def _quota(version: int, group: Path) -> float | None:
    try:
        if version == 1:
            texts: Sequence[str] = [(group / f"cpu.cfs_{name}_us").read_text("utf-8") for name in ("quota", "period")]
        else:
            texts = (group / "cpu.max").read_text("utf-8").split()
        quota, period = map(int, texts)
    except (OSError, ValueError):  # not there, or `max`
        return None
    return quota / period if quota > 0 else None


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
