"""What a killed writer left behind is removed by the next writer, and what a running one writes is not."""

import os
import time
from pathlib import Path

import pyarrow as pa
import pytest

from eval_dagster.lake.format.parquet_files import FileInfo, write_parquet

INFO = FileInfo(fingerprint="f", version="v", run_id="r", materialized_at="2026-01-01T00:00:00+00:00")


def _left(folder: Path, name: str, *, age_s: float) -> Path:
    path = folder / name
    path.write_bytes(b"half a file")
    then = time.time() - age_s
    os.utime(path, (then, then))
    return path


def test_temporary_files_of_a_killed_writer_are_swept(tmp_path: Path) -> None:
    killed = _left(tmp_path, ".20260101T000000-dead.parquet.tmp", age_s=2 * 3600)
    running = _left(tmp_path, ".20260101T000001-alive.parquet.tmp", age_s=60)
    others = _left(tmp_path, "20250101T000000-old.parquet", age_s=365 * 86400)
    write_parquet(tmp_path / "new.parquet", pa.table({"n": [1]}), INFO)
    assert not killed.exists(), "no process writes a file for an hour"
    assert running.exists(), "another process writes it"
    assert others.exists(), "a file of the lake is never swept"
    assert (tmp_path / "new.parquet").exists()
    assert sorted(path.name for path in tmp_path.glob(".*")) == [running.name]


def test_a_write_that_fails_leaves_nothing_and_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("eval_dagster.lake.format.parquet_files.os.fsync", full)
    with pytest.raises(OSError, match="No space left") as raised:
        write_parquet(tmp_path / "new.parquet", pa.table({"n": [1]}), INFO)
    assert raised.value.filename == str(tmp_path / "new.parquet")
    assert list(tmp_path.iterdir()) == []
