"""The number of threads follows cores, quota and load."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from eval_dagster import control_groups
from eval_dagster.models.transformers.network import resources
from eval_dagster.models.transformers.network.resources import available_cores, best_count, busy_neighbours, cpu_quota, set_threads


@pytest.fixture
def torch_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    monkeypatch.setattr(resources, "_replaced", {})
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("cores", "most", "neighbours", "count"),
    [
        (2, 2, 0, 2),
        (2, 2, 1, 2),
        (2, 2, 2, 2),
        (2, 2, 7, 2),
        (16, 16, 0, 16),
        (16, 16, 1, 15),  # one thread on a shared core would halve the speed of all sixteen
        (16, 16, 6, 10),
        (16, 16, 9, 16),
        (16, 4, 6, 4),
        (16, 4, 14, 4),
        (1, 1, 30, 1),
    ],
)
def test_threads_go_where_no_neighbour_slows_them_all(cores: int, most: int, neighbours: int, count: int) -> None:
    assert best_count(cores, most, neighbours) == count


@pytest.mark.parametrize(
    ("line", "folder", "files", "quota"),
    [
        ("0::/pod/container", "pod", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/pod/container", "pod/container", {"cpu.max": "max 100000"}, None),
        ("0::/not/to/be/seen", "", {"cpu.max": "50000 100000"}, 0.5),
        ("3:cpu,cpuacct:/pod/container", "cpu/pod", {"cpu.cfs_quota_us": "300000", "cpu.cfs_period_us": "100000"}, 3.0),
        ("3:cpu:/pod", "cpu/pod", {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}, None),
        ("3:cpuset:/pod", "cpu/pod", {"cpu.cfs_quota_us": "300000", "cpu.cfs_period_us": "100000"}, None),
    ],
)
def test_the_quota_of_a_container_is_read(
    line: str, folder: str, files: dict[str, str], quota: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (tmp_path / folder / name).write_text(f"{text}\n")
    (tmp_path / "own").write_text(f"7:pids:/\n{line}\n")
    monkeypatch.setattr(control_groups, "_GROUPS", tmp_path)
    monkeypatch.setattr(control_groups, "_OWN_GROUPS", tmp_path / "own")
    assert cpu_quota() == quota


@pytest.mark.usefixtures("torch_as_it_was")
def test_a_quota_sets_the_threads_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(4)
    monkeypatch.setattr(resources, "available_cores", lambda: 4)
    monkeypatch.setattr(resources, "busy_neighbours", lambda: 0.0)
    for quota, count in ((1.5, 2), (0.2, 1), (3.0, 3), (None, 4)):
        monkeypatch.setattr(resources, "cpu_quota", lambda quota=quota: quota)
        set_threads()
        assert torch.get_num_threads() == count, "of the threads that torch had at first, whatever was set since"


@pytest.mark.usefixtures("torch_as_it_was")
def test_a_number_that_the_user_chose_is_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "available_cores", lambda: 8)
    monkeypatch.setattr(resources, "busy_neighbours", lambda: 0.0)
    monkeypatch.setattr(resources, "cpu_quota", lambda: None)
    torch.set_num_threads(2)
    set_threads()
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    set_threads()
    assert torch.get_num_threads() == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setattr(resources, "cpu_quota", lambda: 0.5)
    torch.set_num_threads(3)
    set_threads()
    assert torch.get_num_threads() == 3


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no Linux")
def test_only_cores_that_may_be_used_count() -> None:
    cores = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(cores)})
        assert available_cores() == 1
    finally:
        os.sched_setaffinity(0, cores)
    assert 1 <= available_cores() <= len(cores)


def test_two_threads_on_one_core_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        (tmp_path / f"cpu{cpu}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}" / "topology" / "thread_siblings_list").write_text(f"{siblings}\n")
    monkeypatch.setattr(resources, "_CPUS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert available_cores() == 2
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2})
    assert available_cores() == 1


@pytest.mark.skipif(not Path("/proc/stat").is_file(), reason="no Linux")
def test_busy_processes_are_counted(tmp_path: Path) -> None:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
    try:
        assert max(busy_neighbours() for _ in range(20)) >= 3
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
