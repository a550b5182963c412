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
    from mlflow.entities import Run

LEFT_OUT_TAG = "eval_dagster.left_out"
"""The tag that lists what MLflow refused."""
_MOST_METRICS = 1000
_MOST_PARAMS = 100

log = logging.getLogger(__name__)


def complete_run(client: "MlflowClient", run: "Run", result: TrackedResult) -> None:
    """Write the entries that a run lacks, and mark it as finished. Each step can be repeated after a killed process.

    A warning and a tag of the run list what MLflow refuses.

    Raises:
        MlflowException: MLflow fails for another reason than refused entries.
    """
    run_id = run.info.run_id
    # Only missing entries are written: a metric that is written twice has two points, and a param with another value is refused.
    metrics = [each for each in metric_entities(result) if each.key not in run.data.metrics]
    params = [each for each in param_entities(result) if each.key not in run.data.params]
    refused = [
        *_write("metric", metrics, _MOST_METRICS, lambda batch: client.log_batch(run_id, metrics=batch)),
        *_write("param", params, _MOST_PARAMS, lambda batch: client.log_batch(run_id, params=batch)),
        *_write("tag", tag_entities(result), _MOST_PARAMS, lambda batch: client.log_batch(run_id, tags=batch)),
        *_write_tables(client, run_id, result.tables),
    ]
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


def _write_tables(client: "MlflowClient", run_id: str, tables: Mapping[str, "pd.DataFrame"]) -> list[str]:
    # `client.log_table` would append to a table that a killed process left; this replaces it. The tag makes the UI show tables.
    refused: list[str] = []
    shown: list[dict[str, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, table in tables.items():
            path = Path(folder) / table_file(name)
            try:
                table.to_json(path, orient="split", index=False, date_format="iso")
            except (ValueError, OverflowError) as error:  # a text that is no Unicode, or a value that JSON cannot contain
                refused.append(f"table {name!r}: {type(error).__name__}: {error}")
                continue
            client.log_artifact(run_id, str(path))
            shown.append({"path": path.name, "type": "table"})
    client.set_tag(run_id, "mlflow.loggedArtifacts", json.dumps(shown))
    return refused
