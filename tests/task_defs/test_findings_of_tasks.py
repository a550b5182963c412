"""Findings of the checks in the package's benchmarks: on their own and invented rows, and on real rows in `shared`."""

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from few import few
from rendered_tasks import needs_fixture, rows_of

from eval_dagster.datasets.reader import DatasetReader
from eval_dagster.errors import DatasetNotFoundError
from eval_dagster.lake.files import table_of
from eval_dagster.lake.format.parquet_files import write_parquet
from eval_dagster.lake.tables.rows import answer_row, prompt_row, score_row
from eval_dagster.project import Project
from eval_dagster.prompts import checks
from eval_dagster.prompts.formatters import ConcatFormatter
from eval_dagster.prompts.lint import lint
from eval_dagster.prompts.rendering import Rendering, fewshot_pool, render_sample
from eval_dagster.records import Finding, ModelResponse, ResponseType, Sample, Status
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.sandbox import SandboxPolicy, sandbox_policy
from eval_dagster.stages.aggregation import metric_rows
from eval_dagster.stages.answer_checks import answer_findings
from eval_dagster.stages.answer_columns import read_answers
from eval_dagster.stages.answer_figures import with_answer_figures
from eval_dagster.stages.findings import bounds_finding, ties_finding
from eval_dagster.stages.score_columns import read_scores
from eval_dagster.stages.scores import clusters_of, scores_of
from eval_dagster.task_defs import TASKS
from eval_dagster.tasks.base import BaseTask, subject_name
from eval_dagster.tasks.samples import build_samples

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("EVAL_DAGSTER_SHARED", ROOT.parent / "shared")) / "datasets"
PROJECT = Project.open(config_path=ROOT / "evals.yaml")
MOST_ROWS = 150
MIRRORED = [name for name, task in TASKS.items() if (SHARED / task.DATASET_PATH).is_dir()]
WITHOUT_GOLD = {"ifeval"}
"""Tasks that have instructions instead of gold answers."""
needs_mirror = pytest.mark.skipif(
    not SHARED.is_dir(), reason=f"no dataset mirror in {SHARED.parent}: set EVAL_DAGSTER_SHARED to a folder that holds datasets/"
)
TRUE = {"mmlu_bpb": {"duplicates"}}
"""What is found on real rows and true: without its choices, "Which of the following is true?" is one question, with the same gold text."""


def checks_found(name: str, samples: Sequence[Sample], shots: int) -> set[str]:
    task = TASKS[name](num_fewshot=shots)
    pools: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.split == task.FEWSHOT_SPLIT:
            pools[sample.subject].append(sample)
    drawn = {subject: fewshot_pool(task, pool) for subject, pool in pools.items()}
    rendering = Rendering(task=task, formatter=ConcatFormatter(), num_fewshot=shots)
    asked = [sample for sample in samples if sample.split == task.SAMPLE_SPLIT]
    prompts = [prompt for sample in asked for prompt in render_sample(rendering, sample, drawn.get(sample.subject))]
    findings = lint(prompts, num_fewshot=shots)
    assert prompts
    assert not [each for each in findings if each.seen.startswith("the check raised")]
    return {str(each.check) for each in findings if each.status is Status.FOUND}


@pytest.mark.parametrize("name", TASKS)
def test_nothing_is_found_in_invented_and_own_rows(name: str) -> None:
    task = TASKS[name]
    samples: list[Sample] = []
    for subject in task.SUBJECTS if not needs_fixture(task) else task.SUBJECTS[:1]:
        rows = (
            PROJECT.reader.read(task(), subject, fewshot=task.FEWSHOT_SPLIT is not None)
            if not needs_fixture(task)
            else rows_of(PROJECT, name)
        )
        samples += [sample for sample in build_samples(rows, subject_name(subject)) if sample.row_index < MOST_ROWS]
    for shots in (0, 2) if task.FEWSHOT_SPLIT else (0,):
        assert checks_found(name, samples, shots) == set(), shots


@pytest.mark.long
@needs_mirror
@few("name", MIRRORED, kept=3)
def test_what_is_found_in_real_rows_is_true(name: str) -> None:
    task = TASKS[name]
    most = min(task.customary().num_fewshot, 4)  # one of five examples of MMLU is the question in a row
    for shots in dict.fromkeys([0, most]):
        reader = DatasetReader(SHARED)
        try:
            reader.check(task, task.SUBJECTS, fewshot=shots > 0)
        except DatasetNotFoundError:
            continue  # the mirror lacks the split of the examples
        samples = [
            sample
            for subject in task.SUBJECTS
            for sample in build_samples(reader.read(task(num_fewshot=shots), subject, fewshot=shots > 0), subject_name(subject))
        ]
        assert checks_found(name, samples, shots) <= TRUE.get(name, set()), shots


