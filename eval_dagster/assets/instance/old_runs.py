"""Deletes old runs of a home from its Dagster instance, with their events and logs, and old observations of definitions.

Dagster shows the state of an asset's partition by the newest events of it. So a run that has one of these stays, whatever its age: the
newest materialization, observation or planned materialization of a partition, or the newest evaluation of a check.
"""

import shutil
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import sqlalchemy as sa

from eval_dagster.assets.names import Names
from eval_dagster.assets.provenance import SOURCES
from eval_dagster.assets.tags import CHECKPOINT_TAG, EARLIER_TAGS, HOME_TAG, SINCE_TAG, SUITE_TAG
from eval_dagster.dagster_internals.instances import (
    INDEX_SHARD_NAME,
    AssetCheckExecutionsTable,
    AssetEventTagsTable,
    AssetKeyTable,
    SqlEventLogStorage,
    SqlEventLogStorageTable,
    SqliteEventLogStorage,
    SqliteRunStorage,
)
from eval_dagster.named_runs import NamedRuns
from eval_dagster.project import Project
from eval_dagster.retention import Keep
from eval_dagster.stores.sqlite_files import shrink

_PAGE = 200
"""Runs of one query or one transaction."""
_RUNLESS = ""
"""The id that events without a run have."""
_SHOWN = [
    dg.DagsterEventType.ASSET_MATERIALIZATION.value,
    dg.DagsterEventType.ASSET_OBSERVATION.value,
    dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED.value,
    dg.DagsterEventType.ASSET_FAILED_TO_MATERIALIZE.value,
]
"""The events by which Dagster shows the state of a partition."""
_AT_WORK = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
_events, _checks = SqlEventLogStorageTable.c, AssetCheckExecutionsTable.c


@dataclass(frozen=True, kw_only=True)
class OldRun:
    """A run that can be deleted."""

    run_id: str
    time: datetime
    """When it ended."""
    size: int
    """Bytes of its events and its logs, as far as they are on this machine or in a database."""


@dataclass(frozen=True, kw_only=True)
class OldRuns:
    """What can be deleted of an instance."""

    runs: Sequence[OldRun]
    """The oldest first."""
    kept: int
    """Number of the home's runs that stay."""
    observations: Mapping[str, Sequence[int]]
    """The old observations of definitions, by database: in SQLite, two have each of them."""
    run_ids: frozenset[str]
    """All runs of the home."""


def find_old_runs(instance: dg.DagsterInstance, project: Project, keep: Keep, named: NamedRuns, now: datetime) -> OldRuns:
    """Determine which runs of a home can be deleted. Nothing is changed.

    A run stays if it has not ended, made a file of the lake, or has an event that Dagster shows the state of a partition by. Runs of the
    last day stay, too, and the runs that `keep` names, by their age or as the newest of their job. A failed run of a checkpoint stays,
    since its sensor would start another. If one run of a night stays, all of them do: a night without its gate would be judged again.
    """
    records = _records(instance, project.home)
    by_job: dict[str, list[dg.RunRecord]] = defaultdict(list)
    for record in sorted(records.values(), key=_ended):
        by_job[record.dagster_run.job_name].append(record)
    newest = [each for of_job in by_job.values() for each in of_job[-keep.newest([_ended(record) for record in of_job], now) :]]
    staying = {record.dagster_run.run_id for record in newest}
    staying |= {run_id for run_id, record in records.items() if named.has(run_id) or not _is_over(record.dagster_run)}
    if isinstance(storage := instance.event_log_storage, SqlEventLogStorage):
        staying |= _shown_by(storage, records.keys() - staying) & records.keys()
    else:
        staying = set(records)
    nights = {night for run_id in staying for night in _nights(records[run_id])}
    going = [each for run_id, each in records.items() if run_id not in staying and nights.isdisjoint(_nights(each))]
    sizes = _sizes(instance, [record.dagster_run.run_id for record in going])
    runs = [OldRun(run_id=each.dagster_run.run_id, time=_ended(each), size=sizes[each.dagster_run.run_id]) for each in going]
    return OldRuns(
        runs=sorted(runs, key=lambda run: run.time),
        kept=len(records) - len(runs),
        observations=_old_observations(instance, project, keep, now),
        run_ids=frozenset(records),
    )


