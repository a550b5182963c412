"""The calls for one result share a session of MLflow's database."""

import threading
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import sqlalchemy as sa
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from eval_dagster.tracking.store import ensure_store, one_session
from eval_dagster.tracking.tracked_result import TrackedResult
from eval_dagster.tracking.tracker import Tracker


def result(key: str) -> TrackedResult:
    return TrackedResult(
        result_key=key,
        run_name="mmlu · mine",
        params={"num_fewshot": 5},
        metrics={"accuracy": 0.25},
        tags={"eval": "mmlu"},
        dataset_name="mmlu",
        dataset_source="cais/mmlu",
        dataset_digest="0123",
        dataset_rows=2,
        tables={"metrics": pd.DataFrame({"metric": ["accuracy"]})},
    )


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> MlflowClient:
    file = tmp_path_factory.mktemp("home") / "mlflow.db"
    ensure_store(file)
    return MlflowClient(tracking_uri=f"sqlite:///{file}")


def test_a_result_waits_for_the_disk_three_times(tmp_path: Path) -> None:
    """For the run, the metrics, and the rest."""
    tracker = Tracker(home=tmp_path, tracking_uri=None, experiment="tests")
    tracker.log(result("first"))
    begun: list[Any] = []

    def count(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith(("INSERT", "UPDATE")):
            begun.append(statement)

    commits: list[int] = []

    def commit(_connection: Any) -> None:
        if begun:
            commits.append(len(begun))
            begun.clear()

    sa.event.listen(sa.Engine, "before_cursor_execute", count)
    sa.event.listen(sa.Engine, "commit", commit)
    try:
        tracker.log(result("second"))
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", count)
        sa.event.remove(sa.Engine, "commit", commit)
    assert not begun
    assert len(commits) == 3


def test_a_page_of_the_last_result_is_where_its_run_looks_for_it(tmp_path: Path) -> None:
    tracker = Tracker(home=tmp_path, tracking_uri=None, experiment="tests")
    earlier, last = tracker.log(result("earlier")), tracker.log(result("last"))
    page = tmp_path / "samples.html"
    page.write_text("<p>")
    for run in (last, earlier):
        tracker.log_file(run, page)
        assert "samples.html" in [each.path for each in MlflowClient(f"sqlite:///{tmp_path}/mlflow.db").list_artifacts(run)]


def test_what_was_not_committed_is_rolled_back(client: MlflowClient) -> None:
    with pytest.raises(ZeroDivisionError), one_session(client) as commit:  # noqa: PT012
        kept = client.create_run("0").info.run_id
        commit()
        lost = client.create_run("0").info.run_id
        raise ZeroDivisionError
    assert client.get_run(kept)
    with pytest.raises(MlflowException):
        client.get_run(lost)


def test_another_thread_has_a_session_of_its_own(client: MlflowClient) -> None:
    """It sees nothing that is not committed, and what it writes stays."""
    seen: list[object] = []

    def look(run_id: str) -> None:
        try:
            seen.append(client.get_run(run_id))
        except MlflowException as error:
            seen.append(error.error_code)

    with one_session(client) as commit:
        run_id = client.create_run("0").info.run_id
        for _ in range(2):
            thread = threading.Thread(target=look, args=(run_id,))
            thread.start()
            thread.join()
            commit()
    assert seen[0] == "RESOURCE_DOES_NOT_EXIST"
    assert getattr(seen[1], "info").run_id == run_id  # noqa: B009
