"""The command `tasks`: with a name it shows the facts of a task and an example prompt, and checks its prompts."""

import inspect
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from eval_dagster.cli.console import errors, out, say
from eval_dagster.cli.show import print_prompt
from eval_dagster.cli.task_list import (
    TaskClass,
    dataset_of,
    fewshot_of,
    language_name,
    list_registry,
    list_tasks,
    metric_names,
    open_project,
    source_of,
)
from eval_dagster.config.schema import EvalConfig
from eval_dagster.errors import DataError, UsageError, WholeEvalError
from eval_dagster.metrics.base import RowMetric, response_kind
from eval_dagster.models.scripted import ScriptedHandle
from eval_dagster.project import Project
from eval_dagster.prompts.checks import checked_prompt
from eval_dagster.prompts.fewshot import FewshotPool
from eval_dagster.prompts.formatters import formatter_for
from eval_dagster.prompts.lint import lint
from eval_dagster.prompts.rendering import Rendering, checked, failed_prompt, fewshot_pool, render_sample, unreadable_prompt
from eval_dagster.records import Completion, Sample, Status
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.sandbox import ALLOW_KEY, execution_allowed
from eval_dagster.stages.imported import require_task
from eval_dagster.stages.partition import allowed_execution
from eval_dagster.stages.prompts import shared_names
from eval_dagster.stages.snapshot import names_checked
from eval_dagster.task_files.loading import select_subjects
from eval_dagster.tasks.base import BaseTask, Formatter, subject_name
from eval_dagster.tasks.benchmark import AdapterTask, OrderedTask, shots_of
from eval_dagster.tasks.samples import build_samples, is_whole, place_of
from eval_dagster.texts.figures import counted, did_you_mean

_CHECKED_ROWS = 5
_LINTED_ROWS = 200
"""Rows of a subject that are linted."""
_LINTED_SUBJECTS = 20
"""Subjects whose rows are linted, if they are on this machine; of a dataset of the Hub, the first one."""
_SUBJECTS = 4
"""Names of subjects that are shown."""


class PromptFormat(StrEnum):
    """How messages become a prompt. `chat` uses the template of a model of evals.yaml."""

    PLAIN = "plain"
    CHAT = "chat"
    LLAMA3 = "llama3"
    IDENTITY = "identity"


def tasks(
    name: Annotated[list[str] | None, typer.Argument(help="Task, eval, path/to/file.py:Class or lm_eval:NAME to show and check.")] = None,
    shots: Annotated[int | None, typer.Option(min=0, help="Number of few-shot examples; by default that of the eval or the task.")] = None,
    prompt_format: Annotated[
        PromptFormat | None, typer.Option("--format", help="Format of the prompt; by default that of the model, or plain.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Model whose prompt format, or `chat` template, is used; by default the first with one."),
    ] = None,
    source: Annotated[
        str | None, typer.Option(metavar="REGISTRY", help="List names of another package, lm_eval say: those that hold every word of NAME.")
    ] = None,
) -> None:
    """List tasks, or names of another package, or show one task."""
    if source is not None:
        list_registry(source, name or [])
    elif not name:
        list_tasks()
    else:
        show_task(" ".join(name), shots, prompt_format, model)


@dataclass(frozen=True, kw_only=True)
class _Page:
    """The rows of a task, and how they are rendered."""

    rendering: Rendering
    samples: list[Sample]
    pool: FewshotPool

    def prompts(self, sample: Sample) -> list[RenderedPrompt]:
        """The prompts of a row as an eval makes them. That of a damaged row, or of one on which the task fails, has an error."""
        if unread := unreadable_prompt(self.rendering.task, sample):
            return [unread]
        try:
            return [checked(prompt, sample) for prompt in render_sample(self.rendering, sample, self.pool)]
        except WholeEvalError:
            raise
        except DataError as error:
            return [failed_prompt(self.rendering.task, sample, error)]


