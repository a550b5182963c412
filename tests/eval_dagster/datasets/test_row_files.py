"""Rows are what is written: no cell changes by its type, no row by another one, and no more is read than is asked."""

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval_dagster.datasets import row_files
from eval_dagster.datasets.reader import DatasetReader
from eval_dagster.datasets.row_files import rows_of
from eval_dagster.errors import DataError, TaskDefinitionError
from eval_dagster.metrics.completion import ExactMatch
from eval_dagster.records import ResponseType, Row
from eval_dagster.task_files.loading import check_task
from eval_dagster.tasks.base import BaseTask
from eval_dagster.tasks.samples import build_samples, unreadable_reason


class Quiz(BaseTask[str]):
    NAME = "Quiz"
    DATASET_PATH = "./rows"
    SAMPLE_SPLIT = "test"
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS = (ExactMatch,)

    def _get_instruction_text(self, item: Row) -> str:
        return str(item["question"])

    def _get_ground_truth(self, item: Row) -> str:
        return str(item["answer"])


def column(tmp_path: Path, *cells: str) -> list[Any]:
    (tmp_path / "test.csv").write_text("".join(f"{cell}\n" for cell in ("a,b", *(f"{cell}," for cell in cells))))
    return [row["a"] for row in rows_of([tmp_path / "test.csv"])]


@pytest.mark.parametrize(
    "cell",
    ["10:30", "10:30:00", "01234", "1.50", "true", "TRUE", "2026-01-31", "2026-01-31 10:30:00", "1e5", "+1", "-0", " 1", "1 ", ".5", "1.",
     "nan", "inf", "NA", "null", "1_000", "0x10", "٣", "1,5", "9" * 5000],
)  # fmt: skip
def test_a_cell_that_its_type_would_print_otherwise_stays_text(tmp_path: Path, cell: str) -> None:
    written = f'"{cell}"' if "," in cell else cell
    assert column(tmp_path, written, "1") == [cell, "1"]
    assert column(tmp_path, written) == [cell]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["3", "-4", "0"], [3, -4, 0]),
        (["1.5", "2.0", "1e-07"], [1.5, 2.0, 1e-07]),
        (["1", "2.5"], [1, 2.5]),
        (["True", "False"], [True, False]),
        (["3", "", "4"], [3, None, 4]),
        (["", ""], [None, None]),
        (["3", "blue", ""], ["3", "blue", ""]),
        (["True", "1"], ["True", "1"]),
        (["12345678901234567891"], [12345678901234567891]),
    ],
)
def test_a_column_has_a_type_where_each_cell_is_what_it_prints(tmp_path: Path, cells: list[str], expected: list[Any]) -> None:
    found = column(tmp_path, *cells)
    assert found == expected
    assert [type(value) for value in found] == [type(value) for value in expected]


CELL = st.one_of(
    st.integers().map(str),
    st.floats(allow_nan=True).map(str),
    st.booleans().map(str),
    st.sampled_from(["", "01", "1.50", "true", "10:30", "word"]),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=5),
)


@pytest.mark.long
@settings(max_examples=200)
@given(cells=st.lists(CELL, min_size=1, max_size=6), more=CELL)
def test_no_value_prints_otherwise_and_one_row_more_changes_no_id(
    tmp_path_factory: pytest.TempPathFactory, cells: list[str], more: str
) -> None:
    folder = tmp_path_factory.getbasetemp()

    def rows(cells: list[str]) -> list[Row]:
        doubled = [cell.replace('"', '""') for cell in cells]
        (folder / "test.csv").write_text("".join(f"{line}\n" for line in ("a,b", *(f'"{cell}","x"' for cell in doubled))), "utf-8")
        return list(rows_of([folder / "test.csv"]))

    alone, together = rows(cells), rows([*cells, more])
    for cell, row in zip(cells, alone, strict=True):
        assert str(row["a"]) == cell or (row["a"], cell) == (None, "")
    ids = [sample.sample_id for sample in build_samples({"test": alone}, "all")]
    assert ids == [sample.sample_id for sample in build_samples({"test": together}, "all")][:-1]
    assert len(set(ids)) == len(ids)


def test_ids_are_those_of_rows_with_types_elsewhere(tmp_path: Path) -> None:
    """A home keeps the ids of rows whose columns are numbers."""
    (tmp_path / "test.csv").write_text("q,n,f\nwhy,3,1.5\n")
    (row,) = rows_of([tmp_path / "test.csv"])
    (sample,), (plain,) = (build_samples({"test": [each]}, "all") for each in (row, {"q": "why", "n": 3, "f": 1.5}))
    assert (sample.sample_id, sample.row) == (plain.sample_id, plain.row)


