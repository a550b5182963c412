"""Events that are stored over kept connections are those that Dagster stores over its own."""

import os
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from eval_dagster.assets.instance.instance import prepare_instance
from eval_dagster.assets.instance.instance_store import kept_connections

KEYS = [f"e{number}|m" for number in range(5)]
OUTPUTS, LOST = (dg.AssetKey(name) for name in ("outputs", "lost"))


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dg.DagsterInstance]:
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGSTER_HOME", str(home / "dagster"))
        prepare_instance(home)
        with dg.DagsterInstance.get() as instance:
            yield instance


def test_one_connection_to_each_file_stores_all_events(instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: Counter[str] = Counter()
    connect = sqlite3.dbapi2.connect

    def counted(path: str, **options: object) -> sqlite3.Connection:
        opened[Path(path).name] += 1
        return connect(path, **options)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(sqlite3.dbapi2, "connect", counted)
    with kept_connections(instance):
        for key in KEYS:
            instance.report_runless_asset_event(dg.AssetMaterialization(OUTPUTS, partition=key, tags={"dagster/data_version": key}))
        with kept_connections(instance):  # as in a step of a run that a command started
            assert instance.get_materialized_partitions(OUTPUTS) == set(KEYS)
    assert opened["index.db"] == 2, "one for all events, and one that looks for a table once"
    with dg.DagsterInstance.get() as other:
        assert other.get_materialized_partitions(OUTPUTS) == set(KEYS)
    before = opened["index.db"]
    instance.report_runless_asset_event(dg.AssetMaterialization(OUTPUTS, partition="late|m"))
    assert opened["index.db"] > before, "after the block Dagster opens its own"


def test_events_go_into_the_file_that_replaced_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "dagster"))
    prepare_instance(tmp_path)
    with dg.DagsterInstance.get() as instance:
        with kept_connections(instance):
            instance.report_runless_asset_event(dg.AssetMaterialization(OUTPUTS, partition="before|m"))
            [file] = (tmp_path / "dagster").rglob("index.db")
            for path in file.parent.glob("index.db*"):
                path.rename(path.with_name(f"damaged-{path.name}"))
            instance.report_runless_asset_event(dg.AssetMaterialization(OUTPUTS, partition="after|m"))
        assert instance.get_materialized_partitions(OUTPUTS) == {"after|m"}


def test_a_killed_process_loses_no_event(instance: dg.DagsterInstance) -> None:
    child = os.fork()
    if child == 0:
        with kept_connections(instance):
            instance.report_runless_asset_event(dg.AssetMaterialization(LOST, partition=KEYS[0]))
            os._exit(0)  # closes nothing
    os.waitpid(child, 0)
    assert instance.get_materialized_partitions(LOST) == {KEYS[0]}
