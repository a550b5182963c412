"""What the checks of rows and prompts find in the package's benchmarks: on their own and invented rows, and on real rows in `shared`."""

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest
from few import few
from rendered_tasks import needs_fixture, rows_of

from eval_dagster.datasets.reader import DatasetReader
from eval_dagster.errors import DatasetNotFoundError
from eval_dagster.project import Project
from eval_dagster.prompts.formatters import ConcatFormatter
from eval_dagster.prompts.lint import lint
from eval_dagster.prompts.rendering import Rendering, fewshot_pool, render_sample
from eval_dagster.records import Sample, Status
from eval_dagster.task_defs import TASKS
from eval_dagster.tasks.base import subject_name
from eval_dagster.tasks.samples import build_samples

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("EVAL_DAGSTER_SHARED", ROOT.parent / "shared")) / "datasets"
PROJECT = Project.open(config_path=ROOT / "evals.yaml")
MOST_ROWS = 150
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


@pytest.mark.skipif(
    not SHARED.is_dir(), reason=f"no dataset mirror in {SHARED.parent}: set EVAL_DAGSTER_SHARED to a folder that holds datasets/"
)
@few("name", [name for name, task in TASKS.items() if (SHARED / task.DATASET_PATH).is_dir()], kept=3)
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
