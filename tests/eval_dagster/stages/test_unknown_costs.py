"""A bill that lacks the cost of some answers says so wherever it is shown."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from running_stages import run_all
from servers.stub import stub_server

from eval_dagster.cli.leaderboard import answer_costs
from eval_dagster.cli.run_summary import cost_line
from eval_dagster.lake.records import read_attempts
from eval_dagster.lake.tables.columns import AnswerRow
from eval_dagster.lake.tables.events import Attempt
from eval_dagster.pages.report.page import attempt_cost
from eval_dagster.project import Project
from eval_dagster.stages.answer_counts import Costs

CONFIG = """
    models:
      served:
        backend: openai
        base_url: {url}
        model: stub
        canaries: 0
        price: {{input: 1, output: 2}}
    evals:
      sums: {{task: arithmetic, subjects: [addition], limit: 2}}
      more: {{task: arithmetic, subjects: [addition], limit: 4}}
"""


def _row(cost: float | None, attempts: int | None = 1) -> Mapping[str, Any]:
    return {"cost": cost, "attempts": attempts}


@pytest.mark.parametrize(
    ("rows", "has_price", "counts"),
    [
        ([_row(0.5), _row(0.25)], True, {"cost": 0.75}),
        ([_row(0.5), _row(None), _row(None)], True, {"cost": 0.5, "cost_unknown": 2}),
        ([_row(None)], True, {"cost_unknown": 1}),
        ([_row(None)], False, {}),
        ([_row(None, attempts=None)], True, {}),
    ],
)
def test_answers_without_a_cost_are_counted(rows: list[Mapping[str, Any]], has_price: bool, counts: dict[str, float]) -> None:
    costs = Costs(has_price=has_price)
    for row in rows:
        costs.add(cast(AnswerRow, row))
    assert costs.counts() == counts


@pytest.mark.long
def test_a_bill_with_a_gap_is_shown_as_one(open_project: Callable[..., Project], tmp_path: Path) -> None:
    with stub_server(tmp_path, answers={}) as stub:
        project = open_project(CONFIG.format(url=stub.base_url))
        run_all(project, [("sums", "served")])
        stub.change(usage=False)  # half of the second eval's answers are known
        results, failures = run_all(project, [("more", "served")])
    assert not failures
    counts = results["model_outputs", "more"].file.info.counts
    assert (counts["cost"] > 0, counts["cost_unknown"], counts["cost_unknown_computed"]) == (True, 2, 2)
    attempt = next(each for each in read_attempts(project.lake) if each.eval == "more")
    assert (attempt.cost, attempt.cost_unknown) == (None, 2)
    assert answer_costs(project.lake)["more", "served"].endswith(" + 2 unknown"), "as the leaderboard shows it"


@pytest.mark.parametrize(
    ("cost", "unknown", "line", "cell"),
    [
        (0.5, 3, "The answers of this run cost $0.5000; the cost of 3 is not known", "$0.5000 + 3 unknown"),
        (None, 3, "the cost of 3 is not known", "3 unknown"),
        (0.5, None, "The answers of this run cost $0.5000", "$0.5000"),
    ],
)
def test_summary_and_report_name_the_gap(cost: float | None, unknown: int | None, line: str, cell: str) -> None:
    now = datetime.now(UTC)
    shared = {"eval": "a", "model": "b", "run_id": "r", "finished_at": now, "status": "ok", "stage": "task_metrics", "message": None}
    attempt = Attempt(**shared, cost=cost, cost_unknown=unknown, cached=False)  # type: ignore[arg-type]
    assert cost_line([attempt]) == line
    assert attempt_cost(attempt) == cell
