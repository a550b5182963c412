"""Large files pass between a machine and a store a piece at a time, and what a killed fetch leaves is removed."""

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from eval_dagster.lake.files import Lake
from eval_dagster.lake.format.parquet_files import new_name, write_parquet
from eval_dagster.lake.remote.store import ConflictError, Store

MIB = 2**20
SIZE = 96 * MIB
ALLOWED = SIZE // 2


def _memory() -> int:
    """Bytes of memory that this process has beside the files that it maps."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


@contextmanager
def _little_memory() -> Iterator[None]:
    """Fail where the block takes more memory than half of a large file."""
    before, peak, is_over = _memory(), [0], threading.Event()

    def watch() -> None:
        while not is_over.wait(0.002):
            peak[0] = max(peak[0], _memory())

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield
    finally:
        is_over.set()
        watching.join()
    assert peak[0] - before < ALLOWED, f"{(peak[0] - before) / MIB:.0f} MiB"


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "large.parquet"
    write_parquet(path, pa.table({"row": [os.urandom(MIB) for _ in range(SIZE // MIB)]}))
    assert path.stat().st_size > SIZE
    return path


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the memory of a process is read from /proc")
def test_a_large_file_takes_no_memory(machine: Callable[[str], Lake], large: Path) -> None:
    here, there = machine("here").mirror, machine("there").mirror
    assert here is not None
    assert there is not None
    name = f"samples/eval=sums/{new_name('large')}"
    path = here.root / name
    here.begin()

    def copy(waiting: Path) -> None:
        waiting.parent.mkdir(parents=True)
        shutil.copyfile(large, waiting)

    with _little_memory():
        here.write(path, copy)
    with _little_memory():
        there.fetch([name])
    assert (there.root / name).stat().st_size == large.stat().st_size
    with _little_memory():  # the answer to the first try was lost
        here.store.put_file(name, large)
    other = large.with_name("other")
    for begin, change in ((-1, b"x"), (-1, b"11"), (0, b"x")):
        shutil.copyfile(large, other)
        with other.open("r+b") as file:
            file.seek(begin, os.SEEK_END)
            file.write(change)
        with pytest.raises(ConflictError, match="with other content"):
            here.store.put_file(name, other)


def test_what_a_killed_fetch_left_is_removed(machine: Callable[[str], Lake], url: str) -> None:
    lake = machine("there")
    name = f"samples/eval=sums/{new_name('x', datetime.now(UTC))}"
    write_parquet(made := lake.home / "made.parquet", pa.table({"row": ["x"]}))
    Store(url).put_file(name, made)
    folder = lake.root / "samples" / "eval=sums"
    folder.mkdir(parents=True)
    left, recent = folder / f".{new_name('x')}.12345678.tmp", folder / f".{new_name('y')}.12345678.tmp"
    for path in (left, recent):
        path.write_bytes(b"half")
    os.utime(left, (time.time() - 7200, time.time() - 7200))
    lake.pull()
    assert sorted(folder.iterdir()) == sorted([recent, lake.root / name])
