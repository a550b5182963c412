"""Packs: what queries read of them, and what becomes of lost, damaged, unreadable, replaced and copied ones."""

import errno
import os
import shutil
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest

from eval_dagster.errors import LakeError, QueryError
from eval_dagster.lake.catalog import packs, publishing
from eval_dagster.lake.catalog.archives import past_catalog
from eval_dagster.lake.catalog.catalog import executed, read_rows, rows_of
from eval_dagster.lake.catalog.index import Index, index_path
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.catalog.verification import verifiable, verify
from eval_dagster.lake.files import Lake, catalog_path, table_of
from eval_dagster.lake.format import damage
from eval_dagster.lake.format.parquet_files import FileInfo

EVALS = [f"e{number}" for number in range(4)]
QUERY = "select eval, text from responses order by all"
EXPECTED = [{"eval": name, "text": [name]} for name in EVALS]


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A lake whose responses are in one pack."""
    monkeypatch.setattr(packs, "FRESH", 3)
    monkeypatch.setattr(damage, "_VALID_S", 0.0)
    lake = Lake(tmp_path / "home")
    for name in EVALS:
        write(lake, name, name)
    assert publish(lake) == []
    return lake


def write(lake: Lake, name: str, text: str) -> None:
    time = lake.next_time("responses", name, "m")
    info = FileInfo(fingerprint=text, version=text, run_id="run", materialized_at=time)
    rows = table_of("responses", [{"eval": name, "model": "m", "sample_id": "s", "text": [text]}])
    lake.write("responses", rows, eval_name=name, model="m", info=info)


def packs_of(lake: Lake) -> list[Path]:
    return sorted((lake.root / "packs" / "responses").glob("[!.]*.parquet"))


def view(lake: Lake) -> str:
    with duckdb.connect(str(catalog_path(lake)), read_only=True) as connection:
        [(text,)] = connection.execute("select sql from duckdb_views() where view_name = 'responses'").fetchall()
        return str(text)


def test_a_query_reads_the_pack_alone_and_filters_in_it(lake: Lake) -> None:
    assert read_rows(lake, QUERY) == EXPECTED
    assert view(lake).count(".parquet") == 1
    [pack] = packs_of(lake)
    assert pack.name in view(lake)
    with duckdb.connect(str(catalog_path(lake)), read_only=True) as connection:
        plan = connection.execute("explain select text from responses where eval = 'e1' and model = 'm'").fetchall()
    scan = str(plan).partition("READ_PARQUET")[2]
    assert "eval = 'e1'" in scan.replace("\\'", "'"), "the filter is in the scan of the file, below the join"


def test_a_replaced_file_is_hidden_in_its_pack(lake: Lake) -> None:
    write(lake, "e1", "new")
    publish(lake)
    assert len(packs_of(lake)) == 1
    assert [row["text"] for row in read_rows(lake, QUERY)] == [["e0"], ["new"], ["e2"], ["e3"]]


def test_a_damaged_pack_is_named_by_verify_and_made_again_by_a_query(lake: Lake) -> None:
    [pack] = packs_of(lake)
    times, content = pack.stat(), bytearray(pack.read_bytes())
    content[len(content) // 4] ^= 4
    pack.write_bytes(bytes(content))
    os.utime(pack, ns=(times.st_atime_ns, times.st_mtime_ns))
    [found] = [each for each in verify(verifiable([lake]), lambda: None) if each.damage]
    assert (found.what, found.path) == ("packs", pack)
    assert "made again" in str(found.damage)
    assert read_rows(lake, QUERY) == EXPECTED
    assert [path.name for path in packs_of(lake)] != [pack.name]
    assert read_rows(lake, "select * from damaged_files") == []


def test_a_lost_pack_is_made_again(lake: Lake) -> None:
    packs_of(lake)[0].unlink()
    assert read_rows(lake, QUERY) == EXPECTED
    assert len(packs_of(lake)) == 1


@pytest.mark.long
def test_a_copied_home_keeps_its_packs(lake: Lake, tmp_path: Path) -> None:
    shutil.copytree(lake.home, tmp_path / "copy", copy_function=shutil.copyfile)
    copy = Lake(tmp_path / "copy")
    assert publish(copy) == []
    assert [path.name for path in packs_of(copy)] == [path.name for path in packs_of(lake)]
    assert view(copy).count(".parquet") == 1
    assert read_rows(copy, QUERY) == EXPECTED


def test_a_replaced_pack_stays_a_day_and_while_a_past_catalog_may_name_it(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    [old] = packs_of(lake)
    kept = lake.home / "catalogs" / f"{datetime.now(UTC):%Y-%m-%d}.duckdb"
    kept.parent.mkdir()
    shutil.copy2(catalog_path(lake), kept)
    for name in EVALS:
        write(lake, name, f"{name} again")
    publish(lake)
    assert old in packs_of(lake)
    assert old.name not in view(lake)
    monkeypatch.setattr(packs, "GRACE_S", -1.0)
    write(lake, "e0", "third")
    publish(lake)
    assert old in packs_of(lake)
    with duckdb.connect(str(kept), read_only=True) as connection:
        assert connection.execute("select eval from responses order by all").fetchall() == [(name,) for name in EVALS]
    past = time.time() - timedelta(days=3).total_seconds()
    os.utime(kept, (past, past))
    write(lake, "e0", "fourth")
    publish(lake)
    assert old not in packs_of(lake)


@pytest.mark.long
@pytest.mark.parametrize("unsafe", [False, True])
def test_a_query_of_a_past_day_fails_where_a_pack_is_damaged(lake: Lake, unsafe: bool) -> None:
    kept = lake.home / "catalogs" / "2026-01-31.duckdb"
    kept.parent.mkdir()
    shutil.copy2(catalog_path(lake), kept)
    with pytest.raises(QueryError, match=r"no catalog of 2026-01-30: .*; the nearest there is: 2026-01-31$"):
        past_catalog(lake, date(2026, 1, 30))
    past = past_catalog(lake, date(2026, 1, 31))

    def asked() -> list[dict[str, Any]]:
        with executed(lake, QUERY, unsafe=unsafe, past=past) as session:
            return rows_of(session)

    write(lake, "e9", "later")
    publish(lake)
    assert asked() == EXPECTED
    [pack] = packs_of(lake)
    content = bytearray(pack.read_bytes())
    content[len(content) // 4] ^= 4
    pack.write_bytes(bytes(content))
    with pytest.raises(LakeError, match=rf"the state of 2026-01-31 cannot be read whole: the lake file .*{pack.name} is damaged"):
        asked()
    publish(lake, thorough=True)  # which makes another pack
    assert len(read_rows(lake, QUERY)) == 5
    with pytest.raises(LakeError, match=rf"{pack.name} is missing; restore that file from a backup, or query another day"):
        asked()


@pytest.mark.long
@pytest.mark.parametrize("when", ["before it is moved", "before the index is written"])
def test_a_killed_publication_is_repaired_by_the_next(lake: Lake, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    for name in EVALS:
        write(lake, name, f"{name} again")

    def kill(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if when == "before it is moved":
            patch.setattr(publishing, "_move", kill)
        else:
            patch.setattr(Index, "__setitem__", kill)
        with pytest.raises(KeyboardInterrupt):
            publish(lake)
    assert len(packs_of(lake)) == 2, "that of the killed publication is not known"
    assert publish(lake) == []
    assert [row["text"] for row in read_rows(lake, QUERY)] == [[f"{name} again"] for name in EVALS]
    assert publish(lake) == []
    monkeypatch.setattr(packs, "GRACE_S", -1.0)
    write(lake, "e0", "third")
    publish(lake)
    assert len(packs_of(lake)) == 1


def test_packs_that_a_lost_index_does_not_know_stay_a_day(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    [old] = packs_of(lake)
    long_ago = old.with_name(old.name.replace(old.name[:4], "2020"))
    old.rename(long_ago)
    index_path(lake).unlink()
    publish(lake)
    assert long_ago in packs_of(lake), "catalogs and open sessions may name it"
    monkeypatch.setattr(packs, "GRACE_S", -1.0)
    write(lake, "e0", "again")
    publish(lake)
    assert long_ago not in packs_of(lake)


@pytest.mark.long
def test_a_pack_that_cannot_be_read_now_stays_for_catalogs_that_name_it(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    [old] = packs_of(lake)
    sound = damage.verify_file

    def verify_file(path: Path) -> None:
        if path == old:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        sound(path)

    monkeypatch.setattr(damage, "verify_file", verify_file)
    publish(lake, anew=True)
    assert old in packs_of(lake)
    assert old.name not in view(lake)
    assert read_rows(lake, QUERY) == EXPECTED
