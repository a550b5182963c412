"""The command `tasks NAME`: what a benchmark is, one example as a model would see it, and whether its prompts are sound."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import typer
from rich.table import Table
from rich.text import Text

from eval_dagster.cli import task_facts
from eval_dagster.cli.console import errors, out, say
from eval_dagster.cli.prompt_view import print_prompt
from eval_dagster.cli.task_facts import TaskClass
from eval_dagster.cli.task_list import open_project
from eval_dagster.config.schema import EvalConfig
from eval_dagster.errors import DataError, UsageError
from eval_dagster.models.scripted import ScriptedHandle
from eval_dagster.project import Project
from eval_dagster.prompts.checks import formatting_problems
from eval_dagster.prompts.fewshot import FewshotPool
from eval_dagster.prompts.formatters import formatter_for
from eval_dagster.prompts.rendering import Rendering, fewshot_pool, render_sample
from eval_dagster.records import Sample
from eval_dagster.rendered_prompt import RenderedPrompt
from eval_dagster.sandbox import ALLOW_KEY, execution_allowed
from eval_dagster.stages.code_execution import allowed_execution
from eval_dagster.suggestions import did_you_mean
from eval_dagster.task_files.loading import select_subjects
from eval_dagster.tasks.base import BaseTask
from eval_dagster.tasks.formatter import Formatter
from eval_dagster.tasks.ordered import OrderedTask, shots_of
from eval_dagster.tasks.samples import build_samples, is_whole, place_of, unreadable_reason

_CHECKED_ROWS = 5


class PromptFormat(StrEnum):
    """How messages become a prompt; `chat` by the template of a model of evals.yaml."""

    PLAIN = "plain"
    CHAT = "chat"
    LLAMA3 = "llama3"
    IDENTITY = "identity"


@dataclass(frozen=True, kw_only=True)
class _Rendering:
    """How the rows of a task are rendered."""

    task: BaseTask[Any]
    settings: EvalConfig
    shots: int
    formatter: Formatter
    samples: list[Sample]
    pool: FewshotPool

    def prompts(self, sample: Sample) -> list[RenderedPrompt]:
        rendering = Rendering(
            task=self.task,
            formatter=self.formatter,
            num_fewshot=self.shots,
            seed=self.settings.seed,
            strategy=self.settings.fewshot_strategy,
            sets=self.settings.fewshot_sets,
            num_samples=self.settings.num_samples,
        )
        return render_sample(rendering, sample, self.pool)


def show_task(name: str, shots: int | None, prompt_format: PromptFormat | None, model: str | None = None) -> None:
    """Print what a task is, an example, and what is wrong with its first prompts; exit status 1 where something is.

    Args:
        name: Of the registry, or of an eval, or `path/to/file.py:Class`.
        shots: How many examples; as the eval or the task says where not given.
        prompt_format: How messages become text; that of the model where not given, and plain without one.
        model: Whose template `chat` is; the first model of that format where not given.

    Raises:
        UsageError: There is no such task or model, or its dataset or template is out of reach.
        DataError: A row cannot be rendered.
    """
    project, problem = open_project()
    if problem is not None:
        raise problem
    task, settings = _chosen(project, name)
    given = settings.num_fewshot if shots is None else shots
    _print_facts(name, task)
    formatter = _formatter(project, prompt_format, model)
    rendering = _read(project, task, settings, task.customary().num_fewshot if given is None else given, formatter)
    asked = ((sample, rendering.prompts(sample)) for sample in rendering.samples)
    sample, prompts = next(((sample, prompts) for sample, prompts in asked if prompts), (None, []))
    if sample is None:
        raise DataError(f"task {name} asks nothing about any of its {len(rendering.samples)} rows; expected at least one question")
    for number, prompt in enumerate(prompts, 1):
        which = f", question {number} of {len(prompts)}" if len(prompts) > 1 else ""
        out.print()
        print_prompt(prompt, f"{place_of(sample)}{which} · {formatter.name} · {_counted(rendering.shots, 'shot')}")
    _print_checks(rendering, project)


def _formatter(project: Project, prompt_format: PromptFormat | None, model: str | None) -> Formatter:
    wanted = prompt_format or PromptFormat(project.model(model).prompt_format if model else PromptFormat.PLAIN)
    if wanted is not PromptFormat.CHAT:
        # Scripted, a model needs no weights, and marks images by a word.
        return formatter_for(wanted, ScriptedHandle("example"))
    models = project.config.models
    name = model or next((each for each, settings in models.items() if settings.prompt_format == wanted.value), None)
    if name is None:
        raise UsageError(
            "--format chat needs the template of a model, and no model of evals.yaml has `prompt_format: chat`; choose one by "
            f"--model NAME; evals.yaml has: {', '.join(models) or 'none'}"
        )
    project.model(name)
    return formatter_for(wanted, project.handle(name))


def _chosen(project: Project, name: str) -> tuple[TaskClass, EvalConfig]:
    """The task of a name, and the settings of an eval of that name or the task's own."""
    if name not in project.tasks and name in project.config.evals:
        return project.task(name), project.eval(name)
    if name not in project.tasks and ".py:" not in name:
        known = [*project.tasks, *project.config.evals]
        raise UsageError(
            f"there is no task or eval {name!r}{did_you_mean(name, known)}; `eval-dagster tasks` lists all tasks, and one of your own is "
            "written path/to/file.py:Class, the path relative to the folder of evals.yaml"
        )
    task = project.named_task(name)
    return task, EvalConfig(task=name)


