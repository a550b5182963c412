"""A suite whose served model reaches the cap of a day: what Dagster, the gate and the people are told, and how the next night goes on."""

import sqlite3
import textwrap
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from hook_server import hook_server
from mlflow import MlflowClient
from servers.stub import Stub, stub_server

from eval_dagster.assets.instance.instance import open_instance
from eval_dagster.assets.runs.in_process_runs import run_evaluation
from eval_dagster.gate.run_summary import RunSummary
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.records import read_attempts
from eval_dagster.project import Project
from eval_dagster.records.judgements import Verdict

CONFIG = """
    models:
      served:
        backend: openai
        base_url: {base_url}
        model: stub
        concurrency: 8
        price: {{input: 1, output: 4}}
        cost_per_day: 0.003
        canaries: 0
    evals:
      few: {{task: arithmetic, limit: 2}}
      sums: {{task: arithmetic, limit: {limit}, seed: 1}}
    suites:
      nightly: {{evals: [few, sums], models: [served], notify: [PAGER]}}
"""


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[Stub]:
    with stub_server(tmp_path, mean_tokens=20, sigma=0.8) as running:
        yield running


def night(folder: Path, stub: Stub, *, limit: int) -> tuple[Project, RunSummary]:
    """A night of the suite on a new day."""
    for path in folder.rglob("spend.db"):
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("update spent set day = date(day, '-1 day')")
    (folder / "evals.yaml").write_text(textwrap.dedent(CONFIG.format(base_url=stub.base_url, limit=limit)))
    project = Project.open(config_path=folder / "evals.yaml", home=folder / "home")
    project.check(*project.select(suite="nightly"))
    return project, run_evaluation(project, *project.select(suite="nightly"), suite="nightly")


def failure(project: Project, run_id: str) -> Any:
    """The data of the step that failed in a run."""
    with open_instance(project.home) as instance:
        (entry,) = instance.all_logs(run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
        assert entry.dagster_event is not None
        return entry.dagster_event.step_failure_data.user_failure_data


@pytest.mark.long
def test_the_cap_of_a_day_over_three_nights(tmp_path: Path, stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    with hook_server() as hook:
        monkeypatch.setenv("PAGER", hook.address)
        monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home" / "dagster"))
        _, first = night(tmp_path, stub, limit=10)
        assert not first.not_evaluated
        project, second = night(tmp_path, stub, limit=30)
        sent = sum(stub.counts().answered.values())
        _, third = night(tmp_path, stub, limit=30)
    left = 90 - sent
    assert second.failures == []
    [message] = second.not_evaluated
    assert f"model_outputs sums|served: {left} of 90 requests are left: Model 'served': the cap `cost_per_day: 0.003`" in message
    found = failure(project, second.run_ids[0])
    assert found.description.startswith("1 not evaluated, ")
    [record] = found.metadata["not_evaluated"].records
    assert (record.data["partition"], record.data["requests_left"]) == ("sums|served", left)
    assert second.gate is not None
    rows = {row.eval: row for row in second.gate.regressions}
    assert "was not evaluated on" in str(rows["sums"].reason)
    assert (rows["sums"].verdict, rows["sums"].is_passed, second.gate.is_failed) == (Verdict.NOT_EVALUATED, False, True)
    assert rows["few"].verdict is Verdict.NO_CHANGE_SEEN, "the other eval is judged"
    assert [notice["title"] for notice in hook.notices] == ["nightly: incomplete, 1 not evaluated"]
    assert third.not_evaluated == third.failures == []
    assert set(stub.counts().received.values()) == {1}, "nothing is asked twice"
    nights = [[each for each in read_attempts(project.lake) if each.run_id in summary.run_ids] for summary in (first, second, third)]
    assert [[(each.eval, each.status) for each in attempts] for attempts in nights] == [
        [("few", "ok"), ("sums", "ok")],
        [("few", "ok"), ("sums", "not evaluated")],
        [("few", "ok"), ("sums", "ok")],
    ]
    bill = sum((prompt + 4 * output) / 1e6 for prompt, output in stub.usages())
    assert sum(each.cost or 0.0 for attempts in nights for each in attempts) == pytest.approx(bill)
    assert read_rows(project.lake, "select n from leaderboard where eval = 'sums'") == [{"n": 90}]
    [row] = read_rows(project.lake, "select distinct mlflow_run_id as run from metrics where eval = 'sums'")
    tracked = MlflowClient(tracking_uri=f"sqlite:///{project.home / 'mlflow.db'}").get_run(row["run"]).data.metrics
    [of_answers] = read_rows(project.lake, "select sum(cost) as cost from responses where eval = 'sums'")
    assert tracked["cost"] == pytest.approx(of_answers["cost"])
    report = Path(str(second.report)).read_text("utf-8")
    assert f"{left} requests" in report
    assert "not evaluated" in report
