"""Tasks rendered from fixture rows, under every formatter, as a text for people."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from eval_dagster.models.base import ModelHandle
from eval_dagster.project import Project
from eval_dagster.prompts.formatters import formatter_for
from eval_dagster.prompts.rendering import Rendering, fewshot_pool, render_sample
from eval_dagster.records import Row, Sample
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.tasks.base import BaseTask, Formatter
from eval_dagster.tasks.benchmark import AdapterTask, OrderedTask
from eval_dagster.tasks.samples import build_samples

FIXTURES = Path(__file__).parent / "fixtures"
FORMATS = ("plain", "identity", "llama3", "chat")
_MOST_ROWS = 3
_END = "⟦end⟧"


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """A prompt, with what it was made of."""

    task: BaseTask[Any]
    sample: Sample
    formatter: Formatter
    shots: int
    prompt: RenderedPrompt


def file_stem(name: str) -> str:
    """What the files of a task are called: `folder/quiz.py:Quiz` has `folder.quiz.Quiz`."""
    return re.sub(r"[^\w-]+", ".", name.replace(".py:", ":")).strip(".")


def needs_fixture(task: type[BaseTask[Any]]) -> bool:
    """Whether a task's rows lie on the Hub, rather than in its code or in a folder beside evals.yaml."""
    return task._load_dataset is BaseTask._load_dataset and not task.DATASET_PATH.startswith((".", "/"))


def fixture_of(task: type[BaseTask[Any]], fixtures: Path = FIXTURES) -> Path:
    """The file of invented rows that a task reads: that of its first subject where there is one, else its dataset's.

    Tasks of one dataset share it. A file of a subject is for datasets whose configurations differ in their fields.
    """
    dataset = task.DATASET_PATH.replace("/", ".")
    of_subject = fixtures / f"{dataset}.{file_stem(str(task.SUBJECTS[0]))}.yaml"
    return of_subject if of_subject.is_file() else fixtures / f"{dataset}.yaml"


def rows_of(project: Project, name: str, fixtures: Path = FIXTURES) -> dict[str, list[Row]]:
    """The rows of a task by split: its own, or those of its fixture."""
    task = project.named_task(name)
    if not needs_fixture(task):
        return project.reader.read(task(), task.SUBJECTS[0], fewshot=task.FEWSHOT_SPLIT is not None)
    file = fixture_of(task, fixtures)
    if not file.is_file():
        splits = " and ".join(dict.fromkeys(split for split in (task.SAMPLE_SPLIT, task.FEWSHOT_SPLIT) if split))
        raise AssertionError(
            f"the task {name} has no fixture: write {file} with invented rows in the schema of {task.DATASET_PATH}: a mapping from the "
            f"splits ({splits}) to lists of rows, one to {_MOST_ROWS} to be asked and two more to be examples"
        )
    rows: dict[str, list[Row]] = yaml.safe_load(file.read_text("utf-8"))
    if task.SUBJECT_FIELD is None:
        return rows
    first = rows[task.SAMPLE_SPLIT][0][task.SUBJECT_FIELD]
    return {split: [row for row in of_split if row[task.SUBJECT_FIELD] == first] for split, of_split in rows.items()}


def rendered(project: Project, name: str, handle: ModelHandle, fixtures: Path = FIXTURES) -> Iterator[Rendered]:
    """The prompts of a task's first rows under every formatter, without and with examples."""
    task_class = project.named_task(name)
    samples = build_samples(rows_of(project, name, fixtures), task_class.SUBJECTS[0])
    asked = [sample for sample in samples if sample.split == task_class.SAMPLE_SPLIT]
    # Of rows that are examples, too, or are the task's own, one is enough to be read.
    most = _MOST_ROWS if needs_fixture(task_class) and task_class.FEWSHOT_SPLIT != task_class.SAMPLE_SPLIT else 1
    draws = task_class._sample_fewshot_examples is not BaseTask._sample_fewshot_examples
    for formatter in (formatter_for(each, handle) for each in FORMATS):
        for shots in (0, 2) if draws or task_class.FEWSHOT_SPLIT else (0,):
            task = task_class(num_fewshot=shots)
            pool = fewshot_pool(task, [sample for sample in samples if sample.split == task.FEWSHOT_SPLIT])
            rendering = Rendering(task=task, formatter=formatter, num_fewshot=shots)
            if not isinstance(task, AdapterTask | OrderedTask):
                rendering = rendering.knowing(asked)
            for sample in asked[:most]:
                for prompt in render_sample(rendering, sample, pool):
                    yield Rendered(task=task, sample=sample, formatter=formatter, shots=shots, prompt=prompt)


def as_text(each: Rendered) -> str:
    """A prompt and what is asked after it, to be read and compared."""
    number = f".{each.prompt.sample_id.partition('.')[2]}" if "." in each.prompt.sample_id else ""
    title = f"{each.formatter.name} · {each.shots} shots · row {each.sample.row_index}{number}"
    return "\n".join([f"======== {title} ========", f"{each.prompt.request.prompt}{_END}", *_asked(each.prompt), ""])


def _asked(prompt: RenderedPrompt) -> Iterator[str]:
    request = prompt.request
    tokens = "in the prompt" if request.has_special_tokens else "left to the tokenizer"
    yield f"-------- {prompt.response_type.value}, special tokens {tokens}"
    for index, choice in enumerate(request.choices or ()):
        yield f"choice        {choice!r}{'  ← gold' if index in prompt.gold_indices else ''}"
    if request.choices is None and prompt.ground_truths:
        yield f"gold          {', '.join(map(repr, prompt.ground_truths))}"
    if settings := request.generation:
        yield f"stop          {', '.join(map(repr, settings.stop_sequences)) or 'none'}"
        yield f"max tokens    {settings.max_tokens}"
        if settings.num_samples > 1:
            yield f"texts         {settings.num_samples}"
        if settings.grammar:
            yield f"grammar       {settings.grammar.kind} {settings.grammar.value}"
    if request.unconditioned_prompt is not None:
        yield f"unconditioned {request.unconditioned_prompt!r}"
    if request.images:
        yield f"images        {len(request.images)}"
    for context in prompt.context:
        yield f"context       {context.model_dump(mode='json')}"
