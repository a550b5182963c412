"""Small files are read from memory, as they would be read from the disk."""

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from eval_dagster.errors import LakeError
from eval_dagster.lake.format import parquet_files, small_files
from eval_dagster.lake.format.parquet_files import FileInfo, new_name, read_table, write_parquet
from eval_dagster.lake.format.small_files import SMALL_FILES, FewRows, SmallFiles
from eval_dagster.versions.hashes import file_stamp

_INFO = FileInfo(fingerprint="f", version="v", run_id="r", materialized_at="2026-01-01T00:00:00+00:00", counts={"rows": 3})


def _table(rows: int, text: str = "ä") -> pa.Table:
    times = [datetime(2026, 1, 1, second=number % 60, tzinfo=UTC) for number in range(rows)]
    return pa.table(
        {
            "eval": pa.array(["one"] * rows, pa.string()),
            "sample_id": [f"{text}{number}" for number in range(rows)],
            "value": pa.array([None if number % 3 == 0 else number / 7 for number in range(rows)], pa.float64()),
            "is_right": pa.array([number % 2 == 0 for number in range(rows)], pa.bool_()),
            "texts": pa.array([None if number % 5 == 0 else [text, None] * (number % 3) for number in range(rows)], pa.list_(pa.string())),
            "at": pa.array(times, pa.timestamp("us", "UTC")),
            "nothing": pa.nulls(rows, pa.string()),
        }
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    SMALL_FILES.forget()
    return tmp_path / "lake" / "scores" / "eval=one"


def _written(folder: Path, table: pa.Table) -> Path:
    path = folder / new_name("run")
    write_parquet(path, table, _INFO)
    return path


def _everything_read(path: Path) -> list[Any]:
    """What each function gives of a file, with some columns in another order and one that it lacks."""
    some = ["value", "texts", "no such column", "eval"]
    where = pc.field("is_right") & pc.field("value").is_valid()
    tables = [
        read_table(path),
        read_table(path, some),
        read_table(path, [], None),
        read_table(path, some, where),
        read_table(path, None, where),
    ]
    tables += [pa.concat_tables(parquet_files.iter_tables(path, some)), pa.Table.from_batches(parquet_files.iter_batches(path, some))]
    ids = ["ä1", "ä4", "ä999", "no such sample"]
    return [
        *((table.schema.remove_metadata(), table.shape, table.to_pylist()) for table in tables),
        [table.schema.metadata[parquet_files.INFO_KEY] for table in tables[:2]],
        parquet_files.read_head(path, 4, some),
        list(parquet_files.iter_rows(path)),
        parquet_files.read_rows_with(path, "sample_id", ids, some),
        parquet_files.read_rows_with(path, "sample_id", ids),
        parquet_files.read_columns(path, some),
        parquet_files.read_rows_at(path, [0, 7]),
        parquet_files.read_info(path),
    ]


@pytest.mark.parametrize("rows", [1, 40, 1_500])
def test_a_file_in_memory_is_read_like_one_on_the_disk(rows: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _written(folder, _table(rows))
    first, again = _everything_read(path), _everything_read(path)
    assert SMALL_FILES.find(path, file_stamp(path)) is not None
    monkeypatch.setattr(small_files, "_MOST_FILE_BYTES", 0)
    parquet_files._read_info.cache_clear()
    on_disk = _everything_read(path)
    assert first == again == on_disk
    assert read_table(path).equals(_table(rows).cast(read_table(path).schema))


def test_an_empty_table_has_its_columns(folder: Path) -> None:
    path = _written(folder, _table(0))
    assert [table.column_names for table in parquet_files.iter_tables(path, ["value", "eval"])] == [["value", "eval"]]
    assert list(parquet_files.iter_rows(path)) == parquet_files.read_head(path, 5, ["value"]) == []


def test_a_file_that_was_written_since_is_read_anew(folder: Path) -> None:
    path = _written(folder, _table(3))
    assert len(read_table(path)) == 3
    path.unlink()
    write_parquet(path, _table(5), _INFO)
    assert len(read_table(path)) == 5


def test_a_file_that_is_damaged_or_deleted_since_is_not_read_from_memory(folder: Path) -> None:
    path = _written(folder, _table(3))
    read_table(path)
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)
    with pytest.raises(LakeError, match="is damaged"):
        read_table(path)
    path.unlink()
    with pytest.raises(LakeError, match="is missing"):
        read_table(path)


def test_a_file_of_many_rows_is_not_held(folder: Path) -> None:
    path = _written(folder, _table(3_000, text=""))
    assert path.stat().st_size < small_files._MOST_FILE_BYTES
    assert SMALL_FILES.find(path, file_stamp(path)) is None
    assert len(read_table(path)) == 3_000


def test_the_files_that_were_used_last_are_held(folder: Path) -> None:
    paths = [_written(folder, _table(40)) for _ in range(5)]
    stamps = {path: file_stamp(path) for path in paths}
    first = SmallFiles()
    first.find(paths[0], stamps[paths[0]])
    held = SmallFiles(most_bytes=3 * first._size)
    opened = {path: held.find(path, stamps[path]) for path in paths[:3]}
    assert held.find(paths[0], stamps[paths[0]]) is opened[paths[0]]
    held.find(paths[3], stamps[paths[3]])
    assert held.find(paths[0], stamps[paths[0]]) is opened[paths[0]]
    assert held.find(paths[1], stamps[paths[1]]) is not opened[paths[1]]
    assert held._size <= 3 * first._size


def test_threads_share_a_file(folder: Path) -> None:
    path = _written(folder, _table(1_000))
    names = _table(1).column_names
    expected = {name: read_table(path, [name]).to_pylist() for name in names}
    for _ in range(20):
        SMALL_FILES.forget()
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda name: read_table(path, [name]).to_pylist(), names * 4))
        assert found == [expected[name] for name in names] * 4


def _read_in_fork(path: Path) -> None:
    os._exit(0 if len(read_table(path)) == 3 else 1)


def test_a_forked_process_does_not_wait_for_a_thread_that_it_has_not(folder: Path) -> None:
    path = _written(folder, _table(3))
    with SMALL_FILES._lock:
        process = multiprocessing.get_context("fork").Process(target=_read_in_fork, args=(path,))
        process.start()
    process.join(20)
    try:
        assert process.exitcode == 0
    finally:
        process.kill()


def test_rows_stay_in_memory_up_to_a_number_of_rows_and_as_long_as_the_file_is_the_same() -> None:
    kept, read = FewRows(most_rows=4), list[str]()

    def rows_of(name: str, count: int, stamp: int = 0) -> Sequence[Any]:
        def rows() -> Sequence[Any]:
            read.append(name)
            return [name] * count

        return kept.find(Path(name), [stamp], rows)

    assert [rows_of("a", 2), rows_of("b", 2), rows_of("a", 2)] == [["a"] * 2, ["b"] * 2, ["a"] * 2]
    assert read == ["a", "b"]
    rows_of("c", 1)
    assert [rows_of("a", 2), read] == [["a"] * 2, ["a", "b", "c"]], "the one that was used last stays"
    rows_of("b", 2)
    assert read[3:] == ["b"]
    rows_of("b", 1, stamp=1)
    assert read[4:] == ["b"], "it was written since"
    assert len(rows_of("d", 9)) == 9
    assert len(rows_of("d", 9)) == 9
    assert read[5:] == ["d"], "a file of more rows stays until the next one"
    rows_of("a", 1)
    kept.forget()
    rows_of("a", 1)
    assert read[6:] == ["a", "a"]
