"""Queries that somebody else wrote: whatever they say, they read results and nothing else."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import duckdb
import psutil
import pyarrow.parquet as pq
import pytest
from small_lakes import SAMPLES, make_home, tree

import eval_dagster
from eval_dagster.cli.sql import run_query
from eval_dagster.cli.tables import Format
from eval_dagster.errors import QueryError, UsageError
from eval_dagster.lake.catalog import sessions
from eval_dagster.lake.catalog.catalog import connect, read_rows
from eval_dagster.lake.files import Lake

REACHING_OUT = [
    "copy (select 42 as x) to '{outside}/x.csv'",
    "copy (select 42 as x) to '{outside}/x.parquet'",
    "copy (select 42 as x) to '{lake}/x.parquet'",
    "copy (select 42 as x) to 'file://{lake}/x.parquet'",
    "copy (select 42 as x) to 'file://{lake}/x.parquet' (use_tmp_file false)",
    "copy (select 42 as x) to 'lake://{lake}/x.parquet'",
    "copy (select 42 as x) to 'lake://{lake}/x.parquet' (use_tmp_file false)",
    "copy (select 42 as x) to '{lake}/d' (format parquet, partition_by (x))",
    "copy (select 42 as x) to '{scores}'",
    "copy (select 42 as x) to 'file://{scores}' (use_tmp_file false)",
    "copy (select 42 as x) to 'file:{scores}' (use_tmp_file false)",
    "copy (select 42 as x) to 'file://localhost{scores}' (use_tmp_file false)",
    "copy (select 42 as x) to 'lake://{scores}' (use_tmp_file false)",
    "copy (select 42 as x) to 'lake://{lake}/scores' (format parquet, partition_by (x), overwrite)",
    "copy (select 42 as x) to '/dev/stdout'",
    "with x as (copy (select 42 as x) to '{outside}/x.parquet') from x",
    "with x as (copy (select 42 as x) to 'file://{scores}') from x",
    "explain analyze copy (select 42 as x) to '{outside}/x.parquet'",
    "prepare p as copy (select 42 as x) to '{outside}/x.parquet'; execute p",
    "from query('with x as (copy (select 42) to ''{outside}/x.csv'') from x')",
    "export database '{outside}/all'",
    "export database 'file://{lake}/all'",
    "export database 'lake://{lake}/all'",
    "from read_text('{secret}')",
    "from read_text('file://{secret}')",
    "from read_text('file:{secret}')",
    "from read_text('file://localhost{secret}')",
    "from read_text('lake://{secret}')",
    "from read_text('lake://file://{secret}')",
    "from read_text('lake://localhost{secret}')",
    "from read_blob('file://{lake}/../../secret.txt')",
    "from read_blob('lake://{lake}/../../secret.txt')",
    "from read_csv('{secret}', header = false)",
    "from '{secret}'",
    "from read_parquet('file://{outside}/other.parquet')",
    "from read_parquet('file:{outside}/other.parquet')",
    "from read_parquet('file://localhost{outside}/other.parquet')",
    "from read_parquet('lake://{outside}/other.parquet')",
    "from read_parquet('lake://{lake}/../../outside/other.parquet')",
    "from read_parquet('file://{lake}/../../outside/other.parquet')",
    "from read_parquet('{outside}/other.parquet')",
    "from read_parquet('{scores}')",
    "from read_parquet('file:{scores}')",
    "from glob('{outside}/*')",
    "from glob('file:{outside}/*')",
    "from glob('file://{outside}/*')",
    "from glob('lake://{outside}/*')",
    "from glob('file://{lake}/../../*')",
    "from glob('lake://{lake}/../../*')",
    "from read_json('{secret}')",
    "from sniff_csv('{secret}')",
    "from parquet_metadata('{outside}/other.parquet')",
    "create temp table t as select 1; copy t from '{secret}'",
    "create table t as select 1",
    "delete from metrics",
    "drop view scores",
    "insert into metrics select * from metrics",
    "attach '{outside}/x.duckdb'",
    "attach '{outside}/x.duckdb' (read_only)",
    "attach '{home}/evals.duckdb' as again (read_only)",
    "attach 'file://{home}/evals.duckdb' as again (read_only)",
    "attach 'lake://{home}/evals.duckdb' as again (read_only)",
    "attach 'lake://{lake}/x.duckdb'",
    "attach 'sqlite:x'",
    "attach 'postgres:host=127.0.0.1'",
    "attach 'https://127.0.0.1:1/x.duckdb'",
    "from 'https://127.0.0.1:1/x.parquet'",
    "from 's3://bucket/x.parquet'",
    "from read_duckdb('{home}/evals.duckdb')",
    "install httpfs",
    "load httpfs",
    "load '{outside}/x.duckdb_extension'",
    "install spatial from community",
    "import database '{outside}'",
    "set enable_external_access = true",
    "reset disabled_filesystems",
    "set disabled_filesystems = ''",
    "set lock_configuration = false",
    "set temp_directory = '{outside}'",
    "set log_query_path = '{outside}/log'",
    "set secret_directory = '{outside}'",
    "pragma profiling_output = '{outside}/profile'",
    "pragma enable_profiling",
    "call enable_logging('QueryLog', storage = 'file', storage_path = '{outside}/log')",
    "from enable_profiling(format = 'json', save_location = '{outside}/profile')",
    "create persistent secret s (type http)",
    "from local_variable",
    "set memory_limit = '1TB'",
    "set threads = 1000",
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Results, with a secret and a foreign table beside them."""
    folder = tmp_path_factory.mktemp("walls")
    (folder / "secret.txt").write_text("the secret")
    (folder / "outside").mkdir()
    with duckdb.connect() as free:
        free.execute(f"copy (select 'the secret' as x) to '{folder}/outside/other.parquet'")
    return make_home(folder)


