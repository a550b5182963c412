"""The rows of assets: what a home keeps of them, and which files are read."""

import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from eval_dagster.datasets.assets import AssetRows, AssetStore, Materialized, asset_path, keys_in
from eval_dagster.errors import DataError, DatasetNotFoundError, UnreadAssetError

FIRST = Materialized(key="support/tickets", version="1", value_id="a", when=100.0, run_id="r1")


def _rows(store: AssetStore, keys: dict[str, str], *, subjects: int = 1) -> AssetRows:
    return AssetRows(store, asset_path(keys), "test", subjects)


def test_keys_are_written_as_a_path() -> None:
    for keys in ({"": "a/b"}, {"test": "a", "train": "b/c"}):
        assert keys_in(asset_path(keys)) == keys
    assert keys_in("./rows") == keys_in("org/name") == {}


def test_the_newest_of_what_is_told_and_kept_counts(tmp_path: Path) -> None:
    store = AssetStore(tmp_path)
    assert store.newest(FIRST.key) is None
    store.tell(FIRST)
    store.keep(FIRST.key)
    other = AssetStore(tmp_path)
    assert other.newest(FIRST.key) == FIRST
    other.tell(replace(FIRST, value_id="b", when=99.0))
    assert other.newest(FIRST.key) == FIRST, "an instance that knows only an older one"
    later = replace(FIRST, value_id="c", when=101.0)
    other.tell(later)
    assert other.newest(FIRST.key) == later
    assert AssetStore(tmp_path).newest(FIRST.key) == FIRST, "it was not kept"
    next(tmp_path.rglob("newest.json")).write_text("{")
    assert AssetStore(tmp_path).newest(FIRST.key) is None
    assert AssetStore(None).newest(FIRST.key) is None


def test_rows_of_an_io_manager_are_kept_by_content(tmp_path: Path) -> None:
    store, rows = AssetStore(tmp_path), _rows(AssetStore(tmp_path), {"": FIRST.key})
    store.tell(FIRST)
    store.keep(FIRST.key)
    with pytest.raises(UnreadAssetError, match="materialize dataset_snapshot there"):
        rows.check(["default"], ["test"])
    unread = rows.stamp(["default"], ["test"])
    store.keep_rows(FIRST, {"": pa.table({"a": [1, 2]})})
    store.keep(FIRST.key)
    assert rows.read("default", ["test"]) == {"test": [{"a": 1}, {"a": 2}]}
    stamp = rows.stamp(["default"], ["test"])
    assert stamp != unread
    same, other = replace(FIRST, value_id="b", when=101.0, version="2"), replace(FIRST, value_id="c", when=102.0, version="2")
    for found, values, is_same in ((same, [1, 2], True), (other, [1, 3], False)):
        store.tell(found)
        assert not store.has_rows(FIRST.key)
        store.keep_rows(found, {"": pa.table({"a": values})})
        store.keep(FIRST.key)
        assert (rows.stamp(["default"], ["test"]) == stamp) == is_same
        assert rows.source().revision == "2"
    assert len(list(tmp_path.rglob("table.parquet"))) == 2, "a run may be reading the former"
    for old in tmp_path.rglob("table.parquet"):
        os.utime(old.parent, (1, 1))
    last = replace(FIRST, value_id="d", when=103.0)
    for found, value in ((last, 4), (replace(last, value_id="e", when=104.0), 5)):
        store.keep_rows(found, {"": pa.table({"a": [value]})})
        store.keep(FIRST.key)
    assert len(list(tmp_path.rglob("table.parquet"))) == 2, "those that no run reads any more are gone"


def test_splits_of_a_value_are_splits(tmp_path: Path) -> None:
    store = AssetStore(tmp_path)
    store.keep_rows(FIRST, {"test": pa.table({"a": [1]}), "train": pa.table({"a": [2]})})
    for keys in ({"": FIRST.key}, {"test": FIRST.key, "train": FIRST.key}):
        assert _rows(store, keys).read("default", ["test", "train"]) == {"test": [{"a": 1}], "train": [{"a": 2}]}
    with pytest.raises(DatasetNotFoundError, match="lacks the split 'dev'"):
        _rows(store, {"": FIRST.key}).check(["default"], ["dev"])
    with pytest.raises(DatasetNotFoundError, match="reads the split 'train', and its `dataset` names an asset for test"):
        _rows(store, {"test": FIRST.key}).check(["default"], ["train"])


def test_a_folder_is_read_as_that_of_a_task_or_as_one_split(tmp_path: Path) -> None:
    folder, store = tmp_path / "rows", AssetStore(tmp_path / "home")
    for name in ("one/test.jsonl", "one/train.jsonl", "two/test.jsonl", "parts/p-0.jsonl", "parts/p-1.jsonl", "parts/_SUCCESS"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f'{{"in": "{name}"}}')
    store.tell(replace(FIRST, place=str(folder)))
    rows = _rows(store, {"": FIRST.key}, subjects=2)
    assert [rows.read(subject, ["test"])["test"] for subject in ("one", "two")] == [[{"in": "one/test.jsonl"}], [{"in": "two/test.jsonl"}]]
    before = rows.stamp(["one"], ["test"])
    assert rows.stamp(["one"], ["test"]) == before
    (folder / "one/test.jsonl").write_text('{"in": "another"}')
    assert rows.stamp(["one"], ["test"]) != before
    store.tell(replace(FIRST, place=str(folder / "parts"), when=101.0))
    assert _rows(store, {"test": FIRST.key}).read("default", ["test"]) == {"test": [{"in": "parts/p-0.jsonl"}, {"in": "parts/p-1.jsonl"}]}
    with pytest.raises(DatasetNotFoundError, match=r"name its split: dataset: \{asset: \{test: support/tickets\}\}"):
        _rows(store, {"": FIRST.key}).check(["default"], ["test"])
    with pytest.raises(DatasetNotFoundError, match="and the task has 2 subjects"):
        _rows(store, {"test": FIRST.key}, subjects=2).check(["one"], ["test"])


def test_one_table_has_no_subjects(tmp_path: Path) -> None:
    store = AssetStore(tmp_path)
    store.keep_rows(FIRST, {"": pa.table({"a": [1]})})
    with pytest.raises(DatasetNotFoundError, match="set its SUBJECT_FIELD"):
        _rows(store, {"": FIRST.key}, subjects=2).check(["one"], ["test"])
    store.tell(replace(FIRST, when=101.0, value_id="b", problem="it is blue"))
    with pytest.raises(DataError, match="cannot be read: it is blue"):
        _rows(store, {"": FIRST.key}).check(["default"], ["test"])
