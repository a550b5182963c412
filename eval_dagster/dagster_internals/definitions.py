"""Private names of Dagster for definitions, events, tags and ticks."""

from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationTargetMaterializationData
from dagster._core.definitions.data_version import (
    CODE_VERSION_TAG,
    DATA_VERSION_IS_USER_PROVIDED_TAG,
    DATA_VERSION_TAG,
    get_input_data_version_tag,
    get_input_event_pointer_tag,
)
from dagster._core.definitions.metadata import RawMetadataValue
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster._core.events import AssetMaterializationPlannedData, DagsterEvent
from dagster._core.scheduler.instigation import InstigatorState, InstigatorStatus, InstigatorType
from dagster._core.storage.partition_status_cache import get_and_update_asset_status_cache_value
from dagster._core.storage.tags import PARTITION_NAME_TAG, PRIORITY_TAG, RUN_KEY_TAG
from dagster._utils.schedules import cron_string_iterator

__all__ = [
    "CODE_VERSION_TAG",
    "DATA_VERSION_IS_USER_PROVIDED_TAG",
    "DATA_VERSION_TAG",
    "PARTITION_NAME_TAG",
    "PRIORITY_TAG",
    "RUN_KEY_TAG",
    "AssetCheckEvaluationTargetMaterializationData",
    "AssetMaterializationPlannedData",
    "DagsterEvent",
    "InstigatorState",
    "InstigatorStatus",
    "InstigatorType",
    "RawMetadataValue",
    "UnresolvedAssetJobDefinition",
    "cron_string_iterator",
    "get_and_update_asset_status_cache_value",
    "get_input_data_version_tag",
    "get_input_event_pointer_tag",
]
