"""Tags by which Dagster determines whether a materialization is current."""

from collections.abc import Collection, Mapping, Sequence
from types import ModuleType

import dagster as dg

from eval_dagster.dagster_internals.definitions import (
    CODE_VERSION_TAG,
    DATA_VERSION_TAG,
    get_input_data_version_tag,
    get_input_event_pointer_tag,
)
from eval_dagster.stages import metrics, outputs, prompts, scores, snapshot
from eval_dagster.stages.partition import STAGES, StageResult, partition_key
from eval_dagster.versions.hashes import code_version

_CODE: Mapping[str, ModuleType] = {
    "dataset_snapshot": snapshot,
    "rendered_prompts": prompts,
    "model_outputs": outputs,
    "sample_scores": scores,
    "task_metrics": metrics,
}
_MOST_PARTITIONS = 1000
"""Most partitions of a query."""
_PAGE = 100
"""Events of a partition that are read in one query, after the newest."""


def stage_code_version(stage: str) -> str:
    """The version of a stage's code. If a materialization has another one, Dagster calls the partition stale."""
    return code_version(_CODE[stage])


class Provenance:
    """The versions of code and input of each partition that a step materializes, and the event that materialized the input."""

    def __init__(self, instance: dg.DagsterInstance, partitions: Collection[str]) -> None:
        """`partitions` are the keys of the step's partitions."""
        self._instance = instance
        self._partitions = partitions
        self._newest: dict[tuple[str, str | None], Mapping[str, tuple[int, str]]] = {}
        self._before: dict[tuple[str, str | None], Mapping[str, tuple[int, str]]] = {}

    def tags(self, result: StageResult) -> dict[str, str]:
        """The tags of a materialization. Without the event of its input, Dagster takes the dependency for a new one."""
        tags = {CODE_VERSION_TAG: stage_code_version(result.stage)}
        upstream = [name for name in STAGES if name in result.file.info.inputs][-1:]
        for name in upstream:
            event = self._event(name, result)
            if event is not None:
                key = dg.AssetKey(name)
                tags |= {get_input_data_version_tag(key): result.file.info.inputs[name], get_input_event_pointer_tag(key): str(event)}
        return tags

    def has(self, result: StageResult) -> bool:
        """Whether the newest materialization of a partition, when the step had its first result of the stage, is this result."""
        key = result.stage, result.model
        if key not in self._before:
            self._before[key] = _newest_events(self._instance, dg.AssetKey(result.stage), self._upstream(result.model))
        return self._before[key].get(partition_key(result.eval_name, result.model), (0, None))[1] == result.file.info.version

    def _event(self, name: str, result: StageResult) -> int | None:
        """The newest event of the input `name` with its version."""
        model = None if name == "dataset_snapshot" else result.model
        partition, version = partition_key(result.eval_name, model), result.file.info.inputs[name]
        # A stage ends for all evals of a model, and the snapshots for all evals, before the next stage reports its first result.
        if (name, model) not in self._newest:
            self._newest[name, model] = _newest_events(self._instance, dg.AssetKey(name), self._upstream(model))
        event, of_version = self._newest[name, model].get(partition, (None, None))
        return event if of_version == version else _event_of(self._instance, dg.AssetKey(name), partition, version)

    def _upstream(self, model: str | None) -> list[str]:
        keys = [(eval_name, of_model) for eval_name, _, of_model in (key.partition("|") for key in self._partitions)]
        return list({partition_key(eval_name, model) for eval_name, of_model in keys if model in (None, of_model)})


def _newest_events(instance: dg.DagsterInstance, asset: dg.AssetKey, partitions: Sequence[str]) -> dict[str, tuple[int, str]]:
    """The newest event of each partition that has one, with its data version: two queries, instead of two for each partition."""
    found: dict[str, tuple[int, str]] = {}
    kind, storage = dg.DagsterEventType.ASSET_MATERIALIZATION, instance.event_log_storage
    for start in range(0, len(partitions), _MOST_PARTITIONS):
        some = partitions[start : start + _MOST_PARTITIONS]
        events = storage.get_latest_storage_id_by_partition(asset, kind, set(some))
        if events:  # later ones, of another process, are not asked for
            before = max(events.values()) + 1
            versions = storage.get_latest_tags_by_partition(asset, kind, [DATA_VERSION_TAG], some, before_cursor=before)
            found |= {key: (events[key], tags[DATA_VERSION_TAG]) for key, tags in versions.items()}
    return found


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