@pytest.fixture
def lake(results: Lake, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """The same, as the command line finds them."""
    folder = results.home.parent
    monkeypatch.setenv("EVAL_DAGSTER_CONFIG", str(folder / "evals.yaml"))
    monkeypatch.setenv("EVAL_DAGSTER_HOME", str(results.home))
    monkeypatch.chdir(folder / "outside")
    return results


@pytest.mark.long
@pytest.mark.parametrize("open_session", [lambda lake: connect(lake), lambda lake: eval_dagster.connect(lake.home)])
def test_no_statement_reaches_beyond_the_results(lake: Lake, open_session: Callable[[Lake], duckdb.DuckDBPyConnection]) -> None:
    folder = lake.home.parent
    scores = min((lake.root / "scores").rglob("*.parquet"))
    names = {"outside": folder / "outside", "lake": lake.root, "home": lake.home, "scores": scores, "secret": folder / "secret.txt"}
    local_variable = [1]  # noqa: F841 - which a statement tries to read
    before = tree(folder)
    with open_session(lake) as session:
        for template in REACHING_OUT:
            statement = template.format(**names)
            with pytest.raises(duckdb.Error) as refusal:
                session.execute(statement).fetchall()
            assert "the secret" not in str(refusal.value), statement
            assert "ownload" not in str(refusal.value), f"{statement}: a server was asked"
            assert tree(folder) == before, statement
        assert session.execute("select count(*) from scores").fetchall() == [(2 * SAMPLES,)], "the results are there all the same"
    assert sorted(Path.home().glob(".duckdb/*secrets*/*")) == [], "no secret is kept"


@pytest.mark.long
def test_the_results_can_be_read_whole(lake: Lake) -> None:
    with connect(lake) as session:
        relations = session.execute("select table_schema, table_name from information_schema.tables").fetchall()
        assert {("main", name) for name in ("scores", "scores_history", "leaderboard", "sample_results")} <= set(relations)
        for schema, name in relations:
            session.execute(f'select * from "{schema}"."{name}"').fetchall()
        assert session.execute("select n_common from paired_difference('a', 'b')").fetchall() == [(SAMPLES,)]
        [name] = {name for (name,) in session.execute("select scores_file from internal._all_scores where model = 'a'").fetchall()}
        for scheme in ("file", "lake"):
            file = f"{scheme}://{lake.root}/{name}"
            assert session.execute(f"select count(*) from read_parquet('{file}')").fetchall() == [(SAMPLES,)]
            assert session.execute(f"select distinct filename from read_parquet('{file}')").fetchall() == [(f"lake://{lake.root}/{name}",)]
            files = session.execute(f"select count(*) from glob('{scheme}://{lake.root}/scores/**/*.parquet')").fetchall()
            assert files == [(2,)]


@pytest.mark.long
def test_a_refusal_says_how_to_write_the_rows(lake: Lake, tmp_path: Path) -> None:
    for statement in (f"copy (select 42) to '{tmp_path}/x.csv'", "attach 'sqlite:x'", f"from read_text('file://{tmp_path}/secret.txt')"):
        with pytest.raises(QueryError, match=r"--output FILE.*--unsafe") as refusal:
            run_query(statement, None, trial=False, file=None, unsafe=False)
        assert "Traceback" not in str(refusal.value)
        assert "\n" not in str(refusal.value)


def test_unsafe_is_what_it_says(lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_query(f"copy (select count(*) as n from scores) to '{tmp_path}/x.csv'", None, trial=False, file=None, unsafe=True)
    assert (tmp_path / "x.csv").read_text() == f"n\n{2 * SAMPLES}\n"
    with pytest.raises(QueryError):
        run_query("delete from metrics", None, trial=False, file=None, unsafe=True)


def _export(query: str, file: Path) -> None:
    run_query(query, None, trial=False, file=file, unsafe=False)


def test_rows_are_written_to_a_file_by_its_suffix(lake: Lake, tmp_path: Path) -> None:
    query = "select sample_id, value from scores where model = 'a' order by sample_id"
    expected = [(row["sample_id"], row["value"]) for row in read_rows(lake, query)]
    for name in ("rows.csv", "rows.json", "rows.parquet"):
        _export(query, tmp_path / name)
    assert [tuple(row.values()) for row in pq.read_table(tmp_path / "rows.parquet").to_pylist()] == expected
    assert [tuple(row.values()) for row in json.loads((tmp_path / "rows.json").read_text())] == expected
    lines = (tmp_path / "rows.csv").read_text().splitlines()
    assert lines == ["sample_id,value", *(f"{name},{value}" for name, value in expected)]
    _export("select 1 as x where false", tmp_path / "rows.json")
    assert json.loads((tmp_path / "rows.json").read_text()) == []


@pytest.mark.parametrize(
    ("name", "query", "part"),
    [
        ("rows.xlsx", "select 1", r"\.csv, \.json, \.parquet"),
        ("nowhere/rows.csv", "select 1", "existing folder"),
        ("home/lake/metrics/rows.parquet", "select 1", "contains the results"),
        ("rows.csv", "select wrong", "wrong"),
        ("rows.csv", "select error('late') from range(100000) where range = 99999", "late"),
        ("rows.parquet", "select interval 1 day as x", "Parquet"),
        ("rows.csv", "-- nothing", "no rows"),
    ],
)
def test_a_file_is_written_whole_or_not_at_all(lake: Lake, tmp_path: Path, name: str, query: str, part: str) -> None:
    (tmp_path / "rows.csv").write_text("kept")
    before = tree(tmp_path) | tree(lake.home)
    with pytest.raises(UsageError, match=part):
        _export(query, (lake.home.parent if name.startswith("home") else tmp_path) / name)
    assert tree(tmp_path) | tree(lake.home) == before


@pytest.mark.parametrize("query", ["", " ", ";", "select \udcff"])
def test_what_is_no_query_is_said_so(lake: Lake, query: str) -> None:
    with pytest.raises(QueryError, match=r"empty query|no UTF-8"):
        run_query(query, None, trial=False, file=None, unsafe=False)


def test_rows_without_end_are_counted_no_further_than_they_are_of_use(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    run_query("from range(100000000000)", Format.TABLE, trial=False, file=None, unsafe=False)
    assert "50 of more than 1,000,050 rows" in capsys.readouterr().out


def test_a_query_that_needs_too_much_memory_ends_alone(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_MEMORY_SHARE", 0.0)  # which leaves it the least that it may have
    before = tree(lake.home)
    with pytest.raises(QueryError, match="more memory than there is"):
        run_query("select list(repeat('x', 1000) || range) from range(1000000)", None, trial=False, file=None, unsafe=False)
    assert tree(lake.home) == before


@pytest.mark.long
@pytest.mark.e2e
@pytest.mark.parametrize(
    "query", ["select sum(hash(a.range, b.range)) from range(10000000) a, range(10000000) b", "select sleep_ms(60000)"]
)
def test_an_interrupt_ends_a_runaway_query_with_one_line(lake: Lake, query: str, wait_for_query: Callable[[int], None]) -> None:
    command = [sys.executable, "-m", "eval_dagster.cli", "sql", query]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        wait_for_query(process.pid)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert (output, errors) == ("", "interrupted\n")


@pytest.fixture
def wait_for_query() -> Callable[[int], None]:
    """A function that waits until a child of a process has the catalog open, and a moment more."""

    def opened(pid: int) -> list[str]:
        found = []
        for child in psutil.Process(pid).children():
            with suppress(psutil.Error):
                found += [file.path for file in child.open_files()]
        return found

    def wait(pid: int) -> None:
        deadline = time.monotonic() + 60
        while not any(path.endswith("evals.duckdb") for path in opened(pid)):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(1)

    return wait