def delete_old_runs(instance: dg.DagsterInstance, found: OldRuns) -> list[str]:
    """Delete old runs and observations. It may be repeated after a killed process. Returns the databases that stay larger, with reasons.

    The record of a run goes last, because it is what finds the rest.
    """
    storage = instance.event_log_storage
    assert isinstance(storage, SqlEventLogStorage)  # others have no old runs
    ids = [run.run_id for run in found.runs]
    for start in range(0, len(ids), _PAGE):
        some = ids[start : start + _PAGE]
        for run_id in some:
            instance.compute_log_manager.delete_logs(prefix=[run_id])
            shutil.rmtree(_outputs(instance, run_id), ignore_errors=True)
        with storage.index_connection() as connection:
            connection.execute(sa.delete(AssetCheckExecutionsTable).where(_checks.run_id.in_(some)))
            for run_id in some:
                storage.delete_events_for_run(connection, run_id)
        for run_id in some:
            for path in _files(storage, run_id):
                path.unlink(missing_ok=True)
            instance.run_storage.delete_run(run_id)
    for database, old in found.observations.items():
        for start in range(0, len(old), _PAGE):
            events = old[start : start + _PAGE]
            with _connected(storage, database) as connection:
                connection.execute(sa.delete(AssetEventTagsTable).where(AssetEventTagsTable.c.event_id.in_(events)))
                connection.execute(sa.delete(SqlEventLogStorageTable).where(_events.id.in_(events)))
    return _shrink(instance)


def _records(instance: dg.DagsterInstance, home: Path) -> dict[str, dg.RunRecord]:
    """The runs of a home by id. Runs of other projects on the instance have other tags, or none."""
    found: dict[str, dg.RunRecord] = {}
    earlier = next(old for old, new in EARLIER_TAGS.items() if new == HOME_TAG)
    for tag in (HOME_TAG, earlier):
        cursor: str | None = None
        while page := instance.get_run_records(dg.RunsFilter(tags={tag: str(home)}), limit=_PAGE, cursor=cursor):
            found |= {record.dagster_run.run_id: record for record in page}
            cursor = page[-1].dagster_run.run_id
    return found


def _ended(record: dg.RunRecord) -> datetime:
    if record.end_time is not None:
        return datetime.fromtimestamp(record.end_time, UTC)
    return record.create_timestamp.astimezone(UTC)


def _is_over(run: dg.DagsterRun) -> bool:
    """Whether a run has ended, and nothing starts it again because it is gone."""
    return run.is_finished and (CHECKPOINT_TAG not in run.tags or run.status is dg.DagsterRunStatus.SUCCESS)


def _nights(record: dg.RunRecord) -> set[tuple[str, str]]:
    """The nights that a run may be of: a gate names one by its tick, or by when its first run was made."""
    tags = record.dagster_run.tags
    suite = tags.get(SUITE_TAG)
    return (
        {(suite, each) for each in (tags.get(SINCE_TAG), record.create_timestamp.astimezone(UTC).isoformat()) if each} if suite else set()
    )


def _shown_by(storage: SqlEventLogStorage, run_ids: Collection[str]) -> set[str]:
    """Runs with the newest events of a partition or a check, among the assets of the given runs."""
    shown: set[str] = set()
    with storage.index_connection() as connection:

        def column(statement: sa.Select[Any]) -> set[str]:
            return {str(value) for (value,) in connection.execute(statement) if value is not None}

        ids, keys, checked = sorted(run_ids), set[str](), set[str]()
        for start in range(0, len(ids), _PAGE):
            some = ids[start : start + _PAGE]
            keys |= column(sa.select(_events.asset_key).distinct().where(_events.run_id.in_(some), _events.asset_key.is_not(None)))
            checked |= column(sa.select(_checks.asset_key).distinct().where(_checks.run_id.in_(some)))
        for key in keys:
            events = (_events.asset_key == key, _events.dagster_event_type.in_(_SHOWN))
            latest = sa.select(sa.func.max(_events.id)).where(*events).group_by(_events.partition, _events.dagster_event_type)
            shown |= column(sa.select(_events.run_id).distinct().where(_events.id.in_(latest)))
        for key in checked:
            latest = sa.select(sa.func.max(_checks.id)).where(_checks.asset_key == key)
            latest = latest.group_by(_checks.check_name, _checks.partition, _checks.execution_status)
            shown |= column(sa.select(_checks.run_id).distinct().where(_checks.id.in_(latest)))
        shown |= column(sa.select(AssetKeyTable.c.last_run_id).where(AssetKeyTable.c.asset_key.in_(keys)))
    return shown