def test_files_of_a_split_have_the_same_types(tmp_path: Path) -> None:
    for number, cell in enumerate(("1", "one")):
        (tmp_path / f"test-{number}.csv").write_text(f"a\n{cell}\n")
    assert [row["a"] for row in rows_of(sorted(tmp_path.glob("*.csv")))] == ["1", "one"]


class Typed(Quiz):
    COLUMN_TYPES: ClassVar[dict[str, type]] = {"question": str, "answer": int, "share": float, "is_known": bool}


def test_declared_types(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/test.csv").write_text("question,answer,share,is_known\n7,01234,1.50,TRUE\n8,x,1,0\n9,,,\n")
    reader = DatasetReader(None, tmp_path)
    first, second, third = reader.read(Typed(), "default")["test"]
    assert first == {"question": "7", "answer": 1234, "share": 1.5, "is_known": True}
    assert unreadable_reason(second) == (
        f"{tmp_path}/rows/test.csv cannot be read: row 1 (line 3): the column 'answer' holds 'x'; expected a whole number, which "
        "COLUMN_TYPES of the task declares"
    )
    assert third == {"question": "9", "answer": None, "share": None, "is_known": None}
    untyped = reader.read(Quiz(), "default")["test"]
    assert untyped[0] == {"question": 7, "answer": "01234", "share": "1.50", "is_known": "TRUE"}
    ids = [[sample.sample_id for sample in build_samples({"test": [rows[0], rows[2]]}, "x")] for rows in ([first, second, third], untyped)]
    assert ids[0] == ids[1]
    assert reader.stamp(Typed, ["default"]) != reader.stamp(Quiz, ["default"])
    (tmp_path / "rows/test.csv").write_text("question,answer\n7,8\n")
    with pytest.raises(DataError, match=r"test\.csv lacks the column 'share', which COLUMN_TYPES .* declares; .*: question, answer"):
        reader.read(Typed(), "default")


@pytest.mark.parametrize("types", [{"answer": "int"}, {"answer": list}, {1: int}, ["answer"]])
def test_declared_types_are_checked_before_anything_runs(types: Any) -> None:
    with pytest.raises(TaskDefinitionError, match=r"has the COLUMN_TYPES .*; expected"):
        check_task(type("Wrong", (Quiz,), {"COLUMN_TYPES": types, "__module__": __name__}))


UNCLOSED = 'question,answer\nfirst,1\n"second,2\n' + "".join(f"more,{n}\n" for n in range(20))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (UNCLOSED, r"row 1 \(line 3\): a quote that opens a cell is never closed"),
        (UNCLOSED + 'last,"a ""quoted"" cell"\n', r"row 1 \(line 3\): text follows a quote that closes a cell, perhaps because an earlier"),
        ('question,answer\nfirst,1\n"second"x,2\n', r"row 1 \(line 3\): text follows a quote"),
        ('question,answer\n"a\nb",1\nlong,' + "x" * (2**20 + 1) + "\n", r"row 1 \(line 4\): a cell of more than 1,048,576 characters"),
        ('"question,answer\n', r"the first line: a quote that opens a cell is never closed"),
        ("a,a\n1,2\n", "the column 'a' more than once"),
    ],
)
def test_a_damaged_csv_file_is_named_with_the_row(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "test.csv").write_text(content)
    with pytest.raises(DataError, match=rf"test\.csv cannot be read: .*{message}"):
        list(rows_of([tmp_path / "test.csv"]))


def test_a_long_cell_that_is_allowed(tmp_path: Path) -> None:
    assert column(tmp_path, "x" * 2**20) == ["x" * 2**20]


def test_a_row_of_another_width_is_an_error_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text("a,b\n1,2\n3\n4,5,6\n\n7,8\n")
    rows = list(rows_of([tmp_path / "test.csv"]))
    assert [rows[0], rows[3]] == [{"a": 1, "b": 2}, {"a": 7, "b": 8}]
    assert "test.csv cannot be read: row 1 (line 3): expected 2 cells, as the first line has, got 1" in str(unreadable_reason(rows[1]))
    assert "row 2 (line 4): expected 2 cells, as the first line has, got 3" in str(unreadable_reason(rows[2]))


