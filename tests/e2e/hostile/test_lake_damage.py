"""Files of the lake that lost bytes, or that somebody else put there: each is named, and no number is made of it."""

import os
import random
import struct
import sys
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
import typer
from few import few
from small_lakes import SAMPLES, make_home, strip_checksum, tree

from eval_dagster.cli.home import verify_home
from eval_dagster.cli.leaderboard import show_leaderboard
from eval_dagster.cli.main import main
from eval_dagster.cli.sql import run_query
from eval_dagster.errors import LakeError
from eval_dagster.lake.answers import responses
from eval_dagster.lake.answers.responses import ResponseCache
from eval_dagster.lake.catalog import scanning
from eval_dagster.lake.catalog.catalog import read_rows, refresh
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.files import Lake, catalog_path, table_of
from eval_dagster.lake.format import damage
from eval_dagster.lake.format.parquet_files import parquet_files, read_info, read_table, write_parquet
from eval_dagster.lake.format.parquet_files import read_rows as rows_of_file
from eval_dagster.lake.records import read_attempts
from eval_dagster.lake.tables.rows import response_row
from eval_dagster.lake.tables.schemas import TABLES
from eval_dagster.records import ModelResponse


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """Results as the command line finds them."""
    monkeypatch.setenv("EVAL_DAGSTER_CONFIG", str(tmp_path / "evals.yaml"))
    monkeypatch.setenv("EVAL_DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(damage, "_VALID_S", 0.0)  # as in a process that starts now
    monkeypatch.setattr(scanning, "_COARSE_NS", 10**12)  # as where a file is written over right after a publication
    return make_home(tmp_path)


def file_of(lake: Lake, table: str, model: str = "a") -> Path:
    [path] = parquet_files(lake.folder(table, "sums", model))
    return path


def flip(path: Path, place: int | None = None) -> None:
    """Change one bit in the middle of the rows, as a disk does it: no time of the file tells."""
    times, content = path.stat(), bytearray(path.read_bytes())
    content[len(content) // 4 if place is None else place] ^= 4
    path.write_bytes(bytes(content))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def ask(query: str) -> None:
    run_query(query, None, trial=False, file=None, unsafe=False)


@pytest.mark.long
def test_a_flipped_bit_in_a_number_is_no_other_number(lake: Lake) -> None:
    path = file_of(lake, "scores")
    chance = random.Random(0)
    rows = [{**row, "value": chance.random()} for row in rows_of_file(path)]
    write_parquet(path, table_of("scores", rows), read_info(path))
    place = path.read_bytes().index(struct.pack("<d", rows[0]["value"]))  # what is random is stored as it is
    flip(path, place + 3)
    assert pq.ParquetFile(path).read().to_pylist()[0]["value"] != rows[0]["value"], "nothing else would notice it"
    with pytest.raises(LakeError, match="do not match their checksum"):
        rows_of_file(path)
    assert read_rows(lake, "select count(*) as n from scores where model = 'a'") == [{"n": 0}]


@pytest.mark.long
def test_flipped_bits_in_responses_are_named_by_queries(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    path = file_of(lake, "responses")
    flip(path)
    ask("select count(*) as n from responses")
    shown = capsys.readouterr()
    assert f"{SAMPLES} " in shown.out.replace("│", " "), "the partition is left out whole"
    assert str(path) in shown.err
    assert "checksum" in shown.err
    assert read_rows(lake, "select path from damaged_files") == [{"path": str(path)}]
    [message] = publish(lake)
    assert str(path) in message


@pytest.mark.long
def test_a_flipped_bit_in_a_past_state_is_left_out_of_its_history(lake: Lake) -> None:
    current = file_of(lake, "scores")
    older = current.with_name("20250101T000000000000Z-older-00000000.parquet")
    write_parquet(older, read_table(current), read_info(current))
    metrics = file_of(lake, "metrics")
    [row] = rows_of_file(metrics)
    rows = [{**row, "scores_file": str(older.relative_to(lake.root))}]
    write_parquet(metrics.with_name("20250101T000000000000Z-older-00000000.parquet"), table_of("metrics", rows), read_info(metrics))
    publish(lake)
    query = "select count(*) as n from scores_history where model = 'a'"
    assert read_rows(lake, "select count(*) as n from internal._all_scores where model = 'a'") == [{"n": 2 * SAMPLES}]
    flip(older)
    assert read_rows(lake, "select count(*) as n from internal._all_scores where model = 'a'") == [{"n": SAMPLES}]
    assert read_rows(lake, "select path from damaged_files") == [{"path": str(older)}]
    assert publish(lake) != [], "what was found once is not forgotten"
    assert read_rows(lake, query) == [{"n": SAMPLES}]


@pytest.mark.long
@pytest.mark.parametrize("content", [b"", b"PAR1", b"\x00" * 4096, b"PAR1" + b"\xff" * 100 + b"PAR1"])
def test_without_its_metrics_a_result_is_damaged_and_not_missing(lake: Lake, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [file_of(lake, "metrics", model) for model in "ab"]
    for path in paths:
        path.write_bytes(content)
    publish(lake)
    with pytest.raises(typer.Exit):
        show_leaderboard(suite=None, evals=[], models=[], everything=False, trial=False, costs=False)
    shown = capsys.readouterr()
    assert "files are damaged" in shown.out
    assert all(str(path) in shown.err for path in paths)
    assert "delete it" in shown.err


@pytest.mark.long
def test_a_deleted_or_damaged_catalog_is_made_anew(lake: Lake) -> None:
    expected = read_rows(lake, "select * from leaderboard")
    path = catalog_path(lake)
    for content in (None, b"", path.read_bytes()[:5000], b"\x00" * 100_000):
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        refresh(lake)
        assert read_rows(lake, "select * from leaderboard") == expected
    content = bytearray(path.read_bytes())
    for start in range(8192, len(content), 4096):
        content[start] ^= 1
    path.chmod(0o644)
    path.write_bytes(bytes(content))
    refresh(lake)
    assert read_rows(lake, "select * from leaderboard") == expected


@pytest.mark.long
@few("table", sorted(TABLES), kept=["responses", "scores", "regressions"])
def test_files_of_others_in_the_lake_are_named_and_change_nothing(lake: Lake, table: str) -> None:
    expected = read_rows(lake, "select * from leaderboard")
    folder = next((path.parent for path in sorted((lake.root / table).rglob("*.parquet"))), lake.folder(table, "sums"))
    folder.mkdir(parents=True, exist_ok=True)
    with duckdb.connect() as free:
        free.execute(f"copy (select 42 as x) to '{folder}/zzz.parquet'")
        # With the name of a lake file, which is newer than all others, and with columns of the table.
        named = folder / "29990101T000000000000Z-run-00000000.parquet"
        free.execute(f"copy (select null as finished_at, 'x' as value, 'sums' as eval, 'a' as model) to '{named}'")
    messages = "\n".join(publish(lake))
    assert str(folder / "zzz.parquet") in messages
    assert str(named) in messages
    assert len(read_attempts(lake)) == 2
    for path in (folder / "zzz.parquet", named):
        path.unlink()
    assert publish(lake) == []
    assert read_rows(lake, "select * from leaderboard") == expected


@pytest.mark.long
def test_a_file_of_another_program_is_damaged(lake: Lake) -> None:
    paths = [file_of(lake, "scores"), file_of(lake, "metrics"), *parquet_files(ResponseCache(lake, "a").folder)]
    for path in paths:
        strip_checksum(path)
        with pytest.raises(LakeError, match=r"is damaged \(it has no checksum of eval-dagster.*delete it") as refusal:
            rows_of_file(path)
        assert str(path) in str(refusal.value)
    assert len(publish(lake)) == 2
    assert read_rows(lake, "select distinct model from leaderboard") == [{"model": "b"}]
    assert read_rows(lake, "select distinct model from scores") == [{"model": "b"}]
    with pytest.raises(LakeError, match="it has no checksum of eval-dagster"):
        ResponseCache(lake, "a").find({"a-s01"})


def test_what_cannot_be_read_is_not_to_be_deleted(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file_of(lake, "scores")

    def refuse(_: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(damage, "verify_file", refuse)
    with pytest.raises(LakeError, match=r"cannot be read .Permission denied") as refusal:
        rows_of_file(path)
    assert "delete" not in str(refusal.value)


def test_merging_does_not_make_damaged_answers_sound(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "_MERGE_ABOVE", 1)
    cache = ResponseCache(lake, "a")
    cache.add([response_row("new", ModelResponse(text=["x"], finish_reason=["stop"]), "a")], "run")
    damaged = parquet_files(cache.folder)[0]
    flip(damaged)
    before = tree(cache.folder)
    with pytest.raises(LakeError, match=str(damaged)):
        cache.merge("run")
    with pytest.raises(LakeError, match=str(damaged)):
        cache.find({"new"})
    assert tree(cache.folder) == before
    damaged.unlink()
    assert set(cache.find({"new"})) == {"new"}


def test_verify_names_and_counts_what_is_damaged(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    verify_home()
    shown = capsys.readouterr()
    assert "files are sound" in shown.out
    damaged = [file_of(lake, "scores"), parquet_files(ResponseCache(lake, "b").folder)[0], file_of(lake, "prompts", "b")]
    for path in damaged:
        flip(path)
    foreign = file_of(lake, "responses")
    strip_checksum(foreign)
    with pytest.raises(typer.Exit) as end:
        verify_home()
    assert end.value.exit_code == 1
    shown = capsys.readouterr()
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in shown.out.splitlines() if line.startswith("│")]
    counts = {row[0]: (row[1], *row[3:]) for row in rows}
    assert [counts[table] for table in ("prompts", "scores", "responses", "response_cache")] == [("2", "1")] * 4
    assert "4 of " in shown.out
    assert sum(line.startswith("damaged: ") for line in shown.err.splitlines()) == 4
    assert all(str(path) in shown.err for path in (*damaged, foreign))


@pytest.mark.parametrize("name", ["a?b", "a*b", "a[b]", "a\\b"])
def test_a_home_that_duckdb_takes_for_another_is_refused(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "evals.yaml").write_text("models: {}\nevals: {}\n")
    monkeypatch.setenv("EVAL_DAGSTER_CONFIG", str(tmp_path / "evals.yaml"))
    monkeypatch.setenv("EVAL_DAGSTER_HOME", str(tmp_path / name))
    monkeypatch.setattr(sys, "argv", ["eval-dagster", "leaderboard"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert "EVAL_DAGSTER_HOME" in capsys.readouterr().err
    assert not (tmp_path / name).exists()


@pytest.mark.long
@few("name", ["a%41", "a'b", "a{b,c}", "é😀", "a b", "a#b", 'a"b', "a;b", "-a", "a=b", "$HOME"], kept=4)
def test_a_home_may_have_any_other_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    lake = make_home(tmp_path / name)
    assert read_rows(lake, "select count(*) as n from scores") == [{"n": 2 * SAMPLES}]
    assert read_rows(lake, "select count(*) as n from scores_history") == [{"n": 2 * SAMPLES}]
    assert read_rows(lake, "select n_common as n from paired_difference('a', 'b')") == [{"n": SAMPLES}]


@pytest.mark.long
def test_a_home_that_was_moved_is_read_where_it_is(lake: Lake, tmp_path: Path) -> None:
    lake.home.rename(tmp_path / "moved")
    moved = Lake(tmp_path / "moved", configured=lake.configured)
    refresh(moved)
    assert read_rows(moved, "select count(*) as n from scores") == [{"n": 2 * SAMPLES}]
    assert read_rows(moved, "select path from damaged_files") == []