def _read(project: Project, task_class: TaskClass, settings: EvalConfig, shots: int, formatter: Formatter) -> _Rendering:
    """The rows of the first subject."""
    shots = shots_of(task_class, shots)
    subject, with_examples = select_subjects(task_class, settings.subjects)[0], shots > 0
    project.reader.check(task_class, [subject], fewshot=with_examples)
    task = task_class(num_fewshot=shots)
    read = build_samples(project.reader.read(task, subject, fewshot=with_examples), subject)
    if isinstance(task, OrderedTask):
        task.prepare(read)
    samples = [sample for sample in read if is_whole(sample.row)]
    _print_damaged([sample for sample in read if not is_whole(sample.row)], len(read))
    examples = [sample for sample in samples if with_examples and sample.split == task.FEWSHOT_SPLIT]
    return _Rendering(
        task=task,
        settings=settings,
        shots=shots,
        formatter=formatter,
        samples=[sample for sample in samples if sample.split == task.SAMPLE_SPLIT],
        pool=fewshot_pool(task, examples),
    )


def _print_damaged(samples: list[Sample], total: int) -> None:
    """Say which rows are left out of the page: in an eval each is an error where a model would be asked with it."""
    if samples:
        reason = unreadable_reason(samples[0].row) or f"{place_of(samples[0])} holds half of a character, or a byte that is no UTF-8"
        say(errors, "warning", f"{len(samples)} of {total} rows are damaged and not shown; the first: {reason}", style="yellow")


def _print_facts(name: str, task: TaskClass) -> None:
    out.print(f"{name} · {task.NAME}" if name != task.NAME else name, style="bold")
    if text := task_facts.description(task):
        out.print(text)
    out.print()
    headline, *others = task_facts.metrics(task)
    facts = {
        "type": task.RESPONSE_TYPE.value,
        "metrics": ", ".join([f"{headline} (headline)" if others else headline, *others]),
        "few-shot": task_facts.fewshot(task),
        "texts": task_facts.text_length(task),
        "dataset": task_facts.dataset(task),
        "subjects": task_facts.subjects(task),
        "language": task_facts.language(task.LANGUAGE),
        "source": task_facts.source(task),
    }
    table = Table.grid(padding=(0, 3))
    for fact, value in facts.items():
        if value is not None:
            table.add_row(fact, value)
    out.print(table)


def _print_checks(rendering: _Rendering, project: Project) -> None:
    checked = rendering.samples[:_CHECKED_ROWS]
    with allowed_execution(project):
        problems = list(_problems(rendering, checked))
        not_tried = [metric.NAME for metric in rendering.task.METRICS if metric.EXECUTES_CODE and not execution_allowed()]
    out.print()
    if not_tried:
        out.print(f"not tried: {', '.join(not_tried)}, which runs code; evals.yaml does not allow it ({ALLOW_KEY}: true)")
    rows = f"the first {len(checked)} rows" if len(checked) > 1 else "the only row"
    if not problems:
        out.print(Text.assemble(("✓", "green"), f" checked {rows}: the gold answer scores best, a wrong one worse;"))
        out.print("  choices, special tokens and white space are as they should be")
        return
    errors.print(f"✗ {_counted(len(problems), 'problem')} in {rows}", style="red")
    for problem in problems:
        errors.print(f"  {problem}", soft_wrap=True)
    raise typer.Exit(1)


def _problems(rendering: _Rendering, samples: list[Sample]) -> Iterator[str]:
    for sample in samples:
        for prompt in rendering.prompts(sample):
            for problem in formatting_problems(rendering.task, sample, prompt, formatter=rendering.formatter):
                yield f"row {sample.row_index}: {problem}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
