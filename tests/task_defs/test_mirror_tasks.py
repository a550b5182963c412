"""Tasks against real rows: a mirror of Hub datasets and reference prompts, in a folder `shared` beside the checkout."""

import os
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow.parquet as pq
import pytest

from eval_dagster.datasets.reader import DatasetReader
from eval_dagster.metrics.base import LoglikelihoodMetric, named_values
from eval_dagster.metrics.completion import ExactNumber
from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood, AccuracyNormLoglikelihood
from eval_dagster.prompts.formatters import ConcatFormatter
from eval_dagster.prompts.rendering import Rendering, fewshot_pool, render_sample
from eval_dagster.records import Completion, Loglikelihood, Sample
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.task_defs import TASKS
from eval_dagster.tasks.base import FewshotStrategy
from eval_dagster.tasks.samples import build_samples

SHARED = Path(os.environ.get("EVAL_DAGSTER_SHARED", Path(__file__).resolve().parents[3] / "shared"))
pytestmark = pytest.mark.skipif(
    not (SHARED / "datasets").is_dir(), reason=f"no dataset mirror in {SHARED}: set EVAL_DAGSTER_SHARED to a folder that holds datasets/"
)


def rendered(name: str, subject: str, fewshot: int, strategy: FewshotStrategy | None = None) -> Iterator[tuple[Sample, RenderedPrompt]]:
    task = TASKS[name](num_fewshot=fewshot)
    samples = build_samples(DatasetReader(SHARED / "datasets").read(task, subject, fewshot=fewshot > 0), subject)
    pool = fewshot_pool(task, [sample for sample in samples if sample.split == task.FEWSHOT_SPLIT])
    rendering = Rendering(task=task, formatter=ConcatFormatter(), num_fewshot=fewshot, strategy=strategy).knowing(samples)
    for sample in samples:
        if sample.split == task.SAMPLE_SPLIT:
            (prompt,) = render_sample(rendering, sample, pool)
            yield sample, prompt


def reference(task: str) -> list[dict[str, Any]]:
    file = SHARED / "reference/lm_eval_smollm2_135m.parquet"
    if not file.is_file():
        pytest.skip(f"no reference prompts: {file} is missing")
    rows: list[dict[str, Any]] = pq.read_table(file).to_pylist()
    return [row for row in rows if row["task"] == task]


def scores(metric: type[LoglikelihoodMetric], rows: list[dict[str, Any]], prompts: list[RenderedPrompt]) -> list[float]:
    """A metric of the log-probabilities that lm-eval found for these very requests."""
    by_doc: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        by_doc.setdefault(row["doc_index"], []).append(row)
    values = []
    for index, choices in by_doc.items():
        choices.sort(key=lambda row: row["choice"])
        view = Loglikelihood(
            loglikelihoods=[row["logprob"] for row in choices],
            choices=prompts[index].request.choices or (),
            gold_indices=prompts[index].gold_indices,
        )
        values.append(named_values("metric", metric().calculate(view))["metric"])
    return values


def test_hellaswag_asks_what_lm_eval_asks() -> None:
    prompts = [prompt for _, prompt in rendered("hellaswag", "default", 0)]
    assert len(prompts) == 2000
    rows = reference("hellaswag")
    assert len({row["doc_index"] for row in rows}) == 100
    for row in rows:
        request = prompts[row["doc_index"]].request
        assert request.choices is not None
        assert (request.prompt, request.choices[int(row["choice"])]) == (row["context"], row["continuation"])
    assert fmean(scores(AccuracyLoglikelihood, rows, prompts)) == pytest.approx(0.40)
    assert fmean(scores(AccuracyNormLoglikelihood, rows, prompts)) == pytest.approx(0.46)


@pytest.mark.parametrize(("subject", "accuracy"), [("anatomy", 0.40), ("astronomy", 0.40), ("marketing", 0.15)])
def test_mmlu_asks_what_lm_eval_asks(subject: str, accuracy: float) -> None:
    prompts = [prompt for _, prompt in rendered("mmlu", subject, 5, "first")]
    with_examples = [prompt.request for prompt in prompts]
    without = [prompt.messages[-1].content for _, prompt in rendered("mmlu", subject, 0)]
    for row in reference(f"mmlu_{subject}"):
        request = with_examples[row["doc_index"]]
        assert request.choices is not None
        assert (request.prompt, request.choices[int(row["choice"])]) == (row["context"], row["continuation"])
        assert row["context"].endswith(without[row["doc_index"]].partition("\n\n")[2])
    assert fmean(scores(AccuracyLoglikelihood, reference(f"mmlu_{subject}"), prompts)) == pytest.approx(accuracy)


@pytest.mark.long
def test_every_row_of_every_mmlu_subject_can_be_asked() -> None:
    task = TASKS["mmlu"]
    DatasetReader(SHARED / "datasets").check(task, task.SUBJECTS, fewshot=True)
    assert len(task.SUBJECTS) == 57
    for subject in task.SUBJECTS:
        for sample, prompt in rendered("mmlu", subject, 4):
            assert prompt.gold_indices == (sample.row["answer"],)
            assert prompt.request.prompt.startswith("The following are multiple choice questions (with answers) about ")


@pytest.mark.long
def test_gsm8k_asks_what_lm_eval_asks_and_its_own_solutions_are_right() -> None:
    questions = [prompt.messages[-1].content for _, prompt in rendered("gsm8k", "main", 5)]
    for sample, prompt in rendered("gsm8k", "main", 0):
        answer = Completion(completion_text=sample.row["answer"], ground_truths=prompt.ground_truths)
        assert ExactNumber().calculate(answer) == 1.0
    assert len(questions) == 1319
    rows = reference("gsm8k")
    assert len(rows) == 16
    for row in rows:
        assert row["context"].endswith(f"\n\n{questions[row['doc_index']]}")
