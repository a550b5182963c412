"""Runs of results in MLflow are listed, and deleted for good."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import ViewType
from mlflow.exceptions import MlflowException
from test_tracking import result, server  # noqa: F401 - a fixture

from eval_dagster.tracking.logged_runs import NAMED_TAG
from eval_dagster.tracking.tracker import Tracker


@pytest.fixture
def tracker(tmp_path: Path) -> Tracker:
    return Tracker(home=tmp_path / "home", tracking_uri=None, experiment="tests")


def _age(home: Path) -> None:
    """Let all runs be of 2020."""
    with closing(sqlite3.connect(home / "mlflow.db")) as database:
        database.execute("update runs set start_time = 1577836800000, end_time = 1577836900000")
        database.commit()


def test_a_deleted_run_is_gone_with_its_artifacts_and_no_other(tracker: Tracker, tmp_path: Path) -> None:
    first, second = tracker.log(result("first")), tracker.log(result("second"))
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/home/mlflow.db")
    own = client.create_run(client.get_run(first).info.experiment_id).info.run_id
    logged = {run.run_id: run for run in tracker.logged()}
    assert logged.keys() == {first, second}
    assert (logged[first].eval_name, logged[first].model, logged[first].is_report) == ("mmlu", "smollm2-135m", False)
    assert logged[first].size > 0
    assert tracker.delete(logged[first])
    with pytest.raises(MlflowException, match="not found"):
        client.get_run(first)
    assert not list((tmp_path / "home" / "mlartifacts").rglob(first))
    assert not tracker.exists(first)
    assert tracker.exists(second)
    assert client.get_run(own).info.status == "RUNNING"
    assert list((tmp_path / "home" / "mlartifacts").rglob(f"{second}/artifacts/*.json"))


def test_a_run_in_the_trash_is_deleted_for_good(tracker: Tracker, tmp_path: Path) -> None:
    """As a killed process leaves it."""
    run_id = tracker.log(result())
    MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/home/mlflow.db").delete_run(run_id)
    (run,) = tracker.logged()
    assert tracker.delete(run)
    assert tracker.logged() == []


def test_a_run_that_a_new_result_got_meanwhile_stays(tracker: Tracker, tmp_path: Path) -> None:
    run_id = tracker.log(result())
    _age(tmp_path / "home")
    (listed,) = tracker.logged()
    assert listed.time.year == 2020
    assert tracker.log(result()) == run_id
    assert not tracker.delete(listed)
    (listed,) = tracker.logged()
    assert (datetime.now(UTC) - listed.time).total_seconds() < 600
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/home/mlflow.db")
    named = client.get_run(run_id).data.tags[NAMED_TAG]
    assert tracker.log(result()) == run_id
    assert client.get_run(run_id).data.tags[NAMED_TAG] == named, "one mark is enough for half a day"


def test_no_store_is_made_to_list_runs(tracker: Tracker, tmp_path: Path) -> None:
    assert tracker.logged() == []
    assert not (tmp_path / "home" / "mlflow.db").exists()


@pytest.mark.long
@pytest.mark.e2e
def test_a_server_marks_a_run_as_deleted_and_loses_its_artifacts(server: str, tmp_path: Path) -> None:  # noqa: F811
    runs = Tracker(home=tmp_path / "home", tracking_uri=server, experiment="tests")
    assert runs.logged() == []
    first, second = runs.log(result("first")), runs.log(result("second"))
    assert runs.own_file is None
    logged = {run.run_id: run for run in runs.logged()}
    assert logged.keys() == {first, second}
    assert runs.delete(logged[first])
    assert [run.run_id for run in runs.logged()] == [second]
    client = MlflowClient(tracking_uri=server)
    assert client.get_run(first).info.lifecycle_stage == "deleted"
    assert len(client.search_runs(["1"], run_view_type=ViewType.ALL)) == 2
    assert not list((tmp_path / "artifacts").rglob(f"{first}/artifacts/*"))
    assert list((tmp_path / "artifacts").rglob(f"{second}/artifacts/*"))
