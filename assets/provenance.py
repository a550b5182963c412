"""What Dagster must know of a materialization to tell whether it is still current."""

import dagster as dg
from dagster._core.definitions.data_version import (
    CODE_VERSION_TAG,
    DATA_VERSION_TAG,
    get_input_data_version_tag,
    get_input_event_pointer_tag,
)

from eval_dagster.assets.stage_code import stage_code_version
from eval_dagster.stages.results import STAGES, StageResult, partition_key

_PAGE = 100
"""Events of a partition that are read at a time, after the newest."""


def provenance_tags(instance: dg.DagsterInstance, result: StageResult) -> dict[str, str]:
    """The tags by which Dagster says whether a partition is current: versions of code and input, and the event in which it met the input.

    Without the event it takes the dependency for a new one.
    """
    tags = {CODE_VERSION_TAG: stage_code_version(result.stage)}
    upstream = [name for name in STAGES if name in result.file.info.inputs][-1:]
    for name in upstream:
        key, version = dg.AssetKey(name), result.file.info.inputs[name]
        event = _event_of(instance, key, partition_key(result.eval_name, None if name == "dataset_snapshot" else result.model), version)
        if event is not None:
            tags |= {get_input_data_version_tag(key): version, get_input_event_pointer_tag(key): str(event)}
    return tags


def _event_of(instance: dg.DagsterInstance, asset: dg.AssetKey, partition: str, version: str) -> int | None:
    """The newest event that says that a partition has a version; None where Dagster knows of none."""
    cursor = None
    while True:
        found = instance.fetch_materializations(
            dg.AssetRecordsFilter(asset, asset_partitions=[partition]), limit=_PAGE if cursor else 1, cursor=cursor
        )
        for record in found.records:
            if (record.event_log_entry.tags or {}).get(DATA_VERSION_TAG) == version:
                return record.storage_id
        if not found.has_more:
            return None
        cursor = found.cursor
