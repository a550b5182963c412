"""New homes have copies of empty databases that the user's cache keeps."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import dagster as dg
import pytest
from mlflow import MlflowClient

from eval_dagster.assets.instance import instance_store
from eval_dagster.stores.sqlite_files import make_empty
from eval_dagster.tracking import store


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "eval_dagster" / "stores"


def maker(calls: list[Path]) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        calls.append(path)
        with closing(sqlite3.connect(path)) as database:
            database.execute("pragma journal_mode = wal")
            database.execute("create table runs (id text)")

    return make


def tables(path: Path) -> list[tuple[str]]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute("select name from sqlite_master").fetchall()


def test_the_second_database_is_a_copy(cache: Path, tmp_path: Path) -> None:
    calls: list[Path] = []
    for name in ("a.db", "b.db"):
        make_empty(tmp_path / name, "runs-1", maker(calls))
    assert calls == [tmp_path / "a.db"]
    assert tables(tmp_path / "a.db") == tables(tmp_path / "b.db") == [("runs",)]
    assert len(list(cache.iterdir())) == 1


def test_another_release_has_a_database_of_its_own(cache: Path, tmp_path: Path) -> None:
    calls: list[Path] = []
    for release in ("1", "1.1", "2"):
        make_empty(tmp_path / release, f"runs-{release}", maker(calls))
    assert len(calls) == 3
    assert len(list(cache.iterdir())) == 3


@pytest.mark.parametrize("damage", [lambda content: b"", lambda content: content[:-1], lambda content: content.replace(b"runs", b"nuns")])
def test_a_damaged_copy_is_not_used(cache: Path, tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    calls: list[Path] = []
    make_empty(tmp_path / "a.db", "runs-1", maker(calls))
    (kept,) = cache.iterdir()
    kept.write_bytes(damage(kept.read_bytes()))
    make_empty(tmp_path / "b.db", "runs-1", maker(calls))
    make_empty(tmp_path / "c.db", "runs-1", maker(calls))
    assert calls == [tmp_path / "a.db", tmp_path / "b.db"], "the new one takes the place of the damaged one"
    assert tables(tmp_path / "b.db") == tables(tmp_path / "c.db") == [("runs",)]


def test_without_a_cache_it_is_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    calls: list[Path] = []
    for name in ("a.db", "b.db"):
        make_empty(tmp_path / name, "runs-1", maker(calls))
    assert len(calls) == 2
    assert tables(tmp_path / "b.db") == [("runs",)]


@pytest.mark.long
def test_the_second_home_opens_its_stores_without_creating_tables(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def homes(name: str) -> None:
        (tmp_path / name / "dagster").mkdir(parents=True)
        store.ensure_store(tmp_path / name / "mlflow.db")
        instance_store.ensure_databases(tmp_path / name / "dagster")

    homes("first")
    assert len(list(cache.iterdir())) == 4
    monkeypatch.setattr(store, "_open_with_mlflow", None)
    monkeypatch.setattr(instance_store, "_make_with_dagster", lambda *_: pytest.fail("created"))
    homes("second")
    assert not caplog.records, "nothing is said of a store that was made elsewhere"

    client = MlflowClient(f"sqlite:///{tmp_path / 'second' / 'mlflow.db'}")
    experiments = {name: MlflowClient(f"sqlite:///{tmp_path / name / 'mlflow.db'}").get_experiment("0") for name in ("first", "second")}
    assert experiments["second"].artifact_location == f"{(tmp_path / 'second' / 'mlartifacts').as_uri()}/0"
    assert experiments["second"].creation_time > experiments["first"].creation_time
    run = client.create_run("0")
    assert (tmp_path / "second").as_uri() in run.info.artifact_uri

    ids = []
    for name in ("first", "second"):
        with dg.DagsterInstance.local_temp(str(tmp_path / name / "dagster")) as instance:
            assert instance.get_runs() == []
            ids.append(instance.run_storage.get_run_storage_id())
    assert ids[0] != ids[1]