@dataclass(kw_only=True)
class _Rendered:
    """The prompts of the first rows of some subjects, and the rows that make none."""

    pages: list[_Page]
    rows: int = 0
    sound: set[str] = field(default_factory=set)
    """Ids of the rows that can be asked."""
    prompts: list[RenderedPrompt] = field(default_factory=list)
    """Those that a model can be asked."""
    failed: list[str] = field(default_factory=list)
    """One message for each row on which the task fails. It is an error of its sample, unless it is so on all rows."""
    damaged: list[str] = field(default_factory=list)
    """One message for each row that cannot be asked. It is an error of its sample."""

    is_of_all: bool = False
    """Whether one of the failures ends each eval, whatever the other rows are."""

    def __post_init__(self) -> None:
        for page in self.pages:
            for sample in page.samples[:_LINTED_ROWS]:
                self.rows += 1
                try:
                    made = page.prompts(sample)
                except WholeEvalError as error:
                    self.is_of_all = True
                    self.failed.append(str(error))
                    continue
                wrong = [prompt.error for prompt in made if prompt.error is not None]
                if any(prompt.is_retryable for prompt in made):
                    self.failed += [each.removeprefix("RowError: ") for each in wrong]
                else:
                    self.damaged += wrong[:1]
                self.sound |= set() if wrong else {sample.sample_id}
                self.prompts += [prompt for prompt in made if prompt.error is None]

    @property
    def is_sound(self) -> bool:
        """Whether all rows can be asked."""
        return not (self.failed or self.damaged)

    def of_all(self, count: int) -> str:
        """A number of the rows, in words."""
        subjects = f" of {len(self.pages)} subjects" if len(self.pages) > 1 else ""
        return f"{'' if count == self.rows else f'{count} of '}{counted(self.rows, 'row')}{subjects}"


def show_task(name: str, shots: int | None, prompt_format: PromptFormat | None, model: str | None = None) -> None:
    """Print the facts of a task, an example, the findings about its rows, and the problems of its rows and prompts.

    Exit status 1 if there is a problem, such as a row on which the task fails. A finding is none: it can be true of a benchmark as it was
    published.
    """
    project, problem = open_project()
    if problem is not None:
        raise problem
    require_task(project, name)
    task, settings = _chosen(project, name)
    given = settings.num_fewshot if shots is None else shots
    _print_facts(name, task, fewshot_of(task, given, settings.fewshot_strategy))
    formatter = _formatter(project, prompt_format, model)
    shots = task.customary().num_fewshot if given is None else given
    pages = _pages(project, task, settings, shots, formatter)
    page = next(pages)
    for sample in page.samples:
        prompts = page.prompts(sample)
        if any(each.error is None for each in prompts):
            break
    else:
        first = next((each.error for sample in page.samples for each in page.prompts(sample)), None)
        why = f"; the first: {first}" if first else ""
        raise DataError(f"task {name} makes no prompt of any of its {len(page.samples)} rows; expected at least one prompt{why}")
    for number, prompt in enumerate(prompts, 1):
        which = f", question {number} of {len(prompts)}" if len(prompts) > 1 else ""
        out.print()
        print_prompt(prompt, f"{place_of(sample)}{which} · {formatter.name} · {counted(shots, 'shot')}", num_fewshot=shots)
    rendered = _Rendered(pages=[page, *pages])
    all(names_checked(f"task {name}", page.rendering.task, (sample for each in rendered.pages for sample in each.samples)))
    has_findings = _print_lint(rendered)
    is_right = _print_checks(rendered, project, mark="✓ " if rendered.is_sound and not has_findings else "")
    _print_failures(rendered)
    if not (is_right and rendered.is_sound):
        raise typer.Exit(1)


def _formatter(project: Project, prompt_format: PromptFormat | None, model: str | None) -> Formatter:
    wanted = prompt_format or PromptFormat(project.model(model).prompt_format if model else PromptFormat.PLAIN)
    if wanted is not PromptFormat.CHAT:
        # A scripted model needs no weights, and marks images with a word.
        return formatter_for(wanted, ScriptedHandle("example"))
    models = project.config.models
    name = model or next((each for each, settings in models.items() if settings.prompt_format == wanted.value), None)
    if name is None:
        raise UsageError(
            "--format chat needs the template of a model, and no model of evals.yaml has `prompt_format: chat`; choose one by "
            f"--model NAME; evals.yaml has: {', '.join(models) or 'none'}"
        )
    project.model(name)
    return formatter_for(wanted, project.handle(name), project.model(name).system_role)


def _chosen(project: Project, name: str) -> tuple[TaskClass, EvalConfig]:
    """The task of a name, and the settings of an eval of that name or the task's own."""
    if name not in project.tasks and name in project.config.evals:
        return project.task(name), project.eval(name)
    if name not in project.tasks and ":" not in name and not name.endswith((".yaml", ".yml")):
        known = [*project.tasks, *project.config.evals]
        raise UsageError(
            f"there is no task or eval {name!r}{did_you_mean(name, known)}; `eval-dagster tasks` lists all tasks. A task of your own is "
            "path/to/file.py:Class, with the path relative to the folder of evals.yaml"
        )
    task = project.named_task(name)
    return task, EvalConfig(task=name)