def _old_observations(instance: dg.DagsterInstance, project: Project, keep: Keep, now: datetime) -> dict[str, list[int]]:
    """The ids of the observations of definitions but for each partition's newest, by database."""
    storage, found = instance.event_log_storage, defaultdict[str, list[int]](list)
    keys = [Names.of(project).key(source).to_string() for source in SOURCES.values()]
    for database in _observing(storage):
        observed = (_events.asset_key.in_(keys), _events.dagster_event_type == dg.DagsterEventType.ASSET_OBSERVATION.value)
        columns = sa.select(_events.asset_key, _events.partition, _events.id, _events.timestamp)
        of_partition: dict[tuple[str, str], list[tuple[int, datetime]]] = defaultdict(list)
        with _connected(storage, database) as connection:
            for key, partition, number, time in connection.execute(
                columns.where(*observed, _events.run_id == _RUNLESS).order_by(_events.id)
            ):
                of_partition[key, partition].append((number, time.replace(tzinfo=UTC)))
        for events in of_partition.values():
            newest = keep.newest([time for _, time in events], now)
            found[database] += [number for number, _ in events[:-newest]]
    return found


def _observing(storage: object) -> list[str]:
    if isinstance(storage, SqliteEventLogStorage):
        return [INDEX_SHARD_NAME, *([_RUNLESS] if Path(storage.path_for_shard(_RUNLESS)).exists() else [])]
    return [INDEX_SHARD_NAME] if isinstance(storage, SqlEventLogStorage) else []


def _connected(storage: object, database: str) -> AbstractContextManager[sa.Connection]:
    assert isinstance(storage, SqlEventLogStorage)
    return storage.index_connection() if database == INDEX_SHARD_NAME else storage.run_connection(database)


def _sizes(instance: dg.DagsterInstance, run_ids: Sequence[str]) -> dict[str, int]:
    """Bytes of each run's events in the database, of its own database, and of its logs."""
    storage = instance.event_log_storage
    sizes = dict.fromkeys(run_ids, 0)
    if isinstance(storage, SqlEventLogStorage):
        with storage.index_connection() as connection:
            for start in range(0, len(run_ids), _PAGE):
                lengths = sa.select(_events.run_id, sa.func.sum(sa.func.length(_events.event))).group_by(_events.run_id)
                for run_id, size in connection.execute(lengths.where(_events.run_id.in_(run_ids[start : start + _PAGE]))):
                    sizes[run_id] += int(size or 0)
    for run_id in run_ids:
        logs = (path for path in _outputs(instance, run_id).rglob("*") if path.is_file())
        for path in (*_files(storage, run_id), *logs):
            with suppress(FileNotFoundError):
                sizes[run_id] += path.stat().st_size
    return sizes


def _files(storage: object, run_id: str) -> list[Path]:
    """The database of a run's events, if each run has one."""
    if not isinstance(storage, SqliteEventLogStorage):
        return []
    return [Path(storage.path_for_shard(run_id) + ending) for ending in ("-wal", "-shm", "-journal", "")]


def _outputs(instance: dg.DagsterInstance, run_id: str) -> Path:
    """The folder of the logs and outputs of a run, if they are files of the instance."""
    return Path(instance.storage_directory()) / run_id


def _shrink(instance: dg.DagsterInstance) -> list[str]:
    """Shrink the databases of an instance that are files. Returns those that stay as they are, with reasons."""
    storage, files = instance.event_log_storage, list[Path]()
    if isinstance(storage, SqliteEventLogStorage):
        files += [Path(storage.path_for_shard(name)) for name in (INDEX_SHARD_NAME, _RUNLESS)]
    if isinstance(instance.run_storage, SqliteRunStorage):
        files.append(Path(instance.root_directory) / "history" / "runs.db")
    found = [path for path in files if path.exists()]
    if found and instance.get_runs(dg.RunsFilter(statuses=_AT_WORK), limit=1):
        return ["Dagster's databases stay as large as they are, since a run is at work; the next `gc` shrinks them"]
    return [reason for path in found if (reason := shrink(path))]
