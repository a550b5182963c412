"""What MLflow gets of a result: the same columns for each eval, each metric under a name of its own, and a table of subjects."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from running_stages import run_all

from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.project import Project
from eval_dagster.stages.metrics import run_figures, subject_tables

TASK = """
    from eval_dagster.metrics.base import CompletionMetric
    from eval_dagster.records import ResponseType
    from eval_dagster.tasks.base import BaseTask

    def metric(name, factor):
        def calculate(self, response):
            if response.completion_text == "5":
                raise ValueError("five is too many")
            return factor * len(response.completion_text)

        return type(name, (CompletionMetric,), {"NAME": name, "__module__": __name__, "calculate": calculate})

    NAMES = {"length": 1, "score": 2, "stderr": 3, "n": 4, "cost": 5, "metric.n": 6, "length.stderr": 7, "score.ci_low": 8}
    METRICS = [metric(name, factor) for name, factor in NAMES.items()]

    class Numbers(BaseTask[str]):
        NAME = "Numbers"
        DATASET_PATH = "numbers"
        SAMPLE_SPLIT = "test"
        RESPONSE_TYPE = ResponseType.COMPLETION
        METRICS = METRICS
        SUBJECTS = ["all"]

        def _load_dataset(self, subject):
            return {"test": [{"n": n} for n in range(20)]}

        def _get_instruction_text(self, item):
            return f"Say {item['n']}."

        def _get_ground_truth(self, item):
            return str(item["n"])
"""
ANSWER = r"""
    import re

    def answer(request):
        return re.search(r"\d+", request.prompt)[0]
"""
CONFIG = """
    models:
      scripted: {backend: scripted, function: "answer.py:answer"}
    evals:
      numbers: {task: "numbers_task.py:Numbers"}
      arithmetic: {task: arithmetic, limit: 5}
"""


@pytest.mark.long
def test_each_eval_has_score_stderr_and_n_and_no_metric_of_these_names_is_lost(
    open_project: Callable[..., Project], write: Callable[[str, str], Path]
) -> None:
    write("numbers_task.py", TASK)
    write("answer.py", ANSWER)
    project = open_project(CONFIG)
    _, failures = run_all(project, [("numbers", "scripted"), ("arithmetic", "scripted")])
    assert not failures
    runs = {}
    for row in read_rows(project.lake, "select * from metrics where is_headline"):
        runs[row["eval"]] = tracked = project.tracker._client.get_run(row["mlflow_run_id"]).data.metrics
        assert [tracked[name] for name in ("score", "stderr", "n")] == pytest.approx([row["value"], row["stderr"], row["n"]])
    figures = runs["numbers"]
    assert (figures["score"], figures["n"], figures["score.n_errors"]) == (pytest.approx(29 / 19), 19, 1), "5 is an error"
    assert figures["length"] == figures["score"]
    of_names = {"score": 2, "stderr": 3, "n": 4, "cost": 5, "metric.n": 6, "length.stderr": 7, "score.ci_low": 8}
    for name, factor in of_names.items():
        assert figures[f"metric.{name}"] == pytest.approx(factor * figures["length"]), name
        assert figures[f"metric.{name}.stderr"] == pytest.approx(factor * figures["stderr"]), name
    assert figures["length.stderr"] == figures["stderr"]


def _row(metric: str, value: float | None = 1.0, **changes: Any) -> dict[str, Any]:
    counts = {"n": 4, "n_errors": 0, "stderr": 0.1, "ci_low": 0.0, "ci_high": 2.0}
    return {"metric": metric, "subject": None, "aggregation": "micro", "is_headline": False, "value": value, **counts, **changes}


def test_the_score_is_the_headline_wherever_it_is_among_the_metrics() -> None:
    figures = run_figures([_row("score", 0.5), _row("chrf", 0.2), _row("chrf", 0.3, aggregation="macro", is_headline=True, n=9)])
    assert (figures["score"], figures["stderr"], figures["n"]) == (0.3, 0.1, 9)
    assert (figures["metric.score"], figures["chrf"], figures["chrf_macro"]) == (0.5, 0.2, 0.3)


def test_a_mean_of_subjects_and_a_metric_of_its_name_are_both_there() -> None:
    figures = run_figures([_row("f1", 0.1, is_headline=True), _row("f1", 0.2, aggregation="macro"), _row("f1_macro", 0.3)])
    assert (figures["f1"], figures["f1_macro"], figures["metric.f1_macro"]) == (0.1, 0.2, 0.3)


def test_a_metric_has_the_same_name_whatever_is_known_of_the_costs() -> None:
    """Costs are added where they are known, which may differ between two models of an eval."""
    assert {"metric.cost", "metric.worker_s"} < run_figures([_row("cost"), _row("worker_s")]).keys()


def test_without_a_headline_there_is_no_score() -> None:
    assert run_figures([_row("f1", 0.1), _row("f1", 0.2, subject="south", is_headline=False)]) == {"f1": 0.1, "f1.stderr": 0.1}


def test_the_subjects_are_a_table_of_the_headline_alone() -> None:
    rows = [_row("f1", 0.4, is_headline=True), _row("f1", 0.3, aggregation="macro"), _row("em", 0.2)]
    assert subject_tables(rows) == {}, "one subject needs no table"
    rows += [_row("f1", 1 / 3, subject="north"), _row("em", 0.1, subject="north")]
    rows += [_row("f1", None, subject="south", stderr=None, ci_low=None, ci_high=None, n=0, n_errors=4)]
    north = {"subject": "north", "score": 0.3333, "stderr": 0.1, "95 % interval": "0.000 to 2.000", "n": 4, "errors": 0}
    south = {"subject": "south", "score": None, "stderr": None, "95 % interval": "–", "n": 0, "errors": 4}
    table = subject_tables(rows)["subjects"].astype(object)
    assert table.where(table.notna(), None).to_dict("records") == [north, south]
    assert "errors" not in subject_tables(rows[:-1])["subjects"], "a column of nothing but 0 takes the place of others"
