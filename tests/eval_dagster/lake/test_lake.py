"""The lake under damage, foreign writers, a clock set back, and merging."""

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest

from eval_dagster.errors import LakeError, QueryError
from eval_dagster.lake import files
from eval_dagster.lake.answers import responses
from eval_dagster.lake.answers.responses import ResponseCache
from eval_dagster.lake.catalog import publishing
from eval_dagster.lake.catalog.catalog import connect, read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.files import Lake, catalog_path, table_of
from eval_dagster.lake.format.parquet_files import FileInfo
from eval_dagster.lake.tables.rows import response_row
from eval_dagster.records import ModelResponse


def _write(lake: Lake, value: float, eval_name: str = "e") -> Path:
    """A materialization of scores and metrics with one sample."""
    key = {"eval": eval_name, "model": "m"}
    time = lake.next_time("scores", eval_name, "m")
    info = FileInfo(fingerprint=str(value), version=str(value), run_id="run", materialized_at=time)
    score = {**key, "sample_id": "s", "metric": "accuracy", "value": value}
    scores = lake.write("scores", table_of("scores", [score]), eval_name=eval_name, model="m", info=info)
    time = lake.next_time("metrics", eval_name, "m")
    info = FileInfo(fingerprint=str(value), version=str(value), run_id="run", materialized_at=time)
    metric = {
        **key,
        "metric": "accuracy",
        "value": value,
        "n": 1,
        "n_errors": 0,
        "higher_is_better": True,
        "is_headline": True,
        "materialized_at": datetime.fromisoformat(time),
        "scores_file": str(scores.path.relative_to(lake.root)),
    }
    return lake.write("metrics", table_of("metrics", [metric]), eval_name=eval_name, model="m", info=info).path


def _damage_behind_the_footer(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4:120] = bytes(116)
    path.write_bytes(bytes(content))


