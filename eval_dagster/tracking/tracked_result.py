"""A result for MLflow, its translation into MLflow's entities, and their writing. Entries that MLflow refuses are left out and reported.

MLflow allows letters, digits, `_`, `-`, `.`, `:`, `/` and spaces in the name of a metric, a param or a tag, in at most 250 characters, and
no name that would be another one as a path. `pass@1` becomes `pass_at_1`; any other character becomes `_x<its code in hex>_`. The original
names can be read back. MLflow is imported in functions: it takes over a second, and most commands do not need it.
"""

import json
import logging
import math
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval_dagster.records import Row
from eval_dagster.texts.visible_text import storable

MOST_CHARACTERS = 250
_ESCAPE = re.compile(r"_(?:at|x([0-9a-f]*))_")
_ALLOWED = re.compile(r"[\w.\- /]")
_EMPTY = "_x_"
_DIGEST_CHARACTERS = 16


def tracked_name(name: str) -> str:
    """The name of a metric, a param or a tag in MLflow. Different names stay different.

    `original_name` returns the original name, unless it is longer than `MOST_CHARACTERS`. Then a digest replaces its end.
    """
    if not name:
        return _EMPTY
    part, encoded = name[: MOST_CHARACTERS + 1], ""
    # From the end, since an underscore is escaped if the text after it would make it the beginning of an escape.
    for index in range(len(part) - 1, -1, -1):
        character = part[index]
        if character == "@":
            encoded = f"_at_{encoded}"
        elif _is_plain(part, index) and not (character == "_" and _ESCAPE.match(f"_{encoded}")):
            encoded = character + encoded
        else:
            encoded = f"_x{ord(character):x}_{encoded}"
    if len(encoded) <= MOST_CHARACTERS:
        return encoded
    end = f"_cut_{sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:_DIGEST_CHARACTERS]}"
    return encoded[: MOST_CHARACTERS - len(end)].rstrip("/. ") + end


def original_name(encoded: str) -> str:
    """The name that `tracked_name` was given."""
    return _ESCAPE.sub(lambda match: "@" if match[1] is None else chr(int(match[1], 16)) if match[1] else "", encoded)


def tracked_text(text: str) -> str:
    r"""A text as every database of MLflow accepts it: half characters and NUL become `\ud800` and `\x00`."""
    return storable(text).replace("\0", r"\x00")


def _is_plain(name: str, index: int) -> bool:
    """Whether MLflow accepts a character at its place: a part of a path may not be empty, and may not consist of one or two dots."""
    character = name[index]
    if character == "/":
        return 0 < index < len(name) - 1 and name[index - 1] != "/"
    if character == ".":
        part = name[:index].rpartition("/")[2] + "." + name[index + 1 :].partition("/")[0]
        return part not in (".", "..")
    return _ALLOWED.fullmatch(character) is not None


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


def metric_entities(metrics: Mapping[str, float | None]) -> "list[Metric]":
    """The metrics that have a value."""
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    present = {name: value for name, value in metrics.items() if value is not None and math.isfinite(value)}
    return [Metric(tracked_name(name), value, now, 0) for name, value in present.items()]


def param_entities(result: TrackedResult) -> "list[Param]":
    """The parameters as text. Texts that are too long for MLflow are cut, with a mark."""
    from mlflow.entities import Param

    return [Param(tracked_name(name), _shorten(str(value), _MAX_PARAM_CHARACTERS)) for name, value in result.params.items()]


def tag_entities(result: TrackedResult) -> "list[RunTag]":
    """The tags, and one with the cut names. Texts that are too long for MLflow are cut, with a mark."""
    from mlflow.entities import RunTag

    cut = long_names((*result.metrics, *result.params, *result.tags))
    return [RunTag(tracked_name(name), _shorten(value, _MAX_TAG_CHARACTERS)) for name, value in {**result.tags, **cut}.items()]


def long_names(names: Iterable[str]) -> dict[str, str]:
    """The tag with the names that are too long for MLflow; none if there is none."""
    found = {tracked_name(name): name for name in names if original_name(tracked_name(name)) != name}
    return {LONG_NAMES_TAG: _shorten(json.dumps(found), _MAX_TAG_CHARACTERS)} if found else {}


def creation_tags(result: TrackedResult) -> dict[str, str]:
    """The tags that a run is created with, as if MLflow took all tables; a call that adds them later takes as long as its creation."""
    return {tag.key: tag.value for tag in (*tag_entities(result), _tables_tag(map(table_file, result.tables)))}


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


if TYPE_CHECKING:
    import pandas as pd
    from mlflow import MlflowClient
    from mlflow.entities import Run, RunInfo, RunTag
    from mlflow.store.artifact.artifact_repo import ArtifactRepository

LEFT_OUT_TAG = "eval_dagster.left_out"
"""The tag that lists what MLflow refused."""
_MOST_ENTRIES = 1000
"""Most metrics, and most entries of all kinds, in one call."""
_MOST_PARAMS = 100
"""Most params, and most tags, in one call."""

log = logging.getLogger(__name__)


