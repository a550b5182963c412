"""Source assets that say what each stage would be made of now, and tags that say what a materialization was made of. Dagster calls a
partition unsynced if they differ.

A version of a source is the fingerprint by which the stage itself decides whether to make a new file (`stages.partition.Plan`). So Dagster
and `run --dry-run` cannot disagree. Versions are observed, not computed by Dagster: a run reports those of its partitions, and
`assets.observing` those that a change of evals.yaml, a task, a dataset or a model makes.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import dagster as dg

from eval_dagster.assets.asset_datasets import definition_deps
from eval_dagster.assets.instance.instance_store import last_stored
from eval_dagster.assets.names import REGRESSIONS, Names
from eval_dagster.dagster_internals.definitions import (
    CODE_VERSION_TAG,
    DATA_VERSION_IS_USER_PROVIDED_TAG,
    DATA_VERSION_TAG,
    get_and_update_asset_status_cache_value,
    get_input_data_version_tag,
    get_input_event_pointer_tag,
)
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, StageResult, partition_key, sound_current
from eval_dagster.versions.hashes import stable_hash

SOURCES: Mapping[str, str] = {
    "dataset_snapshot": "dataset_definition",
    "rendered_prompts": "prompt_definition",
    "model_outputs": "output_definition",
    "sample_scores": "score_definition",
    "task_metrics": "metric_definition",
    REGRESSIONS: "judgement_definition",
}
"""Asset -> the source of what it would be made of now."""
_MADE_OF = {
    "dataset_snapshot": "The dataset's files, the eval's subjects and splits, and the code that reads rows.",
    "rendered_prompts": "The samples, the task, the examples, the limit, and the model's prompt format and chat template.",
    "model_outputs": "The prompts and the model: weights, engine, settings.",
    "sample_scores": "The prompts, the answers, and the metrics.",
    "task_metrics": "The scores, and the code that aggregates them.",
    REGRESSIONS: "The results of the suite's evals and models, its baseline and the settings of its gate.",
}
_MOST_PARTITIONS = 1000
"""Most partitions of a query."""
_MOST_REPORTS = 3
"""Most times that a version is reported, if another process reports another one at the same moment."""
_PAGE = 100
"""Events of a partition that are read in one query, after the newest."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """The newest event of a partition."""

    storage_id: int
    version: str | None
    """The data version."""


def partitions_of(asset: str, project: Project) -> dg.PartitionsDefinition[str]:
    """The partitions of a stage or of `regressions`, and of its source.

    Evals and models are dynamic partitions, which a new entry of evals.yaml gets without a reload of the code location
    (`assets.partitions`). Suites are those that the code location has loaded, as their jobs are.
    """
    names = Names.of(project)
    if asset == REGRESSIONS:
        return dg.StaticPartitionsDefinition(list(project.config.suites))
    by_eval = dg.DynamicPartitionsDefinition(name=names.partitions("eval"))
    if asset == "dataset_snapshot":
        return by_eval
    return dg.MultiPartitionsDefinition({"eval": by_eval, "model": dg.DynamicPartitionsDefinition(name=names.partitions("model"))})


def source_specs(project: Project) -> list[dg.AssetSpec]:
    """Define the sources. They have no function: nothing is computed by a click, and no schedule observes them."""
    names = Names.of(project)
    return [
        dg.AssetSpec(
            names.key(source),
            deps=definition_deps(project) if stage == "dataset_snapshot" else [],
            group_name="definitions",
            kinds={"yaml"},
            description=f"{_MADE_OF[stage]} An observation for each change; `{stage}` is unsynced where this is newer.",
            partitions_def=partitions_of(stage, project),
        )
        for stage, source in SOURCES.items()
    ]


def newest_events(
    instance: dg.DagsterInstance,
    key: dg.AssetKey,
    partitions: Sequence[str],
    kind: dg.DagsterEventType = dg.DagsterEventType.ASSET_MATERIALIZATION,
) -> dict[str, Event]:
    """The newest event of each partition that has one: two queries for 1,000 partitions, instead of two for each."""
    found: dict[str, Event] = {}
    storage = instance.event_log_storage
    for start in range(0, len(partitions), _MOST_PARTITIONS):
        some = partitions[start : start + _MOST_PARTITIONS]
        events = storage.get_latest_storage_id_by_partition(key, kind, set(some))
        if events:  # later ones, of another process, are not asked for
            before = max(events.values()) + 1
            tags = storage.get_latest_tags_by_partition(key, kind, [DATA_VERSION_TAG], some, before_cursor=before)
            found |= {
                partition: Event(storage_id=event, version=tags.get(partition, {}).get(DATA_VERSION_TAG))
                for partition, event in events.items()
            }
    return found


def version_tags(version: str) -> dict[str, str]:
    """The tags of an event that name its data version. Without the second one, Dagster's pages speak of a new materialization."""
    return {DATA_VERSION_TAG: version, DATA_VERSION_IS_USER_PROVIDED_TAG: "true"}


