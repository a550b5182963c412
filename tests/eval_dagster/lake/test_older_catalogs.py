"""Catalogs that earlier versions of this package wrote can be queried, and versions of DuckDB that do not fit are named."""

import shutil
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest

from eval_dagster.errors import LakeError, QueryError
from eval_dagster.lake.catalog import publishing, relations, sessions
from eval_dagster.lake.catalog.catalog import CatalogReader, connect, read_rows, refresh
from eval_dagster.lake.catalog.index import Indexed
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.catalog.relations import build
from eval_dagster.lake.catalog.sessions import LakeFileSystem, quoted, quoted_list, url_of
from eval_dagster.lake.files import Lake, catalog_path, table_of
from eval_dagster.lake.format.parquet_files import FileInfo

HISTORY = "select h.value, m.scores_file from scores_history h join _metrics_files m using (materialized_at) order by materialized_at"
HISTORY_NOW = HISTORY.replace("_metrics_files", "internal._metrics_files")
NIGHT = "2026-01-31"


class WithoutInternal:
    """A connection to a catalog before format 9, which has no schema of its own for what is not for people."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, query: str, *parameters: Any) -> duckdb.DuckDBPyConnection:
        if "create schema" in query:
            return self._connection
        return self._connection.execute(query.replace("internal.", ""), *parameters)


def write(lake: Lake, value: float) -> str:
    """Write scores and their metrics; the path of the scores in the lake."""
    key, at = {"eval": "it's", "model": "m"}, lake.next_time("scores", "it's", "m")
    info = FileInfo(fingerprint="f", version="v", run_id="r", materialized_at=at)
    row = {**key, "sample_id": "s", "metric": "accuracy", "value": value}
    scores = lake.write("scores", table_of("scores", [row]), eval_name="it's", model="m", info=info).path
    path = str(scores.relative_to(lake.root))
    measured = {**key, "metric": "accuracy", "n": 1, "scores_file": path, "materialized_at": datetime.fromisoformat(at)}
    lake.write("metrics", table_of("metrics", [measured]), eval_name="it's", model="m", info=info)
    return path


def scans_of_format_5(root: Path, files: Sequence[Indexed], *, source: str | None = None) -> list[str]:
    """The queries of files as format 5 had them."""
    urls = quoted_list(url_of(root / each.path) for each in files)
    path = f"exclude (filename), replace(replace(filename, 'file://', ''), '{quoted(root)}/', '') as {source}" if source else ""
    scan = f"read_parquet({urls}, hive_partitioning = false, filename = {str(source is not None).lower()})"
    return [f"select * {path} from {scan}"] if files else []


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A lake in a folder whose name has a quote and a letter that some systems write as two."""
    return Lake(tmp_path / "o\u0308'clock")


@pytest.fixture
def expected(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, str]]:
    """Two results, published in format 5."""
    rows = [(value, write(lake, value)) for value in (0.0, 1.0)]
    with monkeypatch.context() as earlier:
        earlier.setattr(relations, "_scans", scans_of_format_5)
        for module in (relations, publishing):
            earlier.setattr(module, "FORMAT", 5)
        earlier.setattr(publishing, "build", lambda connection, *arguments: build(WithoutInternal(connection), *arguments))  # type: ignore[arg-type]
        publish(lake)
    with duckdb.connect(str(catalog_path(lake)), read_only=True) as stock:
        assert "'file://'" in stock.execute("select sql from duckdb_views() where view_name = '_all_scores'").fetchall()[0][0]
    return rows


def test_a_session_reads_a_catalog_of_format_5(lake: Lake, expected: list[tuple[float, str]]) -> None:
    with connect(lake) as session:
        assert session.execute("select scores_file from _all_scores order by scores_file").fetchall() == [(path,) for _, path in expected]
        assert session.execute(HISTORY).fetchall() == expected
        assert session.execute("select value from scores").fetchall() == [(1.0,)]


def test_pages_read_a_catalog_of_format_5(lake: Lake, expected: list[tuple[float, str]]) -> None:
    reader = CatalogReader(lake)
    try:
        with reader.state() as state:
            assert [tuple(row.values()) for row in state.rows(HISTORY)] == expected
    finally:
        reader.close()


