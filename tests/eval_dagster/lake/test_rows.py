"""Rows of files are what Arrow itself makes of them, and reading them does not import pandas."""

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eval_dagster.errors import LakeError
from eval_dagster.lake.format.damage import enter_checksum, reserve_checksum
from eval_dagster.lake.format.parquet_files import (
    FileInfo,
    iter_rows,
    iter_tables,
    new_name,
    read_few_rows,
    read_rows,
    read_rows_at,
    read_rows_with,
    write_parquet,
)

INFO = FileInfo(fingerprint="f", version="v", run_id="r", materialized_at="2026-01-01T00:00:00+00:00")
WORDS = pa.dictionary(pa.int32(), pa.string())
COLUMNS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int32(), [1, None, -3, 2**31 - 1]),
    (pa.int64(), [2**62, 0, -5, 1]),
    (pa.uint64(), [2**64 - 1, None, 0, 1]),
    (pa.float32(), [0.5, None, -0.0, 1e30]),
    (pa.float64(), [0.1, float("inf"), 1e-300, None]),
    (pa.bool_(), [True, None, False, True]),
    (pa.bool_(), [True, False, False, True]),
    (pa.string(), ["a", None, "", "é漢\U0001f469\x00\n"]),
    (WORDS, ["a", None, "b", "a"]),
    (pa.timestamp("us", "UTC"), [datetime(1969, 1, 2, 3, 4, 5, 6, tzinfo=UTC), None, datetime(2026, 1, 1, tzinfo=UTC), None]),
    (pa.timestamp("ms"), [datetime(2026, 1, 1, 1, 1, 1, 1000), None, None, None]),
    (pa.list_(pa.int32()), [[1], None, [], [2, None, 3]]),
    (pa.list_(pa.string()), [["a"], [None], None, ["b", "c"]]),
    (pa.list_(pa.list_(pa.float64())), [[[1.0, None], []], None, [None], [[2.0]]]),
    (pa.list_(pa.bool_()), [[True, None], [], None, [False]]),
    (pa.struct([("a", pa.int64())]), [{"a": 1}, None, {"a": None}, {"a": 2}]),
    (pa.string(), [None] * 4),
]


@pytest.mark.parametrize(("kind", "values"), COLUMNS, ids=[str(kind) for kind, _ in COLUMNS])
def test_a_column_has_the_values_that_were_written(tmp_path: Path, kind: pa.DataType, values: list[Any]) -> None:
    many = values * 3000  # several batches, each with an offset
    column = pa.array(many, kind)
    table = pa.table({"whole": column, "cut": pa.concat_arrays([column[:1], column])[1:], "empty": pa.nulls(len(many))})
    write_parquet(tmp_path / "f.parquet", table, INFO)
    expected = [{"whole": value, "cut": value, "empty": None} for value in column.to_pylist()]
    found = read_rows(tmp_path / "f.parquet")
    assert found == expected
    assert [type(row["cut"]) for row in found] == [type(row["cut"]) for row in expected]
    assert list(iter_rows(tmp_path / "f.parquet")) == expected


def test_pandas_is_not_imported_to_read_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({str(number): pa.array(values, kind) for number, (kind, values) in enumerate(COLUMNS[:-2])}), tmp_path / "f")
    code = (
        "import sys; import pyarrow.parquet as pq; from eval_dagster.lake.format.parquet_files import _rows_of; "
        f"rows = _rows_of(pq.ParquetFile({str(tmp_path / 'f')!r}).read()); print(len(rows), 'pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["4", "False"]


def _grouped(path: Path, rows: int, size: int) -> list[dict[str, Any]]:
    """Write a file with several row groups, and return its rows."""
    texts = [f"{'x' * size}{n}" for n in range(rows)]
    table = pa.table({"sample_id": [f"s{n}" for n in range(rows)], "text": texts, "choices": [[text[-2:], "b"] for text in texts]})
    write_parquet(path, table)
    with path.open("w+b") as file:
        with pq.ParquetWriter(file, table.schema, compression="zstd") as writer:
            writer.write_table(table, row_group_size=rows // 4)
            reserve_checksum(writer)
        enter_checksum(file)
    return list(table.to_pylist())


def test_rows_are_found_by_the_text_of_a_column_or_their_place(tmp_path: Path) -> None:
    path = tmp_path / new_name("r")
    rows = _grouped(path, 1000, 10)
    places = [0, 249, 250, 251, 999]
    assert read_rows_with(path, "sample_id", [f"s{place}" for place in reversed(places)] + ["nobody"]) == [rows[place] for place in places]
    assert read_rows_with(path, "sample_id", ["s7"], ["choices", "new"]) == [{"choices": rows[7]["choices"]}]
    assert read_rows_with(path, "sample_id", []) == []
    assert read_rows_at(path, [999, 250, 1000]) == {250: rows[250], 999: rows[999]}
    assert pa.concat_tables(iter_tables(path, ["choices", "sample_id"])).select(["sample_id"]).num_rows == 1000


def test_a_few_rows_of_many_take_little_memory_and_no_row_group_without_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / new_name("r")
    rows = _grouped(path, 20_000, 4000)
    read: list[Any] = []
    own = pq.ParquetFile.iter_batches

    def spied(file: pq.ParquetFile, *arguments: Any, **settings: Any) -> Any:
        read.append((settings.get("row_groups"), settings["columns"]))
        return own(file, *arguments, **settings)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", spied)
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        assert read_rows_with(path, "sample_id", ["s10", "s15000"]) == [rows[10], rows[15_000]]
    finally:
        pa.set_memory_pool(before)
    assert pool.max_memory() < 30 * 2**20, "the texts alone are 80 MB"
    assert read == [(None, ["sample_id"]), ([0], None), ([3], None)]


@pytest.mark.parametrize(("rows", "codec"), [(5, "SNAPPY"), (5000, "ZSTD")])
def test_a_small_file_is_written_without_a_state_for_each_column(tmp_path: Path, rows: int, codec: str) -> None:
    """Both kinds are read alike, and DuckDB reads them."""
    path = tmp_path / new_name("r")
    table = pa.table({"sample_id": [f"s{n}" for n in range(rows)]})
    write_parquet(path, table)
    assert pq.ParquetFile(path).metadata.row_group(0).column(0).compression == codec
    assert read_rows(path) == table.to_pylist()
    assert duckdb.sql(f"select count(*) from '{path}'").fetchall() == [(rows,)]


def test_few_rows_are_kept_until_their_file_changes(tmp_path: Path) -> None:
    path = tmp_path / new_name("r")
    write_parquet(path, pa.table({"value": [1]}))
    assert read_few_rows(path) is read_few_rows(path)
    write_parquet(path, pa.table({"value": [2]}))
    assert read_few_rows(path) == [{"value": 2}]
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(LakeError, match="damaged"):
        read_few_rows(path)
    path.unlink()
    with pytest.raises(LakeError):
        read_few_rows(path)
