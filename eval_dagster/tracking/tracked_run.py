"""Writes a result into its MLflow run. Entries that MLflow refuses are left out and reported."""

import json
import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval_dagster.tracking.tracked_result import TrackedResult, dataset_input, metric_entities, param_entities, tag_entities

if TYPE_CHECKING:
    import pandas as pd
    from mlflow import MlflowClient
    from mlflow.entities import Run, RunTag

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


def table_file(name: str) -> str:
    """The artifact with a table of a result."""
    return f"{name}.json"


def _write_entries(client: "MlflowClient", run: "Run", result: TrackedResult, tables_tag: "RunTag") -> list[str]:
    """Write metrics, params and tags in one call, or each kind apart if they are too many or refused. Returns the refused with reasons."""
    run_id = run.info.run_id
    # Only missing entries are written: a metric that is written twice has two points, and a param with another value is refused.
    metrics = [each for each in metric_entities(result) if each.key not in run.data.metrics]
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


def _write_tables(run: "Run", tracking_uri: str, tables: Mapping[str, "pd.DataFrame"]) -> "tuple[list[str], RunTag]":
    """Write tables as artifacts. Returns the refused ones with reasons, and the tag that makes MLflow's UI show the others."""
    from mlflow.entities import RunTag
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    # `client.log_table` would append to a table that a killed process left; this replaces it.
    refused: list[str] = []
    shown: list[dict[str, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, table in tables.items():
            path = Path(folder) / table_file(name)
            try:
                table.to_json(path, orient="split", index=False, date_format="iso")
            except (ValueError, OverflowError) as error:  # a text that is no Unicode, or a value that JSON cannot contain
                refused.append(f"table {name!r}: {type(error).__name__}: {error}")
                path.unlink(missing_ok=True)
                continue
            shown.append({"path": path.name, "type": "table"})
        # `client.log_artifacts` would first read the run again, for its place.
        get_artifact_repository(run.info.artifact_uri, tracking_uri=tracking_uri).log_artifacts(folder)  # type: ignore[no-untyped-call]
    return refused, RunTag("mlflow.loggedArtifacts", json.dumps(shown))