@pytest.mark.long
def test_the_catalog_of_a_past_day_stays_readable(lake: Lake, expected: list[tuple[float, str]]) -> None:
    past = lake.home / "catalogs" / f"{NIGHT}.duckdb"
    past.parent.mkdir()
    shutil.copy2(catalog_path(lake), past)
    write(lake, 2.0)
    publish(lake)
    assert len(read_rows(lake, HISTORY_NOW)) == 3
    assert [tuple(row.values()) for row in read_rows(lake, HISTORY, past=past)] == expected


def test_a_past_day_with_a_deleted_file_is_read_but_for_that(lake: Lake, expected: list[tuple[float, str]]) -> None:
    past = lake.home / "catalogs" / f"{NIGHT}.duckdb"
    past.parent.mkdir()
    shutil.copy2(catalog_path(lake), past)
    (lake.root / expected[0][1]).unlink()
    assert len(read_rows(lake, "select * from metrics_history", past=past)) == 2
    with pytest.raises(LakeError, match=f"the state of {NIGHT} cannot be read whole: .*{Path(expected[0][1]).name} is missing"):
        read_rows(lake, HISTORY, past=past)


@pytest.mark.long
def test_a_catalog_of_format_5_is_made_again(lake: Lake, expected: list[tuple[float, str]]) -> None:
    assert refresh(lake)
    assert read_rows(lake, "select version from internal._catalog_format") == [{"version": relations.FORMAT}]
    assert [tuple(row.values()) for row in read_rows(lake, HISTORY_NOW)] == expected


def test_any_duckdb_reads_a_new_catalog(lake: Lake) -> None:
    expected = [(value, write(lake, value)) for value in (0.0, 1.0)]
    publish(lake)
    with duckdb.connect(str(catalog_path(lake)), read_only=True) as stock:
        assert stock.execute(HISTORY_NOW).fetchall() == expected
        named = stock.execute("select distinct scores_file from internal._all_scores order by 1").fetchall()
    assert named == [(path,) for _, path in expected]


def test_the_tables_that_a_session_lists_are_those_for_people(lake: Lake) -> None:
    """Documented ones alone, in any client; pages find the others, too."""
    write(lake, 1.0)
    publish(lake)
    with duckdb.connect(str(catalog_path(lake)), read_only=True) as stock, connect(lake) as held:
        for session in (stock, held):
            names = [name for (name,) in session.execute("show tables").fetchall()]
            assert {"leaderboard", "metrics", "scores_history"} < set(names)
            assert [name for name in names if name.startswith("_")] == []
    reader = CatalogReader(lake)
    try:
        with reader.state() as state:
            assert len(state.rows(HISTORY)) == 1
    finally:
        reader.close()


def test_a_catalog_is_not_opened_where_duckdb_looks_up_files_otherwise(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(lake)
    monkeypatch.setattr(LakeFileSystem, "protocol", "lake")
    with pytest.raises(QueryError, match=rf"DuckDB {duckdb.__version__}, .* cannot read the lake; .*pip install duckdb=="):
        connect(lake)


def test_a_catalog_is_not_opened_where_other_files_can_be_read(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(lake)
    monkeypatch.setattr(sessions, "_LOCAL_FILES", "")
    with pytest.raises(QueryError, match="cannot keep queries from other files"):
        connect(lake)


@pytest.mark.long
def test_views_and_macros_call_what_duckdb_1_knows(lake: Lake, expected: list[tuple[float, str]]) -> None:
    """DuckDB 2 keeps `if(...)` as the call of a function that version 1 has not, and other programs may be of version 1."""
    refresh(lake)
    with duckdb.connect(str(catalog_path(lake)), read_only=True) as stock:
        views = stock.execute("select view_name, sql from duckdb_views() where not internal").fetchall()
        macros = stock.execute("select function_name, macro_definition from duckdb_functions() where not internal").fetchall()
    assert len(views) > 20
    assert macros
    assert [name for name, sql in [*views, *macros] if '"if"(' in (sql or "")] == []
