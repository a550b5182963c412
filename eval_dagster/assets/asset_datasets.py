"""Evals with the rows of an asset of the user's project: asks Dagster for its newest materialization, and reads its value.

The asset graph has an edge from the asset to `dataset_definition` and none to `dataset_snapshot`: Dagster has no partition mapping from an
asset without partitions, and would call the evals of all other datasets unsynced. `dataset_definition` is observed by eval.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import dagster as dg
import pyarrow as pa

from eval_dagster.assets.instance.instance import open_instance
from eval_dagster.dagster_internals.definitions import DATA_VERSION_IS_USER_PROVIDED_TAG, DATA_VERSION_TAG
from eval_dagster.dagster_internals.instances import ReconstructableJob
from eval_dagster.datasets.assets import SUFFIXES, Materialized
from eval_dagster.errors import DataError, EvalDagsterError, described
from eval_dagster.project import Project
from eval_dagster.versions.hashes import stable_hash

_PLACES = ("dagster/uri", "path")
"""Metadata of a materialization that can name the file or folder of its rows."""
_MOST_TRIES = 3
"""Most times that a value is read, if the asset is materialized again at the same moment."""


def asset_key(text: str) -> dg.AssetKey:
    """The key of an asset as evals.yaml writes it."""
    return dg.AssetKey(text.split("/"))


def definition_deps(project: Project) -> list[dg.AssetDep]:
    """The assets that have the rows of evals, for the source `dataset_definition`."""
    return [dg.AssetDep(asset_key(key)) for key in project.asset_keys(list(project.config.evals))]


def newest_ids(instance: dg.DagsterInstance, keys: Sequence[str]) -> list[int]:
    """The ids of the newest materializations of assets: others if one was materialized since. One query."""
    records = instance.get_asset_records([asset_key(key) for key in keys]) if keys else []
    return sorted(record.asset_entry.last_materialization_storage_id or 0 for record in records)


def look_at_assets(instance: dg.DagsterInstance, project: Project, evals: Sequence[str]) -> list[str]:
    """Tell the project's reader the newest materializations of the assets that have the rows of evals. Reads no rows, writes nothing.

    Returns:
        The keys of assets that the instance does not know.
    """
    unknown = []
    for key in project.asset_keys(evals):
        found = _newest(instance, project, key)
        if found is not None:
            project.reader.assets.tell(found)
        else:
            unknown.append(key)
    return unknown


def look_from_command(project: Project, evals: Sequence[str]) -> dict[str, Materialized]:
    """Look at the assets that have the rows of evals, in the instance of `DAGSTER_HOME` or of the home, if it is there.

    Returns:
        What the home has heard of assets that the instance does not know, by key. It may be old.
    """
    folder, unknown = Path(os.environ.get("DAGSTER_HOME") or project.home / "dagster"), project.asset_keys(evals)
    if folder.is_dir() and any(folder.iterdir()):
        with open_instance(project.home) as instance:
            unknown = look_at_assets(instance, project, evals)
    return {key: found for key in unknown if (found := project.reader.assets.newest(key)) is not None}


def read_assets(context: dg.OpExecutionContext, project: Project, evals: Sequence[str]) -> None:
    """Look at the assets that have the rows of evals, and keep in the home what is new of them, by their IO managers if need be.

    An asset that cannot be read is a failure of its evals, not of the step.
    """
    look_at_assets(context.instance, project, evals)
    store = project.reader.assets
    for key in project.asset_keys(evals):
        found = store.newest(key)
        if found is None:
            continue
        if found.run_id != context.run_id and _is_planned(context, key):
            problem = (
                "this run makes the asset too, and Dagster does not order the two; materialize the asset in a run of its own, "
                "and evaluate after it"
            )
            store.tell(_failed(found, problem))
            continue
        _read_value(context, project, found)
        store.keep(key)


def _read_value(context: dg.OpExecutionContext, project: Project, found: Materialized) -> None:
    """Read the value of a materialization by its asset's IO manager, if its rows are not there and this run has the IO manager."""
    store, key = project.reader.assets, found.key
    job = context.get_step_execution_context().job
    if found.place is not None or found.problem or store.has_rows(key) or not isinstance(job, ReconstructableJob):
        return
    repository = context.repository_def
    if asset_key(key) not in repository.asset_graph.get_all_asset_keys() or repository.asset_graph.get(asset_key(key)).is_external:
        store.tell(_failed(found, "no code location but its own has its IO manager, and its materialization names no file"))
        return
    for _ in range(_MOST_TRIES):
        try:
            context.log.info(f"reading the rows of {key}, materialized {found}")
            tables = tables_of(repository.load_asset_value(asset_key(key), instance=context.instance))
            after = _newest(context.instance, project, key)
            if after is not None and after.value_id != found.value_id:  # it may be the value of either
                found = after
                continue
            store.keep_rows(found, tables)
        except EvalDagsterError as error:
            store.tell(_failed(found, str(error)))
        except Exception as error:  # of the IO manager, which is users' code
            store.tell(_failed(found, f"its IO manager raised {described(error)}"))
        return
    store.tell(_failed(found, f"it was materialized again each of {_MOST_TRIES} times that it was read"))


