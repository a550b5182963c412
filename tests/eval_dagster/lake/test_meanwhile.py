"""A publication while files are deleted, with a damaged index, and with another evals.yaml."""

from contextlib import closing
from pathlib import Path

import duckdb
import pytest

from eval_dagster.lake.catalog import publishing, scanning
from eval_dagster.lake.catalog.catalog import read_rows, refresh
from eval_dagster.lake.catalog.index import Index, copied_index, index_path
from eval_dagster.lake.catalog.publishing import publish, publish_locked
from eval_dagster.lake.catalog.scanning import IndexedLake
from eval_dagster.lake.files import Configured, Lake, table_of
from eval_dagster.lake.format.parquet_files import FileInfo

TEXTS = "select eval, text[1] as text from responses order by all"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "home")


def write(lake: Lake, name: str, text: str) -> Path:
    time = lake.next_time("responses", name, "m")
    info = FileInfo(fingerprint=text, version=text, run_id="run", materialized_at=time)
    rows = table_of("responses", [{"eval": name, "model": "m", "sample_id": "s", "text": [text]}])
    return lake.write("responses", rows, eval_name=name, model="m", info=info).path


def texts(lake: Lake) -> list[str]:
    return [row["text"] for row in read_rows(lake, TEXTS)]


def test_a_file_that_goes_between_listing_and_reading_shows_its_predecessor(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    write(lake, "a", "old")
    publish(lake)
    new = write(lake, "a", "new")
    read = scanning._read_unread

    def read_late(*arguments: object) -> None:
        new.unlink(missing_ok=True)
        read(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(scanning, "_read_unread", read_late)
    publish(lake)
    assert texts(lake) == ["old"]


def test_a_file_that_goes_before_it_is_queried_costs_no_verification(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    write(lake, "a", "old")
    publish(lake)
    new = write(lake, "a", "new")
    build, asked = publishing._build_once, list[bool]()

    def build_late(*arguments: object) -> None:
        if new.exists():
            new.unlink()
            raise duckdb.IOException("no file")
        build(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(publishing, "_build_once", build_late)
    monkeypatch.setattr(publishing, "verify_again", lambda *_: asked.append(True))
    publish(lake)
    assert texts(lake) == ["old"]
    assert asked == []


@pytest.mark.long
def test_files_that_count_as_deleted_do_so_after_a_failure(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    write(lake, "a", "stays")
    going = write(lake, "b", "goes")
    publish(lake)
    build, failures = publishing._build_once, [duckdb.IOException("no file")]

    def build_late(*arguments: object) -> None:
        if failures:
            raise failures.pop()
        build(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(publishing, "_build_once", build_late)
    with lake.lock("catalog"):
        publish_locked(lake, without=[going])
    assert going.exists()
    assert texts(lake) == ["stays"]


def test_another_evals_yaml_does_not_make_the_catalog_from_nothing(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    write(lake, "a", "text")
    publish(lake)
    monkeypatch.setattr(publishing, "verify_again", lambda *_: pytest.fail("all files are read again"))
    lake.configured = Configured(evals=("a",), models=("m",))
    refresh(lake)
    assert read_rows(lake, "select kind, name from internal._configured order by all") == [
        {"kind": "eval", "name": "a"},
        {"kind": "model", "name": "m"},
    ]
    assert texts(lake) == ["text"]


def test_a_damaged_index_is_not_needed_to_look_at_all_files(lake: Lake) -> None:
    path = write(lake, "a", "text")
    publish(lake)
    content = bytearray(index_path(lake).read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    index_path(lake).write_bytes(bytes(content))
    assert list(IndexedLake(lake).partitions("responses")) == [[path]]
    index_path(lake).unlink()
    with closing(copied_index(lake)) as connection:
        assert Index(connection).rows("select * from files") == []