def test_an_empty_lake_has_all_relations(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    with pytest.raises(QueryError, match="nothing to query yet"):
        connect(lake)
    assert publish(lake) == []
    for name in ("samples", "prompts", "responses", "scores", "metrics", "metrics_history", "scores_history", "leaderboard"):
        assert read_rows(lake, f"select * from {name}") == []


def test_history_keeps_every_materialization_and_the_rest_is_current(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    _write(lake, 0.0)
    _write(lake, 1.0)
    publish(lake)
    assert read_rows(lake, "select value from scores") == [{"value": 1.0}]
    assert read_rows(lake, "select value from metrics") == [{"value": 1.0}]
    history = "select value from {} order by materialized_at"
    assert [row["value"] for row in read_rows(lake, history.format("metrics_history"))] == [0.0, 1.0]
    assert [row["value"] for row in read_rows(lake, history.format("scores_history"))] == [0.0, 1.0]


def test_scores_appear_with_their_metrics(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    _write(lake, 0.0).unlink()
    publish(lake)
    assert read_rows(lake, "select * from scores") == []


@pytest.mark.long
@pytest.mark.parametrize("damage", [_damage_behind_the_footer, lambda path: path.write_bytes(b"PAR1")])
def test_a_damaged_file_leaves_out_its_partition_alone(tmp_path: Path, damage: Any) -> None:
    lake = Lake(tmp_path)
    _write(lake, 0.0, "hurt")
    hurt = _write(lake, 1.0, "hurt")
    _write(lake, 1.0, "sound")
    damage(hurt)
    [message] = publish(lake)
    assert str(hurt) in message
    assert "delete it" in message
    assert read_rows(lake, "select eval from metrics") == [{"eval": "sound"}], "an older file must not pass for the current one"
    assert read_rows(lake, "select eval from scores") == [{"eval": "sound"}]
    assert read_rows(lake, "select path from damaged_files") == [{"path": str(hurt)}]
    hurt.unlink()
    assert publish(lake) == []


@pytest.mark.long
def test_what_somebody_wrote_into_the_catalog_does_not_survive_a_publication(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    _write(lake, 1.0)
    publish(lake)
    catalog_path(lake).chmod(0o644)
    # Ends without closing, as a killed session does, so that its log of changes stays.
    script = f"""
import duckdb, os
connection = duckdb.connect({str(catalog_path(lake))!r})
connection.execute("delete from internal._current_metrics")
connection.execute("create table notes as select 1")
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
    assert publishing._log_of_changes(catalog_path(lake)).exists()
    publish(lake)
    assert len(read_rows(lake, "select * from metrics")) == 1
    with connect(lake) as connection, pytest.raises(duckdb.CatalogException):
        connection.execute("select * from notes")


def test_a_catalog_of_the_same_files_is_left_as_it_is(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    kept = _write(lake, 1.0)
    publish(lake)
    before = catalog_path(lake).stat().st_ino
    publish(lake)
    assert catalog_path(lake).stat().st_ino == before
    # Written anew under its name, as nobody should.
    again = kept.with_name(".again")
    again.write_bytes(kept.read_bytes())
    again.replace(kept)
    publish(lake)
    assert catalog_path(lake).stat().st_ino != before
    catalog_path(lake).unlink()
    publish(lake)
    assert read_rows(lake, "select value from metrics") == [{"value": 1.0}]


def test_a_damage_is_said_each_time(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    _damage_behind_the_footer(_write(lake, 1.0))
    assert publish(lake) == publish(lake) != []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write any file")
def test_the_catalog_cannot_be_opened_for_writing(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    publish(lake)
    with pytest.raises(duckdb.Error):
        duckdb.connect(str(catalog_path(lake)))


def test_a_catalog_open_for_writing_elsewhere_is_said_so(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    publish(lake)
    catalog_path(lake).chmod(0o644)
    script = f"import duckdb, sys; c = duckdb.connect({str(catalog_path(lake))!r}); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout
        assert writer.stdout.readline() == b"open\n"
        with pytest.raises(QueryError, match="read-only"):
            connect(lake)


@pytest.mark.long
def test_the_state_of_a_past_day_is_kept(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    _write(lake, 0.0)
    publish(lake)
    yesterday = datetime(2026, 1, 30, 23, tzinfo=UTC).timestamp()
    os.utime(catalog_path(lake), (yesterday, yesterday))
    _write(lake, 1.0)
    publish(lake)
    with duckdb.connect(str(tmp_path / "catalogs" / "2026-01-30.duckdb"), read_only=True) as connection:
        assert connection.execute("select value from scores").fetchall() == [(0.0,)]
    assert read_rows(lake, "select value from scores") == [{"value": 1.0}]


def test_a_clock_set_back_does_not_bring_back_the_past(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake(tmp_path)
    _write(lake, 0.0)

    class EarlyClock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime(2020, 1, 1, tzinfo=tz)

    monkeypatch.setattr(files, "datetime", EarlyClock)
    _write(lake, 1.0)
    current = lake.current("scores", "e", "m")
    assert current is not None
    assert current.info.version == "1.0"
    publish(lake)
    assert read_rows(lake, "select value from metrics") == [{"value": 1.0}]


def test_a_killed_write_leaves_nothing_that_is_read(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    path = _write(lake, 1.0)
    (path.parent / f".{path.name}.tmp").write_bytes(b"half")
    assert publish(lake) == []
    assert len(read_rows(lake, "select * from metrics")) == 1


def _row(number: int, text: str = "") -> dict[str, Any]:
    return response_row(f"r{number}", ModelResponse(text=[text or str(number)], finish_reason=["stop"]), "v")


def test_the_cache_finds_what_was_flushed_and_merging_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "_MERGE_ABOVE", 3)
    cache = ResponseCache(Lake(tmp_path), "v")
    for number in range(10):
        cache.add([_row(number)], "run")
    wanted = {f"r{number}" for number in range(12)}
    before = cache.find(wanted)
    assert set(before) == {f"r{number}" for number in range(10)}
    cache.merge("run")
    assert len(files.parquet_files(cache.folder)) == 1
    assert cache.find(wanted) == before
    assert ResponseCache(Lake(tmp_path), "other").find(wanted) == {}


def test_which_of_two_answers_counts_does_not_depend_on_files(tmp_path: Path) -> None:
    found = []
    for name, order in (("a", ("x", "y")), ("b", ("y", "x"))):
        cache = ResponseCache(Lake(tmp_path / name), "v")
        for text in order:
            cache.add([_row(1, text)], "run")
        found.append(cache.find({"r1"})["r1"]["text"])
    assert found[0] == found[1]


def test_damage_in_any_column_of_a_cache_file_is_named(tmp_path: Path) -> None:
    cache = ResponseCache(Lake(tmp_path), "v")
    cache.add([_row(number, f"{number}" * 50) for number in range(50)], "run")
    [path] = files.parquet_files(cache.folder)
    content = path.read_bytes()
    for start in (4, len(content) // 8):
        path.write_bytes(content[:start] + bytes(60) + content[start + 60 :])
        with pytest.raises(LakeError, match="delete it"):
            cache.find({"r1"})