def complete_run(client: "MlflowClient", run: "Run", result: TrackedResult) -> None:
    """Write the entries that a run lacks, and mark it as finished. Each step can be repeated after a killed process.

    A warning and a tag of the run list what MLflow refuses.

    Raises:
        MlflowException: MLflow fails for another reason than refused entries.
    """
    run_id = run.info.run_id
    without_tables, tables_tag = _write_tables(run, str(client.tracking_uri), result.tables)
    refused = [*_write_entries(client, run, result, tables_tag), *without_tables]
    answer = _refusal(lambda: client.log_inputs(run_id, [dataset_input(result)]))
    if answer is not None:
        refused.append(f"the dataset: {answer}")
    if refused:
        left_out = f"{len(refused)} left out: {'; '.join(refused)}"
        log.warning("MLflow refused a part of the run %s (%s), %s", result.run_name, run_id, left_out)
        client.set_tag(run_id, LEFT_OUT_TAG, left_out[:5000])
    client.set_terminated(run_id, "FINISHED")


def write_metrics(client: "MlflowClient", run: "Run", metrics: Mapping[str, float | None]) -> None:
    """Write the metrics that a run lacks. A warning lists what MLflow refuses."""
    missing = [each for each in metric_entities(metrics) if each.key not in run.data.metrics]
    if refused := _write("metric", missing, _MOST_ENTRIES, lambda batch: client.log_batch(run.info.run_id, metrics=batch)):
        log.warning("MLflow refused a part of the run %s: %s", run.info.run_id, "; ".join(refused))


def table_file(name: str) -> str:
    """The artifact with a table of a result."""
    return f"{name}.json"


def _write_entries(client: "MlflowClient", run: "Run", result: TrackedResult, tables_tag: "RunTag") -> list[str]:
    """Write metrics, params and tags in one call, or each kind apart if they are too many or refused. Returns the refused with reasons."""
    run_id = run.info.run_id
    # Only missing entries are written: a metric that is written twice has two points, and a param with another value is refused.
    metrics = [each for each in metric_entities(result.metrics) if each.key not in run.data.metrics]
    params = [each for each in param_entities(result) if each.key not in run.data.params]
    tags = [each for each in (*tag_entities(result), tables_tag) if run.data.tags.get(each.key) != each.value]
    if len(params) <= _MOST_PARAMS and len(tags) <= _MOST_PARAMS and len(metrics) + len(params) + len(tags) <= _MOST_ENTRIES:
        if _refusal(lambda: client.log_batch(run_id, metrics, params, tags)) is None:
            return []
        found = client.get_run(run_id).data  # what was written before the refusal
        metrics = [each for each in metrics if each.key not in found.metrics]
        params = [each for each in params if each.key not in found.params]
    return [
        *_write("metric", metrics, _MOST_ENTRIES, lambda batch: client.log_batch(run_id, metrics=batch)),
        *_write("param", params, _MOST_PARAMS, lambda batch: client.log_batch(run_id, params=batch)),
        *_write("tag", tags, _MOST_PARAMS, lambda batch: client.log_batch(run_id, tags=batch)),
    ]


def _write(what: str, entries: Sequence[Any], most: int, write: Callable[[Sequence[Any]], object]) -> list[str]:
    """Write entries in batches; if a batch is refused, one by one. Returns the refused entries with reasons."""
    refused: list[str] = []
    for start in range(0, len(entries), most):
        batch = entries[start : start + most]
        if _refusal(partial(write, batch)) is not None:
            answers = {each.key: _refusal(partial(write, [each])) for each in batch}
            refused += [f"{what} {name!r}: {answer}" for name, answer in answers.items() if answer is not None]
    return refused


def _refusal(write: Callable[[], object]) -> str | None:
    """MLflow's reason for refusing an entry; None if it accepts it."""
    from mlflow.exceptions import MlflowException

    try:
        write()
    except MlflowException as error:
        if error.error_code != "INVALID_PARAMETER_VALUE":
            raise
        return str(error).strip().splitlines()[0]
    return None


def place_of(run: "RunInfo", tracking_uri: str) -> "ArtifactRepository":
    """The place of a run's artifacts. A client would first read the run, for its address."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    return get_artifact_repository(run.artifact_uri, tracking_uri=tracking_uri)


def _tables_tag(files: Iterable[str]) -> "RunTag":
    """The tag that makes MLflow's UI show tables."""
    from mlflow.entities import RunTag

    return RunTag("mlflow.loggedArtifacts", json.dumps([{"path": file, "type": "table"} for file in files]))


def _write_tables(run: "Run", tracking_uri: str, tables: Mapping[str, "pd.DataFrame"]) -> "tuple[list[str], RunTag]":
    """Write tables as artifacts. Returns the refused ones with reasons, and the tag that makes MLflow's UI show the others."""
    # `client.log_table` would append to a table that a killed process left; this replaces it.
    refused: list[str] = []
    shown: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, table in tables.items():
            path = Path(folder) / table_file(name)
            try:
                table.to_json(path, orient="split", index=False, date_format="iso")
            except (ValueError, OverflowError) as error:  # a text that is no Unicode, or a value that JSON cannot contain
                refused.append(f"table {name!r}: {type(error).__name__}: {error}")
                path.unlink(missing_ok=True)
                continue
            shown.append(path.name)
        place_of(run.info, tracking_uri).log_artifacts(folder)  # type: ignore[no-untyped-call]
    return refused, _tables_tag(shown)