def gold_response(task: BaseTask[Any], sample: Sample, prompt: RenderedPrompt) -> ModelResponse:
    """The answer of a model that is certain of the gold answer."""
    asked = checks._Asked(task=task, sample=sample, prompt=prompt, formatter=ConcatFormatter())
    if prompt.response_type is ResponseType.PERPLEXITY:
        return ModelResponse(token_logprobs=[[-0.01] * 9])
    if prompt.response_type is ResponseType.LOGLIKELIHOODS:
        golds, longest = asked.gold_indices, max(len(choice.encode()) for choice in asked.choices)
        return ModelResponse(
            token_logprobs=[
                [-0.01 if place == golds[0] else -1.0 if place in golds else -20.0 * longest] for place in range(len(asked.choices))
            ],
            unconditioned_logprobs=None if prompt.request.unconditioned_prompt is None else [-1.0] * len(asked.choices),
            argmax_logits_eq_gold=[place == golds[0] for place in range(len(asked.choices))],
        )
    count = prompt.request.generation.num_samples if prompt.request.generation else 1
    return ModelResponse(text=[asked.answer] * count, finish_reason=["stop"] * count, reasonings=[None] * count)


def findings_of_gold(name: str, samples: Sequence[Sample], folder: Path) -> list[Finding]:
    """The findings in a result of such a model. It is read from files as those of the lake."""
    task = TASKS[name](num_fewshot=0)
    rendering = Rendering(task=task, formatter=ConcatFormatter(), num_fewshot=0).knowing(samples)
    asked = {sample.sample_id: sample for sample in samples if sample.split == task.SAMPLE_SPLIT}
    answered = [
        (prompt, gold_response(task, sample, prompt)) for sample in asked.values() for prompt in render_sample(rendering, sample, None)
    ]
    prompts, outputs = folder / f"{name}.prompts.parquet", folder / f"{name}.responses.parquet"
    write_parquet(prompts, table_of("prompts", [prompt_row(name, "gold", prompt, 0, "v") for prompt, _ in answered]))
    rows = [{**answer_row(prompt.request.request_id, response, "v"), "sample_id": prompt.sample_id} for prompt, response in answered]
    write_parquet(outputs, table_of("responses", rows))
    clusters = clusters_of(TASKS[name], asked, name)
    types = {prompt.response_type for prompt, _ in answered}
    scored = folder / f"{name}.scores.parquet"
    found_scores = scores_of(task, asked, iter(answered), types)
    of_samples = [score_row(name, "gold", prompt, clusters[prompt.source_id], score) for prompt, score in found_scores]
    write_parquet(scored, table_of("scores", of_samples))
    scores = read_scores(scored)
    answers = read_answers(TASKS[name], prompts, outputs, scored, scores)
    metrics = with_answer_figures(TASKS[name], metric_rows(TASKS[name], scores), scores, answers)
    found = answer_findings(TASKS[name], metrics, scores, answers, None)
    assert not [each for each in found if each.seen.startswith("the check raised")]
    return [*found, *filter(None, (ties_finding(metrics, scores), bounds_finding(metrics, scores, TASKS[name].METRICS)))]


def runs_code(name: str) -> bool:
    return any(metric.EXECUTES_CODE for metric in TASKS[name].METRICS)


def assert_sound(results: Mapping[str, list[Finding]], least: int) -> None:
    """At most 1 % of the checks find something, and many looked."""
    looked = [each for findings in results.values() for each in findings if each.status is not Status.NOT_CHECKED]
    signs = {name: [str(each) for each in findings if each.status is Status.FOUND] for name, findings in results.items()}
    assert sum(map(len, signs.values())) <= 0.01 * len(looked), {name: found for name, found in signs.items() if found}
    assert len(looked) >= least


def gold_findings(names: Iterable[str], folder: Path) -> dict[str, list[Finding]]:
    """By task, the findings in gold answers to its own or invented rows."""
    return {
        name: findings_of_gold(name, build_samples(rows_of(PROJECT, name), subject_name(TASKS[name].SUBJECTS[0])), folder) for name in names
    }


@pytest.mark.long
def test_nothing_is_found_in_gold_answers(tmp_path: Path) -> None:
    assert_sound(gold_findings([name for name in TASKS if name not in WITHOUT_GOLD and not runs_code(name)], tmp_path), least=400)


@pytest.mark.long
@pytest.mark.usefixtures("_sandbox")
def test_nothing_is_found_in_gold_programs(tmp_path: Path) -> None:
    with sandbox_policy(SandboxPolicy(allowed=True)):
        assert_sound(gold_findings(filter(runs_code, TASKS), tmp_path), least=20)


@pytest.mark.long
@needs_mirror
def test_nothing_is_found_in_gold_answers_about_real_rows(tmp_path: Path) -> None:
    found = {}
    for name in [name for name in MIRRORED if not runs_code(name)]:
        task, subject = TASKS[name], TASKS[name].SUBJECTS[0]
        rows = DatasetReader(SHARED).read(task(num_fewshot=0), subject, fewshot=False)
        samples = build_samples({split: of_split[:MOST_ROWS] for split, of_split in rows.items()}, subject_name(subject))
        found[name] = findings_of_gold(name, samples, tmp_path)
    assert_sound(found, least=50)