def _pages(project: Project, task_class: TaskClass, settings: EvalConfig, shots: int, formatter: Formatter) -> Iterator[_Page]:
    """The rows of the first subject, then of the others, if they are on this machine."""
    shots, subjects = shots_of(task_class, shots), select_subjects(task_class, settings.subjects)
    is_local = task_class.SUBJECT_FIELD is not None or dataset_of(task_class).startswith(("own rows", "folder"))
    with_examples = shots > 0
    for subject in subjects[: _LINTED_SUBJECTS if is_local else 1]:
        project.reader.check(task_class, [subject], fewshot=with_examples)
        task = task_class(num_fewshot=shots)
        read = build_samples(project.reader.read(task, subject, fewshot=with_examples), subject, task.ID_FIELD)
        if isinstance(task, OrderedTask):
            task.prepare(read)
        of_examples = [sample for sample in read if with_examples and sample.split == task.FEWSHOT_SPLIT]
        examples = [sample for sample in of_examples if is_whole(sample.row)]
        if lost := len(of_examples) - len(examples):
            words = f"{lost} of {counted(len(of_examples), 'row')} of the split {task.FEWSHOT_SPLIT!r} of the examples"
            say(errors, "warning", f"{words} are damaged, and never drawn as examples", style="yellow")
        rendering = Rendering(
            task=task,
            formatter=formatter,
            num_fewshot=shots,
            seed=settings.seed,
            sampling_seed=settings.sampling_seed,
            strategy=settings.fewshot_strategy,
            sets=settings.fewshot_sets,
            num_samples=settings.num_samples,
        )
        if isinstance(task, AdapterTask):
            task.prepare(read, rendering.settings)
        asked = [sample for sample in read if sample.split == task.SAMPLE_SPLIT]
        yield _Page(
            rendering=rendering if isinstance(task, AdapterTask | OrderedTask) else rendering.knowing(asked),
            samples=asked,
            pool=fewshot_pool(task, examples),
        )


def _print_facts(name: str, task: TaskClass, fewshot: str) -> None:
    out.print(f"{name} · {task.NAME}" if name != task.NAME else name, style="bold")
    if text := " ".join(inspect.cleandoc(task.__doc__ or "").partition("\n\n")[0].split()):
        out.print(text)
    out.print()
    headline, *others = metric_names(task)
    texts = ""
    if not issubclass(task, AdapterTask) and any(response_kind(metric) is Completion for metric in task.METRICS):
        texts = "the task sets no maximum: generation.max_tokens of the model applies, else the rest of its context"
        if (most := task.customary().max_tokens) is not None:
            texts = f"at most {most} tokens, fewer if generation.max_tokens of the model is lower"
        elif task._create_samples is not BaseTask._create_samples:  # as a Doc does by its generation_size
            texts = "each question may set a maximum; without one generation.max_tokens of the model applies, else the rest of its context"
    subjects = [subject_name(subject) for subject in task.SUBJECTS]
    first = f"{len(subjects)}: {', '.join(subjects[:_SUBJECTS])}{', …' if len(subjects) > _SUBJECTS else ''}"
    facts = {
        "type": task.RESPONSE_TYPE.value,
        "metrics": ", ".join([f"{headline} (headline)" if others else headline, *others]),
        "few-shot": fewshot,
        "texts": texts,
        "dataset": dataset_of(task),
        "subjects": subjects[0] if len(subjects) == 1 else first,
        "language": language_name(task.LANGUAGE),
        "source": source_of(task),
    }
    table = Table.grid(padding=(0, 3))
    for fact, value in facts.items():
        if value:
            table.add_row(fact, value)
    out.print(table)


def _print_lint(rendered: _Rendered) -> bool:
    """Look at the first rows of some subjects for signs that the score measures something else. Returns whether there are any."""
    rendering, prompts = rendered.pages[0].rendering, rendered.prompts
    out.print()
    compares_texts = any(metric.COMPARES_TEXTS for metric in rendering.task.METRICS)
    found = lint(prompts, num_fewshot=rendering.num_fewshot, compares_texts=compares_texts)
    by_reason: dict[str, list[str]] = defaultdict(list)
    for each in found:
        if each.status is Status.FOUND:
            say(out, "finding", str(each), style="yellow")
        elif each.status is Status.NOT_CHECKED:
            by_reason[each.seen].append(each.check)
    for reason, checks in by_reason.items():
        _print_unchecked(f"{', '.join(checks)}: {reason}")
    clean = sum(each.status is Status.CLEAN for each in found)
    has_findings = any(each.status is Status.FOUND for each in found)
    ended = f"{clean} of {counted(len(found), 'check')} for signs that the score measures something else found nothing in "
    mark = "✓ " if clean and rendered.is_sound and not has_findings else ""
    out.print(Text.assemble((mark, "green"), ended, rendered.of_all(len(rendered.sound))), soft_wrap=True)
    return has_findings


