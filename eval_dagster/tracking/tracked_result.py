"""A result for MLflow, and its translation into MLflow's entities.

MLflow is imported in functions: it takes over a second, and most commands do not need it.
"""

import json
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from eval_dagster.records import Row
from eval_dagster.tracking.names import original_name, tracked_name, tracked_text

if TYPE_CHECKING:
    import pandas as pd
    from mlflow.entities import DatasetInput, Metric, Param, RunTag

LONG_NAMES_TAG = "eval_dagster.long_names"
"""The tag with the names that are too long for MLflow, by their shortened names."""
_MAX_PARAM_CHARACTERS = 6000
_MAX_TAG_CHARACTERS = 8000
_MAX_DIGEST_CHARACTERS = 36
_MAX_DATASET_NAME_CHARACTERS = 500
_MAX_SCHEMA_CHARACTERS = 1_000_000
_COLUMN_TYPES = {bool: "boolean", int: "long", float: "double", str: "string"}


@dataclass(frozen=True, kw_only=True, eq=False)
class TrackedResult:
    """One result in MLflow: an eval and a model, with the versions of all inputs."""

    result_key: str
    """Identifies the result and its run. Contains no quotes."""
    run_name: str
    """Name of the run in the MLflow UI, e.g. `mmlu · smollm2-135m`."""
    params: Mapping[str, Any]
    """Settings and versions; values are shown as text."""
    metrics: Mapping[str, float | None]
    """Missing and infinite values are left out. Names can be any text."""
    tags: Mapping[str, str] = field(default_factory=dict)
    dataset_name: str
    dataset_source: str
    """Hub id, or the folder or module of the rows."""
    dataset_revision: str | None = None
    """The Hub commit; null if the rows have none."""
    dataset_digest: str
    """The dataset version; its first 36 characters are kept."""
    dataset_rows: int
    """Number of samples evaluated."""
    dataset_example: Row = field(default_factory=dict)
    """One row, which determines the column types."""
    tables: Mapping[str, "pd.DataFrame"]
    """Name -> table, stored as the artifact `<name>.json`: `metrics` and `samples`."""

    def __post_init__(self) -> None:
        if re.search(r"['\"`]", self.result_key):
            raise ValueError(f"result_key {self.result_key!r} holds a quote, by which MLflow could not search")


def metric_entities(result: TrackedResult) -> "list[Metric]":
    """The metrics that have a value."""
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    present = {name: value for name, value in result.metrics.items() if value is not None and math.isfinite(value)}
    return [Metric(tracked_name(name), value, now, 0) for name, value in present.items()]


def param_entities(result: TrackedResult) -> "list[Param]":
    """The parameters as text. Texts that are too long for MLflow are cut, with a mark."""
    from mlflow.entities import Param

    return [Param(tracked_name(name), _shorten(str(value), _MAX_PARAM_CHARACTERS)) for name, value in result.params.items()]


def tag_entities(result: TrackedResult) -> "list[RunTag]":
    """The tags, and one with the cut names. Texts that are too long for MLflow are cut, with a mark."""
    from mlflow.entities import RunTag

    names = [name for name in (*result.metrics, *result.params, *result.tags) if original_name(tracked_name(name)) != name]
    cut = {LONG_NAMES_TAG: json.dumps({tracked_name(name): name for name in names})} if names else {}
    return [RunTag(tracked_name(name), _shorten(value, _MAX_TAG_CHARACTERS)) for name, value in {**result.tags, **cut}.items()]


def creation_tags(result: TrackedResult) -> dict[str, str]:
    """The tags that a run is created with; a call that adds them later takes as long as its creation."""
    return {tag.key: tag.value for tag in tag_entities(result)}


def dataset_input(result: TrackedResult) -> "DatasetInput":
    """The dataset: its source, its version, and its number of rows."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    columns = [{"name": name, "type": _COLUMN_TYPES.get(type(value), "any")} for name, value in result.dataset_example.items()]
    is_on_hub = result.dataset_revision is not None
    source = {"path": result.dataset_source, "revision": result.dataset_revision} if is_on_hub else {"uri": result.dataset_source}
    schema = json.dumps({"mlflow_colspec": columns})
    dataset = Dataset(
        name=_shorten(result.dataset_name, _MAX_DATASET_NAME_CHARACTERS),
        digest=result.dataset_digest[:_MAX_DIGEST_CHARACTERS],
        source_type="hugging_face" if is_on_hub else "local",
        source=json.dumps(source),
        schema=schema if columns and len(schema) <= _MAX_SCHEMA_CHARACTERS else None,
        profile=json.dumps({"num_rows": result.dataset_rows}),
    )
    return DatasetInput(dataset, [InputTag("mlflow.data.context", "evaluation")])


def _shorten(text: str, most: int) -> str:
    text = tracked_text(text)
    if len(text) <= most:
        return text
    mark = f" ... [cut from {len(text):,} characters]"
    return text[: most - len(mark)] + mark
