"""Tags by which Dagster determines whether a materialization is current."""

from collections.abc import Mapping
from types import ModuleType

import dagster as dg
from dagster._core.definitions.data_version import (
    CODE_VERSION_TAG,
    DATA_VERSION_TAG,
    get_input_data_version_tag,
    get_input_event_pointer_tag,
)

from eval_dagster.stages import metrics, outputs, prompts, scores, snapshot
from eval_dagster.stages.results import STAGES, StageResult, partition_key
from eval_dagster.versions import code_version

_CODE: Mapping[str, ModuleType] = {
    "dataset_snapshot": snapshot,
    "rendered_prompts": prompts,
    "model_outputs": outputs,
    "sample_scores": scores,
    "task_metrics": metrics,
}
_PAGE = 100
"""Events of a partition that are read in one query, after the newest."""


def stage_code_version(stage: str) -> str:
    """The version of a stage's code. If a materialization has another one, Dagster calls the partition stale."""
    return code_version(_CODE[stage])


def provenance_tags(instance: dg.DagsterInstance, result: StageResult) -> dict[str, str]:
    """The versions of code and input, and the event that materialized the input.

    Without the event, Dagster takes the dependency for a new one.
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
    """The newest event of a partition with this version; None if Dagster has none."""
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