def input_tags(key: dg.AssetKey, version: str, event: int) -> dict[str, str]:
    """The tags of a materialization that name the version and the event of an input."""
    return {get_input_data_version_tag(key): version, get_input_event_pointer_tag(key): str(event)}


class SourceVersions:
    """The versions of a stage's source that Dagster knows, read for some partitions at once."""

    def __init__(self, instance: dg.DagsterInstance, names: Names, stage: str, partitions: Sequence[str]) -> None:
        self._instance = instance
        self._source = names.key(SOURCES[stage])
        self._key, self._stage = names.key(stage), stage
        self._newest = newest_events(instance, self._source, partitions, dg.DagsterEventType.ASSET_OBSERVATION)

    def is_newest(self, partition: str, version: str) -> bool:
        """Whether Dagster's newest version of a partition is this one."""
        return partition in self._newest and self._newest[partition].version == version

    def names(self, shown: Event, partition: str, version: str) -> bool:
        """Whether a materialization names this version of the source, and the version is the newest."""
        newest = self._newest.get(partition)
        if newest is None or newest.version != version:
            return False
        # A materialization names the version that is the newest when it is logged.
        if newest.storage_id < shown.storage_id:
            return True
        record = self._instance.fetch_materializations(dg.AssetRecordsFilter(self._key, asset_partitions=[partition]), limit=1).records[0]
        tag = get_input_data_version_tag(self._source)
        return (record.event_log_entry.tags or {}).get(tag) == version

    def report(self, partition: str, version: str, *, why: str | None = None) -> int:
        """Report the version of a partition if Dagster's newest is another one.

        Args:
            partition: The key of the partition.
            version: The version.
            why: The change in words, if the stage's current file was made of another version.

        Returns:
            The id of the event that has the version, the newest of the partition.
        """
        for _ in range(_MOST_REPORTS):
            if self.is_newest(partition, version):
                break
            self._instance.report_runless_asset_event(
                dg.AssetObservation(
                    self._source,
                    partition=partition,
                    description=why and f"{self._stage} would be made anew: {why}",
                    tags=version_tags(version),
                )
            )
            if (event := last_stored(self._instance, self._source, partition)) is not None:
                self._newest[partition] = Event(storage_id=event, version=version)
                break
            filters = dg.AssetRecordsFilter(self._source, asset_partitions=[partition])
            newest = self._instance.fetch_observations(filters, limit=1).records[0]
            version_of_newest = (newest.event_log_entry.tags or {}).get(DATA_VERSION_TAG)
            self._newest[partition] = Event(storage_id=newest.storage_id, version=version_of_newest)
        return self._newest[partition].storage_id


def judgement_version(project: Project, suite: str) -> str:
    """The version of what a gate judges now: the current results of a suite, and its settings but for its schedule."""
    settings = project.suite(suite)
    files = {
        partition_key(eval_name, model): sound_current(project.lake, STAGES["task_metrics"], eval_name, model)
        for eval_name in settings.evals
        for model in settings.models
    }
    results = {key: [file.info.version, file.info.fingerprint] if file else None for key, file in files.items()}
    judged = {"evals", "models", "baseline", "gate", *(["aggregates"] if settings.aggregates else [])}
    return stable_hash([results, settings.model_dump(mode="json", include=judged)])


