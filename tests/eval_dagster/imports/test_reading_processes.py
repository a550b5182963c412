"""Large logs of inspect_ai are read by several processes, with the rows that one process makes."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from inspect_logs import log_header, log_sample, write_log

from eval_dagster.imports import reading_processes
from eval_dagster.imports.importing import ImportedLog, import_logs, publish_imported
from eval_dagster.imports.inspect_archive import Archive, Member
from eval_dagster.imports.inspect_header import read_log
from eval_dagster.imports.reading_processes import Processes
from eval_dagster.lake.files import Lake
from eval_dagster.lake.format.parquet_files import read_info, read_table

_RESULT = ("samples", "prompts", "responses", "scores", "metrics")
_PARTS = reading_processes.batches


@pytest.fixture(autouse=True)
def all_logs_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_processes, "_FEW_BYTES", 0)


def _use(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    monkeypatch.setattr(reading_processes.os, "sched_getaffinity", lambda _: set(range(cores)))


def _log(path: Path, count: int, *, day: int = 1) -> Path:
    """A log of so many samples in two epochs, of which one in seven failed, and one in eleven has no score of the second scorer."""

    def sample(number: int, epoch: int) -> dict[str, Any]:
        failed = "the sandbox broke" if number % 7 == 0 else None
        scores = {"match": "CI"[number % 3 == 0], **({"f1": number / count} if number % 11 else {})}
        return log_sample(number, f"{number}", scores=None if failed else scores, error=failed, epoch=epoch)

    samples = (sample(number, epoch) for number in range(count) for epoch in (1, 2))
    return write_log(path, log_header(scorers=("match", "f1"), created=f"2026-03-{day:02}T02:00:00Z"), samples)


def _imported(lake: Lake, *paths: Path) -> list[ImportedLog]:
    found = list(import_logs(lake, paths))
    publish_imported(lake, found)
    return found


def _files(lake: Lake, table: str) -> list[Path]:
    return list((lake.root / table).rglob("*.parquet"))


@pytest.mark.long
def test_the_tables_are_equal_whatever_the_number_of_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _log(tmp_path / "many.eval", 900)
    with zipfile.ZipFile(path) as archive:
        damaged = archive.getinfo("samples/5_epoch_1.json").header_offset + 60
    content = bytearray(path.read_bytes())
    content[damaged] ^= 0xFF
    path.write_bytes(content)
    found: list[tuple[list[pa.Table], list[str]]] = []
    for cores in (1, 2, 3):
        _use(monkeypatch, cores)
        lake = Lake(tmp_path / f"home{cores}")
        [imported] = _imported(lake, path)
        assert (imported.state, imported.answers) == ("imported", 1799)
        assert "1 samples cannot be read" in imported.warnings[0]
        assert "5_epoch_1" in imported.warnings[0]
        files = [file for table in _RESULT for file in _files(lake, table)]
        assert len(files) == len(_RESULT)
        tables = [read_table(file) for file in files]
        tables[-1] = tables[-1].drop_columns(["scores_file"])  # a name with random digits
        found.append((tables, [read_info(file).version for file in files]))
        assert [pq.ParquetFile(file).num_row_groups for file in files] == [1] * len(files)
    assert [len(table) for table in found[0][0]] == [900, 1799, 1799, 3598, 2]
    for tables, versions in found[1:]:
        assert versions == found[0][1]
        assert all(table.equals(alone) for table, alone in zip(tables, found[0][0], strict=True))


@pytest.mark.long
def test_a_killed_process_fails_its_log_alone_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _use(monkeypatch, 2)
    first, second = (_log(tmp_path / f"{day}.eval", 800, day=day) for day in (1, 2))
    killed: list[int] = []

    def kill() -> None:
        while not killed:
            for child in multiprocessing.active_children():
                assert child.pid is not None
                os.kill(child.pid, signal.SIGKILL)
                killed.append(child.pid)
            time.sleep(0.01)

    killer = threading.Thread(target=kill)
    killer.start()
    lake = Lake(tmp_path / "home")
    found = {each.path: each for each in _imported(lake, first, second)}
    killer.join()
    assert (found[first].state, found[second].state) == ("failed", "imported")
    assert f"found {first}, of which a process was killed" in str(found[first].problem)
    assert [len(_files(lake, table)) for table in _RESULT] == [1] * len(_RESULT)
    assert not multiprocessing.active_children()
    assert [each.state for each in _imported(lake, first, second)] == ["imported", "known"]


@pytest.mark.long
def test_a_call_is_made_here_if_its_process_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _use(monkeypatch, 2)
    with Processes() as processes:
        _read_all(processes, _log(tmp_path / "one.eval", 5))
        value = processes.call(time.sleep, 2)
        [child] = multiprocessing.active_children()
        child.kill()
        assert value() is None
        assert processes.call(os.getpid)() == os.getpid()


def test_few_batches_are_read_before_they_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process takes a second to start, in which this one could fill the memory with what follows the first batch."""
    asked = 0

    def counted(members: Sequence[Member], **_: int) -> Iterator[list[Member]]:
        nonlocal asked
        for batch in _PARTS(members, most=1, most_bytes=1):
            asked += 1
            yield batch

    _use(monkeypatch, 2)
    monkeypatch.setattr(reading_processes, "batches", counted)
    path = _log(tmp_path / "one.eval", 100)
    with Processes() as processes, path.open("rb") as file:
        archive = Archive(file)
        read = processes.read(path, archive, archive.samples(), read_log(archive))
        for taken, _ in enumerate(read, start=1):
            assert asked <= taken + 12
        assert taken == asked == 200


def _read_all(processes: Processes, path: Path) -> None:
    with path.open("rb") as file:
        archive = Archive(file)
        for _ in processes.read(path, archive, archive.samples(), read_log(archive)):
            pass


_READS_AND_WAITS = """
import multiprocessing, sys, time
from pathlib import Path
from eval_dagster.imports import reading_processes as reading
from eval_dagster.imports.inspect_archive import Archive
from eval_dagster.imports.inspect_header import read_log

if __name__ == "__main__":
    reading._FEW_BYTES = 0
    path = Path(sys.argv[1])
    with reading.Processes(2) as processes, path.open("rb") as file:
        archive = Archive(file)
        list(processes.read(path, archive, archive.samples(), read_log(archive)))
        print(multiprocessing.active_children()[0].pid, flush=True)
        time.sleep(600)
"""


@pytest.mark.long
def test_another_process_leaves_interrupts_to_the_first_and_ends_with_it(tmp_path: Path) -> None:
    script, path = tmp_path / "read.py", _log(tmp_path / "one.eval", 5)
    script.write_text(_READS_AND_WAITS)
    with subprocess.Popen([sys.executable, script, path], stdout=subprocess.PIPE, text=True) as first:
        try:
            assert first.stdout is not None
            other = psutil.Process(int(first.stdout.readline()))
            other.send_signal(signal.SIGINT)
            with pytest.raises(psutil.TimeoutExpired):
                other.wait(1)
        finally:
            first.kill()
        with suppress(psutil.NoSuchProcess):
            other.wait(20)
    assert not other.is_running()
