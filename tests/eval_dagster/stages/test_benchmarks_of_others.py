"""A benchmark that other code defines, through all stages."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from running_stages import run_all

from eval_dagster.lake.catalog import catalog
from eval_dagster.lake.format.parquet_files import read_rows
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.records import Message, ResponseType, Role, Row, TaskSample
from eval_dagster.stages.partition import STAGES, Partition, StageFailure
from eval_dagster.tasks.benchmark import Answer, BenchmarkMetric, BenchmarkRows, DatasetSplit, Item, OpenSplit, RenderSettings, adapter_task


class Sums:
    """Asks for a sum as text and as a choice. A row counts where both are right."""

    name = "Sums"
    description = "Sums, asked in two ways."
    subjects: Sequence[str] = ("small", "large")
    response_type = ResponseType.COMPLETION
    metrics: Sequence[BenchmarkMetric] = (
        BenchmarkMetric(name="both_right"),
        BenchmarkMetric(name="pairs_f1", aggregate=lambda items: sum(right for right, _ in items) / sum(size for _, size in items)),
    )
    num_fewshot = 0
    is_macro = False

    def version(self) -> str:
        return "1"

    def splits(self, subject: str, *, fewshot: bool) -> Sequence[DatasetSplit]:
        return [DatasetSplit(path="./sums", config=subject, split="test")]

    def read(self, subject: str, open_split: OpenSplit, *, fewshot: bool) -> BenchmarkRows:
        (split,) = self.splits(subject, fewshot=fewshot)
        return BenchmarkRows(evaluated=open_split(split))

    def render(self, subject: str, rows: BenchmarkRows, settings: RenderSettings) -> Iterator[Sequence[TaskSample]]:
        for row in rows.evaluated:
            text = f"{row['a']} + {row['b']} ="
            as_text = TaskSample(messages=[Message(Role.USER, text)], ground_truth=str(row["a"] + row["b"]))
            as_choice = TaskSample(
                messages=[Message(Role.USER, text)],
                prompt=f"{text} one of",
                ground_truth=None,
                response_type=ResponseType.LOGLIKELIHOODS,
                possible_completions=[" 3", " 9"],
                gold_indices=[],
                context={"kind": "choice"},
            )
            yield [as_text, as_choice]

    def score(self, subject: str, rows: BenchmarkRows, row: Row, answers: Sequence[Answer]) -> Mapping[str, Item]:
        text, choice = answers
        assert choice.context["kind"] == "choice"
        assert row in rows.evaluated
        total = row["a"] + row["b"]
        if total == 13:
            raise ArithmeticError("13 cannot be scored")
        best = choice.choices[max(range(2), key=lambda index: choice.loglikelihoods[index])]
        right = [text.texts[0].strip() == str(total), best.strip() == str(total)]
        return {"both_right": all(right), "pairs_f1": (sum(right), 2), "characters": len(text.texts[0])}


MODEL = """
def answer(request):
    if request.choices is not None:
        return [-1.0, -2.0]
    a, _, b, _ = request.prompt.split()
    return f" {int(a) + int(b)}"
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "model.py").write_text(MODEL)
    for subject, rows in {"small": "1,2\\n4,5\\n", "large": "1,2\\n6,7\\n"}.items():
        (tmp_path / "sums" / subject).mkdir(parents=True)
        (tmp_path / "sums" / subject / "test.csv").write_text("a,b\n" + rows.replace("\\n", "\n"))
    config: dict[str, Any] = {
        "models": {"adder": {"backend": "scripted", "function": "model.py:answer"}},
        "evals": {"sums": {"task": "sums"}},
    }
    (tmp_path / "evals.yaml").write_text(yaml.safe_dump(config))
    return Project.open(config_path=tmp_path / "evals.yaml", home=tmp_path / "home", tasks={"sums": adapter_task(Sums())})


def _run(project: Project) -> Partition:
    outcomes = list(evaluate(project, [("sums", "adder")], stages=STAGES, run_id="test", reporter=SilentReporter()))
    assert [each.message for each in outcomes if isinstance(each, StageFailure)] == []
    return Partition(project=project, eval_name="sums", model="adder", run_id="test")


@pytest.mark.long
def test_rows_are_scored_from_all_their_answers(project: Project) -> None:
    partition = _run(project)
    prompts = read_rows(partition.require("rendered_prompts").path)
    assert [row["prompt"] for row in prompts][:2] == ["1 + 2 =", "1 + 2 = one of"]
    assert len(prompts) == 8
    scores = read_rows(partition.require("sample_scores").path)
    both = [row for row in scores if row["metric"] == "both_right"]
    assert [(row["subject"], row["value"]) for row in both] == [("small", 1.0), ("small", 0.0), ("large", 1.0), ("large", None)]
    assert both[-1]["error"] == "ArithmeticError: 13 cannot be scored"
    assert partition.require("sample_scores").info.counts["errors"] > 0


def test_items_are_aggregated_overall_and_by_subject(project: Project) -> None:
    metrics = read_rows(_run(project).require("task_metrics").path)
    found = {(row["metric"], row["subject"], row["aggregation"]): row for row in metrics}
    overall = found["pairs_f1", None, "corpus"]
    assert (overall["value"], overall["n"], overall["n_errors"]) == (pytest.approx(5 / 6), 3, 1)
    assert found["pairs_f1", "small", "corpus"]["value"] == 0.75
    assert found["pairs_f1", "large", "corpus"]["value"] == 1.0
    assert found["both_right", None, "micro"]["value"] == pytest.approx(2 / 3)
    assert found["both_right", None, "micro"]["is_headline"]
    assert found["characters", None, "micro"]["value"] == 2.0, "a value under a name that is not listed is averaged"


@pytest.mark.long
def test_a_second_run_is_cached(project: Project) -> None:
    first = _run(project).require("sample_scores").info
    again = _run(project).require("sample_scores").info
    assert again.fingerprint == first.fingerprint


class Fragile(Sums):
    """Has no questions about a row whose sum is 9."""

    def render(self, subject: str, rows: BenchmarkRows, settings: RenderSettings) -> Iterator[Sequence[TaskSample] | BaseException]:
        for row, asked in zip(rows.evaluated, super().render(subject, rows, settings), strict=True):
            yield ValueError("nine") if row["a"] + row["b"] == 9 else asked


class Broken(Sums):
    """Ends at a row whose sum is 9."""

    def render(self, subject: str, rows: BenchmarkRows, settings: RenderSettings) -> Iterator[Sequence[TaskSample]]:
        for asked in super().render(subject, rows, settings):
            if asked[0].ground_truth == "9":
                raise ValueError("nine")
            yield asked


def _with(project: Project, benchmark: Sums) -> Project:
    return Project.open(config_path=project.config_path, home=project.home, tasks={"sums": adapter_task(benchmark)})


def test_a_benchmark_gives_the_error_of_a_row(project: Project) -> None:
    project = _with(project, Fragile())
    _, failures = run_all(project, [("sums", "adder")])
    assert failures == []
    found = {row["error"] for row in catalog.read_rows(project.lake, "select error from errors where metric = 'both_right'")}
    assert "RowError: row 1 of split 'evaluated' (subject 'small'): the task raised ValueError: nine" in found


def test_a_benchmark_that_ends_early_fails_its_eval(project: Project) -> None:
    _, (failure,) = run_all(_with(project, Broken()), [("sums", "adder")])
    assert "eval sums: row 1 of split 'evaluated' (subject 'small'): the task raised ValueError: nine" in failure.message