def test_a_key_that_is_twice_in_a_line_of_json(tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_text('{"a": 1}\n{"a": 1, "in": {"b": 2, "b": 3}}\n')
    first, second = rows_of([tmp_path / "test.jsonl"])
    assert first == {"a": 1}
    assert "test.jsonl cannot be read: line 2: ValueError: found the key 'b' more than once" in str(unreadable_reason(second))


@pytest.mark.parametrize("nested", [False, True])
def test_two_columns_of_one_name_in_parquet(tmp_path: Path, nested: bool) -> None:
    table = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    table = pa.table({"in": table.to_struct_array()}) if nested else table
    pq.write_table(table, tmp_path / "test.parquet")
    with pytest.raises(DataError, match=r"test\.parquet cannot be read: its rows have the column 'a' more than once"):
        list(rows_of([tmp_path / "test.parquet"]))


def test_a_date_beyond_the_calendar_is_an_error_of_its_row(tmp_path: Path) -> None:
    table = pa.table({"day": pa.array([0, 10**8, 1], pa.int32()).cast(pa.date32()), "q": ["a", "b", "c"]})
    pq.write_table(table, tmp_path / "test.parquet")
    first, second, third = rows_of([tmp_path / "test.parquet"])
    assert (first["q"], third["q"]) == ("a", "c")
    assert "test.parquet cannot be read: row 1: the column 'day' holds a value of type date32[day]" in str(unreadable_reason(second))
    pq.write_table(table.slice(1, 1), tmp_path / "test.parquet")
    with pytest.raises(DataError, match=r"test\.parquet cannot be read: row 0: the column 'day'"):
        list(rows_of([tmp_path / "test.parquet"]))


READING = """
import resource, sys
from itertools import islice
from pathlib import Path
from eval_dagster.datasets.row_files import rows_of
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows = list(islice(rows_of([Path(sys.argv[1])]), 5))
print(len(rows), len(rows[0]["q"]), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.long
def test_a_small_file_of_large_rows_fills_no_memory(tmp_path: Path) -> None:
    """2,000 rows of one value of a megabyte; five of them are asked for."""
    values = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), pa.array(["x" * 2**20]))
    pq.write_table(pa.table({"q": values}), tmp_path / "test.parquet", compression="zstd")
    assert (tmp_path / "test.parquet").stat().st_size < 100_000
    done = subprocess.run(
        [sys.executable, "-c", READING, str(tmp_path / "test.parquet")], capture_output=True, text=True, check=True, timeout=60
    )
    rows, size, grown_kb = map(int, done.stdout.split())
    assert (rows, size) == (5, 2**20)
    assert grown_kb < 70_000, f"{grown_kb / 1e3:.0f} MB"


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_row_that_is_too_large_is_an_error_of_its_own(tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files, "_LARGEST_ROW", 2000)
    rows = [{"q": "a"}, {"q": "x" * 5_000_000}, {"q": "b"}]
    file = tmp_path / f"test.{ending}"
    if ending == "jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), file)
    first, second, third = rows_of([file])
    assert (first, third) == ({"q": "a"}, {"q": "b"})
    place, unit = ("line 2", "characters") if ending == "jsonl" else ("row 1", "bytes")
    assert str(unreadable_reason(second)).startswith(f"{file} cannot be read: {place}: found more than 2,000 {unit}; expected smaller")


def test_a_batch_of_large_rows_is_smaller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"q": ["x" * 1000] * 100}), tmp_path / "test.parquet")
    monkeypatch.setattr(row_files, "_BATCH_BYTES", 5000)
    sizes: list[int] = []
    original = pq.ParquetFile.iter_batches

    def iter_batches(self: pq.ParquetFile, batch_size: int, **options: Any) -> Iterator[pa.RecordBatch]:
        sizes.append(batch_size)
        return original(self, batch_size=batch_size, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", iter_batches)
    assert len(list(rows_of([tmp_path / "test.parquet"]))) == 100
    assert sizes == [1, 4]


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_no_row_beyond_the_limit_is_read(tmp_path: Path, ending: str) -> None:
    """What is damaged there is not met. A CSV file is searched for its types, and its quotes count."""
    file = tmp_path / f"test.{ending}"
    rows = [{"question": f"q{n}", "answer": n} for n in range(5000)]
    if ending == "csv":
        file.write_text("question,answer\n" + "".join(f"{row['question']},{row['answer']}\n" for row in rows) + "1,2,3\n" * 9)
    elif ending == "jsonl":
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows) + "{broken\n")
    else:
        table = pa.table(
            {"question": [row["question"] for row in rows], "day": pa.array([0] * 4999 + [10**8], pa.int32()).cast(pa.date32())}
        )
        pq.write_table(table, file)
    found = list(islice(rows_of([file]), 3))
    assert [row["question"] for row in found] == ["q0", "q1", "q2"]
