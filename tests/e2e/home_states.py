"""All that a home holds, without what differs between two homes that hold the same: ids, times and files' names."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import dagster as dg
import duckdb
from mlflow import MlflowClient

TABLES = {
    "samples": "eval, sample_id, subject",
    "prompts": "eval, model, sample_id, request_id, prompt, choices, gold",
    "responses": "eval, model, sample_id, request_id, text, choice_logprobs, error",
    "scores": "eval, model, sample_id, subject, metric, value, error",
    "metrics": "eval, model, subject, metric, value, stderr, ci_low, ci_high, n, n_errors, dataset_version, prompt_version, model_version",
    "leaderboard": "eval, model, metric, value, n, n_errors",
}
_FILES = ("metrics.json", "samples.json")
_OWN_TAGS = ("eval", "model")
_TIMES = ("worker_s", "gpu_s")


def table_rows(home: Path, name: str) -> list[tuple[Any, ...]]:
    """The rows of a relation of the catalog, in an order of their own."""
    with duckdb.connect(str(home / "evals.duckdb"), read_only=True) as connection:
        return sorted(connection.execute(f"select {TABLES[name]} from {name}").fetchall(), key=repr)


def mlflow_runs(home: Path) -> list[dict[str, Any]]:
    """The runs of MLflow with status, params, metrics, tags, inputs and artifacts."""
    client = MlflowClient(tracking_uri=f"sqlite:///{home / 'mlflow.db'}")
    experiments = [each.experiment_id for each in client.search_experiments()]
    runs = []
    for run in client.search_runs(experiments):
        folder = Path(run.info.artifact_uri.removeprefix("file://"))
        runs.append(
            {
                "name": run.info.run_name,
                "status": run.info.status,
                "params": run.data.params,
                "metrics": {
                    name: [point.value for point in client.get_metric_history(run.info.run_id, name)]
                    for name in run.data.metrics
                    if name not in _TIMES
                },
                "tags": {name: run.data.tags.get(name) for name in _OWN_TAGS},
                "inputs": [each.dataset.to_dictionary() for each in run.inputs.dataset_inputs],
                "files": {name: json.loads((folder / name).read_text()) for name in _FILES if (folder / name).exists()},
            }
        )
    return sorted(runs, key=repr)


def materialized(instance: dg.DagsterInstance) -> dict[str, set[str]]:
    """The partitions that Dagster shows as materialized, by asset."""
    return {key.to_user_string(): instance.get_materialized_partitions(key) for key in instance.get_asset_keys()}


def run_statuses(instance: dg.DagsterInstance) -> Counter[str]:
    """How many runs of Dagster have each status."""
    return Counter(run.status.value for run in instance.get_runs())


def left_behind(home: Path) -> list[str]:
    """Files that stand for work in progress, or for damage."""
    signs = (".building", ".tmp", ".damaged-", "-journal", ".lost")
    return sorted(path.relative_to(home).as_posix() for path in home.rglob("*") if any(sign in path.name for sign in signs))
