"""The tables that Dagster's pages show: what stands in them, and that they fit."""

import textwrap
from typing import Any

import dagster as dg
import pytest

from eval_dagster.assets.definitions import build_definitions
from eval_dagster.assets.previews import _metric_rows, markdown_table, preview_metadata, table_metadata
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, StageResult

CONFIG = """
    models:
      sevens: {backend: scripted, default: " 7", answers: {"capital of Algeria": " Algiers"}}
    evals:
      sums: {task: arithmetic, num_fewshot: 3, limit: 2}
      capitals: {task: capitals, num_fewshot: 3, limit: 2}
"""
MOST_CHARACTERS = 260
"""Of the first four columns together: they stand on a page 1,400 pixels wide, beside Dagster's navigation."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    folder = tmp_path_factory.mktemp("tables")
    (folder / "evals.yaml").write_text(textwrap.dedent(CONFIG))
    return Project.open(config_path=folder / "evals.yaml", home=folder / "home")


@pytest.fixture(scope="module")
def previews(project: Project) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The rows of each stage and eval as its preview shows them."""
    partitions = [("sums", "sevens"), ("capitals", "sevens")]
    outcomes = list(evaluate(project, partitions, stages=set(STAGES), run_id="run", reporter=SilentReporter()))
    assert all(isinstance(outcome, StageResult) for outcome in outcomes), outcomes
    results = [outcome for outcome in outcomes if isinstance(outcome, StageResult)]
    return {(each.stage, each.eval_name): [dict(row.data) for row in preview_metadata(each)["preview"].records] for each in results}


@pytest.mark.long
def test_previews_fit_the_page(previews: dict[tuple[str, str], list[dict[str, Any]]]) -> None:
    assert len(previews) == 2 * len(STAGES)
    for key, rows in previews.items():
        for row in rows:
            assert len(row) <= 8, key
            assert sum(len(str(value)) for value in list(row.values())[:4]) <= MOST_CHARACTERS, (key, row)


@pytest.mark.long
def test_scores_show_the_answer_beside_the_gold_one(previews: dict[tuple[str, str], list[dict[str, Any]]]) -> None:
    row = previews["sample_scores", "sums"][0]
    assert list(row)[:4] == ["score", "answer", "gold", "question"]
    assert row["answer"].strip() == "7"
    assert row["score"] == float(row["gold"].strip() == "7")
    assert row["question"].endswith("What is 59 + 65?\nA:"), "the question stands at the end of a prompt"
    assert row["question"].startswith("…")
    assert "error" not in row, "no column is empty"
    chosen = previews["sample_scores", "capitals"][0]
    assert (chosen["answer"] == chosen["gold"]) == (chosen["score"] == 1.0)


def test_metrics_are_scores_with_error_bars(previews: dict[tuple[str, str], list[dict[str, Any]]]) -> None:
    first = previews["task_metrics", "sums"][0]
    assert list(first) == ["score", "subject", "samples", "95 % interval"], "one metric, which is beside the table, and no errors"
    assert "±" in first["score"]
    subjects = ["(all)", "(mean of subjects)", "addition", "multiplication", "subtraction"]
    assert [row["subject"] for row in previews["task_metrics", "sums"]] == subjects
    several = previews["task_metrics", "capitals"]
    assert list(several[0]) == ["score", "subject", "metric", "samples", "95 % interval"]
    assert {row["metric"] for row in several} == {"accuracy", "accuracy_norm"}


def test_errors_are_shown_where_there_are_any() -> None:
    shared = {"metric": "f1", "aggregation": "micro", "value": 0.5, "stderr": 0.1, "ci_low": 0.3, "ci_high": 0.7, "n": 4}
    [_, second] = _metric_rows([{**shared, "subject": None, "n_errors": 0}, {**shared, "subject": "south", "n_errors": 2}])
    assert second == {"score": "0.500 ± 0.100", "subject": "south", "samples": 4, "errors": 2, "95 % interval": "0.300 to 0.700"}


def test_answers_come_first_and_no_preview_has_ids(previews: dict[tuple[str, str], list[dict[str, Any]]]) -> None:
    assert list(previews["model_outputs", "sums"][0]) == ["text", "output_tokens"]
    assert list(previews["sample_scores", "sums"][0]) == ["score", "answer", "gold", "question", "subject"], "of several subjects"
    assert not [key for key, rows in previews.items() if any("sample_id" in row for row in rows)]


@pytest.mark.usefixtures("previews")
def test_the_leaderboards_summary_is_a_table(project: Project) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        result = (
            build_definitions(project)
            .resolve_implicit_global_asset_job_def()
            .execute_in_process(instance=instance, asset_selection=[dg.AssetKey("leaderboard")])
        )
    [materialization] = result.asset_materializations_for_node("leaderboard")
    summary = materialization.metadata["summary"]
    assert isinstance(summary, dg.MarkdownMetadataValue)
    head, rule, *rows = str(summary.value).splitlines()
    assert head == "| eval | rank | model | score | 95 % interval | samples | errors | metric |"
    assert rule == "| --- | ---: | --- | --- | --- | ---: | ---: | --- |"
    assert [row.split(" | ")[0].strip("| ") for row in rows] == ["capitals", "sums"]
    assert all(row.count("|") == 9 and "±" in row for row in rows)


def test_text_cannot_break_a_table() -> None:
    assert markdown_table([{"a": "x|y\nz", "b": 0.25}]).splitlines()[-1] == r"| x\|y z | 0.25 |"
    many = markdown_table([{"a": 1}] * 201)
    assert many.endswith("| 1 |\n\nand 1 more rows")


def test_what_a_failure_says_is_not_cut_where_a_preview_is() -> None:
    text = "x" * 1000
    [row] = table_metadata([{"message": text, "reason": text, "answer": text}]).records
    assert row.data == {"message": text, "reason": text, "answer": f"{'x' * 100}… (1000 characters)"}


def test_a_preview_that_cannot_be_read_costs_no_result(project: Project, caplog: pytest.LogCaptureFixture) -> None:
    outcomes = evaluate(project, [("sums", "sevens")], stages=set(STAGES), run_id="again", reporter=SilentReporter())
    [result] = [each for each in outcomes if isinstance(each, StageResult) and each.stage == "model_outputs"]
    damaged = result.file.path
    content = damaged.read_bytes()
    try:
        damaged.write_bytes(b"no Parquet")
        assert preview_metadata(result) == {}
        assert "model_outputs sums|sevens has no preview" in caplog.text
    finally:
        damaged.write_bytes(content)