class Provenance:
    """The versions of code, definition and input of each partition that a step materializes, and the events that have them."""

    def __init__(self, instance: dg.DagsterInstance, partitions: Collection[str], project: Project) -> None:
        """`partitions` are the keys of the step's partitions."""
        self._instance = instance
        self._partitions = partitions
        self._project = project
        self._names = Names.of(project)
        self._newest: dict[tuple[str, str | None], Mapping[str, Event]] = {}
        self._before: dict[tuple[str, str | None], Mapping[str, Event]] = {}
        self._sources: dict[tuple[str, str | None], SourceVersions] = {}
        self._failed: dict[str, Collection[str]] = {}

    def tags(self, result: StageResult) -> dict[str, str]:
        """The tags of a materialization. Without the event of an input, Dagster takes the dependency for a new one."""
        info = result.file.info
        # The code that made the file. Dagster takes a materialization without such a tag for one of unknown inputs.
        tags = {CODE_VERSION_TAG: info.made_of.get("code", info.fingerprint)}
        upstream = [name for name in STAGES if name in result.file.info.inputs][-1:]
        for name in upstream:
            event = self._event(name, result)
            if event is not None:
                tags |= input_tags(self._names.key(name), result.file.info.inputs[name], event)
        return tags | input_tags(self._names.key(SOURCES[result.stage]), result.file.info.fingerprint, self.observe(result))

    def observe(self, result: StageResult) -> int:
        """Report what a result was made of as the current version of its source. Returns the event."""
        return self._source(result).report(partition_key(result.eval_name, result.model), result.file.info.fingerprint)

    def is_shown(self, result: StageResult) -> bool:
        """Whether Dagster showed this result as current when the step had its first result of the stage, and not as failed."""
        key, partition, info = (result.stage, result.model), partition_key(result.eval_name, result.model), result.file.info
        if key not in self._before:
            self._before[key] = newest_events(self._instance, self._names.key(result.stage), self._keys(result.model))
        if result.stage not in self._failed:
            self._failed[result.stage] = failed_partitions(self._instance, result.stage, self._project)
        event = self._before[key].get(partition)
        if event is None or event.version != info.version or partition in self._failed[result.stage]:
            return False
        return self._source(result).names(event, partition, info.fingerprint)

    def _source(self, result: StageResult) -> SourceVersions:
        key = result.stage, result.model
        if key not in self._sources:
            self._sources[key] = SourceVersions(self._instance, self._names, result.stage, self._keys(result.model))
        return self._sources[key]

    def _event(self, name: str, result: StageResult) -> int | None:
        """The newest event of the input `name` with its version."""
        model = None if name == "dataset_snapshot" else result.model
        partition, version = partition_key(result.eval_name, model), result.file.info.inputs[name]
        # A stage ends for all evals of a model, and the snapshots for all evals, before the next stage reports its first result.
        if (name, model) not in self._newest:
            self._newest[name, model] = newest_events(self._instance, self._names.key(name), self._keys(model))
        event = self._newest[name, model].get(partition)
        if event is not None and event.version == version:
            return event.storage_id
        return _event_of(self._instance, self._names.key(name), partition, version)

    def _keys(self, model: str | None) -> Sequence[str]:
        keys = [(eval_name, of_model) for eval_name, _, of_model in (key.partition("|") for key in self._partitions)]
        return list({partition_key(eval_name, model) for eval_name, of_model in keys if model in (None, of_model)})


def failed_partitions(instance: dg.DagsterInstance, stage: str, project: Project) -> Collection[str]:
    """The partitions of a stage that Dagster shows as failed, which they stay until they are materialized."""
    partitions = partitions_of(stage, project)
    status = get_and_update_asset_status_cache_value(instance, Names.of(project).key(stage), partitions)
    return frozenset() if status is None else frozenset(status.deserialize_failed_partition_subsets(partitions).get_partition_keys())


def shown_again(
    instance: dg.DagsterInstance, key: dg.AssetKey, partition: str, tags: Mapping[str, str] | None = None
) -> dg.AssetMaterialization | None:
    """The newest materialization of a partition, to be logged again, with other tags if given. None if there is none."""
    records = instance.fetch_materializations(dg.AssetRecordsFilter(key, asset_partitions=[partition]), limit=1).records
    event = records[0].asset_materialization if records else None
    if event is None:
        return None
    metadata = {name: value for name, value in event.metadata.items() if name != "cached"}  # this run did not make it
    if tags is not None:
        event = event._replace(tags={**version_tags((event.tags or {})[DATA_VERSION_TAG]), **tags})
    return event._replace(metadata=metadata)


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
