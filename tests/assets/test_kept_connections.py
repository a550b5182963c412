"""Events that are stored over kept connections are those that Dagster stores over its own."""

import os
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.events import AssetMaterializationPlannedData, DagsterEvent

from eval_dagster.assets.instance.instance import prepare_instance
from eval_dagster.assets.instance.instance_store import kept_connections

KEYS = [f"e{number}|m" for number in range(5)]
OUTPUTS, PLANNED, LOST = (dg.AssetKey(name) for name in ("outputs", "planned", "lost"))


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dg.DagsterInstance]:
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGSTER_HOME", str(home / "dagster"))
        prepare_instance(home)
        with dg.DagsterInstance.get() as instance:
            yield instance


def planned(run_id: str, keys: list[str]) -> list[dg.EventLogEntry]:
    events = [
        DagsterEvent.build_asset_materialization_planned_event("job", "step", AssetMaterializationPlannedData(PLANNED, key)) for key in keys
    ]
    return [dg.EventLogEntry(None, 10, "", run_id, 1.0, "step", "job", event) for event in events]  # type: ignore[no-untyped-call]


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


def test_planned_partitions_are_stored_as_dagster_stores_them(instance: dg.DagsterInstance) -> None:
    def newest() -> Mapping[str, int]:
        kind = dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED
        return instance.event_log_storage.get_latest_storage_id_by_partition(PLANNED, kind)

    instance.event_log_storage.store_event_batch(planned("one", KEYS))
    before = newest()
    with kept_connections(instance):
        instance.event_log_storage.store_event_batch(planned("two", KEYS))
    for run in ("one", "two"):
        assert instance.event_log_storage.get_asset_partitions_for_run(run) == {PLANNED: set(KEYS)}
    assert sorted(newest()) == sorted(before) == KEYS
    assert min(newest().values()) > max(before.values())
    [record] = instance.get_asset_records([PLANNED])
    assert record.asset_entry.last_run_id == "two"


def test_other_events_of_a_batch_are_stored_one_by_one(instance: dg.DagsterInstance) -> None:
    with kept_connections(instance):
        instance.event_log_storage.store_event_batch([*planned("three", KEYS[:1]), *planned("four", KEYS[1:2])])
    found = [instance.event_log_storage.get_asset_partitions_for_run(run) for run in ("three", "four")]
    assert found == [{PLANNED: {KEYS[0]}}, {PLANNED: {KEYS[1]}}]


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