def _print_failures(rendered: _Rendered) -> None:
    """Print the rows that cannot be asked, and the names that several rows have."""
    later = ((sample.sample_name, sample.sample_id) for page in rendered.pages for sample in page.samples[_LINTED_ROWS:])
    if words := shared_names([*((prompt.sample_name, prompt.source_id) for prompt in rendered.prompts), *later]):
        say(errors, "warning", words, style="yellow")
    ends = "with it each eval of the task" if not rendered.sound or rendered.is_of_all else "each is an error of its sample in an eval"
    failing = f"the task fails on {{}}, and {ends}"
    for messages, effect in (
        (rendered.failed, failing),
        (rendered.damaged, "{} cannot be asked, which is an error of its sample in an eval"),
    ):
        if messages:
            what = effect.format(rendered.of_all(len(messages)))
            errors.print(Text(f"✗ {what}; the first: {messages[0]}", style="red"), soft_wrap=True)


def _print_checks(rendered: _Rendered, project: Project, *, mark: str) -> bool:
    """Check the first prompts. The mark stands before what was checked and held. Returns whether they have no problem."""
    page = rendered.pages[0]
    first = [sample for sample in page.samples[:_LINTED_ROWS] if sample.sample_id in rendered.sound][:_CHECKED_ROWS]
    if not first:
        return True
    if isinstance(page.rendering.task, AdapterTask):
        rows = counted(len(first), "row")
        out.print(Text.assemble((f"\n{mark}", "green"), f"rendered the first {rows} as the other package does"))
        _print_unchecked("the metrics, which the other package computes")
        return True
    with allowed_execution(project):
        formatter = page.rendering.formatter
        found = [
            (sample, checked_prompt(page.rendering.task, sample, prompt, formatter=formatter))
            for sample in first
            for prompt in page.prompts(sample)
        ]
        not_tried = [metric.NAME for metric in page.rendering.task.METRICS if metric.EXECUTES_CODE and not execution_allowed()]
    problems = [f"row {sample.row_index}: {problem}" for sample, each in found for problem in each.problems]
    told = {name for _, each in found for name in each.told}
    rows = f"the first {len(first)} rows" if len(first) > 1 else "the only row"
    out.print()
    if not_tried:
        _print_unchecked(f"{', '.join(not_tried)}, which runs code; evals.yaml does not allow it ({ALLOW_KEY}: true)")
    if of_rows := [metric.NAME for metric in page.rendering.task.METRICS if issubclass(metric, RowMetric)]:
        _print_unchecked(f"{', '.join(of_rows)}, which needs the answers to all questions about a row")
    reasons = {name: reason for _, each in reversed(found) for name, reason in each.unchecked.items() if name not in told}
    for name, reason in reasons.items():
        _print_unchecked(f"{name}, whose values do not show whether an answer is right: {reason}")
    own = {metric.NAME for metric in page.rendering.task.METRICS if not metric.__module__.startswith("eval_dagster.")}
    if unbounded := sorted({name for _, each in found for name in each.unbounded if name in own}):
        words = f"{', '.join(unbounded)}: values between 0 and 1, and no BOUNDS; an interval may leave them, and ten values of 0 have none"
        out.print(Text(f"{words}. Write BOUNDS = (0.0, 1.0) in the class", style="yellow"), soft_wrap=True)
    looked_at = "choices, special tokens" if any(prompt.request.choices for prompt in rendered.prompts) else "special tokens"
    if not problems and not told:
        out.print(f"rendered {rows}; {looked_at} and white space are as they should be")
        return True
    if not problems:
        by = f" by {', '.join(sorted(told))}" if len(told) < len({metric.NAME for metric in page.rendering.task.METRICS}) else ""
        out.print(Text.assemble((mark, "green"), f"checked {rows}: the gold answer scores best{by}, a wrong one worse;"))
        out.print(f"  {looked_at} and white space are as they should be")
        return True
    errors.print(f"✗ {counted(len(problems), 'problem')} in {rows}", style="red")
    for problem in problems:
        errors.print(f"  {problem}", soft_wrap=True)
    return False


def _print_unchecked(what: str) -> None:
    say(out, "not checked", what, style="yellow")