def _failed(found: Materialized, problem: str) -> Materialized:
    return Materialized(
        key=found.key, version=found.version, value_id=found.value_id, when=found.when, run_id=found.run_id, problem=problem
    )


def _is_planned(context: dg.OpExecutionContext, key: str) -> bool:
    planned = context.instance.all_logs(context.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED)
    return any(entry.dagster_event is not None and entry.dagster_event.asset_key == asset_key(key) for entry in planned)


def _newest(instance: dg.DagsterInstance, project: Project, key: str) -> Materialized | None:
    """The newest materialization of an asset that an instance has; None if it has none."""
    records = instance.fetch_materializations(asset_key(key), limit=1).records
    event = records[0].asset_materialization if records else None
    if event is None:
        return None
    record, tags = records[0], event.tags or {}
    version = tags.get(DATA_VERSION_TAG, "")
    # Without a version of the user's, equal versions need not mean equal rows: Dagster makes one of the versions of code and inputs.
    is_named = bool(version) and tags.get(DATA_VERSION_IS_USER_PROVIDED_TAG) == "true"
    return Materialized(
        key=key,
        version=version or record.run_id[:8] or str(record.storage_id),
        value_id=stable_hash(["version", version] if is_named else ["event", record.run_id, record.timestamp]),
        when=record.timestamp,
        run_id=record.run_id,
        place=_place(event.metadata, project),
        problem=""
        if event.partition is None
        else f"it has partitions (the newest is {event.partition!r}); expected an asset without partitions, such as one that joins them",
    )


def _place(metadata: Mapping[str, Any], project: Project) -> str | None:
    """The local file or folder of tables that a materialization names."""
    for name in _PLACES:
        value = getattr(metadata.get(name), "value", None)
        if not isinstance(value, str | Path):
            continue
        parts = urlsplit(str(value))
        if parts.scheme not in ("", "file"):
            continue
        path = Path(unquote(parts.path) if parts.scheme else str(value))
        # Relative to where the code location runs, or else to evals.yaml.
        path = path.absolute() if path.exists() else project.folder / path
        if path.is_dir() or path.suffix in SUFFIXES:
            return str(path)
    return None


def tables_of(value: object) -> dict[str, pa.Table]:
    """A value as tables by split, or by an empty text if it is one table.

    Raises:
        DataError: It is no table. Tables are made by pandas, pyarrow, polars and `datasets`, or are lists of dicts; a dict may have them by
            split.
    """
    if isinstance(value, dict) and value and all(isinstance(split, str) for split in value):
        wrong = next((split for split in value if not split or split != Path(split).name), None)
        if wrong is None:
            return {split: _table(rows, f"its split {split!r}") for split, rows in value.items()}
    return {"": _table(value, "it")}


def _table(value: Any, what: str) -> pa.Table:
    kind = f"{type(value).__module__.partition('.')[0]}.{type(value).__name__}"
    try:
        if isinstance(value, pa.Table):
            return value
        if isinstance(value, pa.RecordBatch):
            return pa.Table.from_batches([value])
        if kind == "pandas.DataFrame":
            named = [name for name in value.index.names if name is not None]
            return pa.Table.from_pandas(value.reset_index(level=named) if named else value, preserve_index=False)
        if kind in ("datasets.Dataset", "polars.DataFrame"):
            return value.with_format("arrow")[:] if kind.startswith("datasets") else value.to_arrow()
        if isinstance(value, Sequence) and value and all(isinstance(row, dict) for row in value):
            names = list(dict.fromkeys(name for row in value for name in row))
            return pa.table({name: pa.array([row.get(name) for row in value]) for name in names})
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError(f"{what} is a {kind} that is no table of columns with one type each: {error}") from error
    raise DataError(
        f"{what} is a {kind}; expected a table of pandas, pyarrow or polars, a datasets.Dataset, a list of dicts, or a dict of these by "
        "split"
    )
