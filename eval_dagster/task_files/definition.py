"""Checks task classes before anything runs."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args

from eval_dagster.errors import TaskDefinitionError
from eval_dagster.metrics.base import BaseMetric, metrics_for, response_kind
from eval_dagster.peers.eval_framework.task import EvalFrameworkTask
from eval_dagster.records import ResponseType
from eval_dagster.tasks.answers import is_count
from eval_dagster.tasks.base import BaseTask, FewshotStrategy, subject_name
from eval_dagster.tasks.doc_task import DocTask
from eval_dagster.tasks.style import TaskStyler
from eval_dagster.versions.source_files import shown_name

REQUIRED_ATTRIBUTES = ("NAME", "DATASET_PATH", "SAMPLE_SPLIT", "RESPONSE_TYPE", "METRICS")
_LISTS = ("METRICS", "SUBJECTS", "STOP_SEQUENCES", "DATA_FILES")
_COLUMN_TYPES = (str, int, float, bool)
_NOT_EMPTY = ("METRICS", "SUBJECTS")
_EXPECTED_METRICS = {
    ResponseType.COMPLETION: "CompletionMetric",
    ResponseType.LOGLIKELIHOODS: "LoglikelihoodMetric",
    ResponseType.PERPLEXITY: "PerplexityMetric",
}
_STYLED_HOOKS = {
    "_get_instruction_text": ("_get_raw_question", "_get_choices"),
    "_get_ground_truth": ("_get_choices", "_get_correct_index"),
    "_get_possible_completions": ("_get_choices", "_get_correct_index"),
}
"""Hooks that a styler replaces -> the hooks that it then needs."""


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_mark(value: object) -> bool:
    return isinstance(value, str) and bool(value)


_ATTRIBUTES: tuple[tuple[Sequence[str], Callable[[object], bool], str], ...] = (
    (("NAME", "DATASET_PATH", "SAMPLE_SPLIT"), _is_text, "a text that is not blank"),
    (("DATASET_REVISION", "SUBJECT_FIELD", "CLUSTER_FIELD", "ID_FIELD"), lambda value: value is None or _is_text(value), "a text, or None"),
    (("FEWSHOT_SPLIT",), lambda value: isinstance(value, str | None), "the name of a split, or None"),
    (("FEWSHOT_STRATEGY",), lambda value: value in get_args(FewshotStrategy), f"one of {', '.join(get_args(FewshotStrategy))}"),
    (("MAX_TOKENS",), lambda value: value is None or is_count(value), "a whole number of at least 1, or None"),
    (("NUM_SAMPLES",), is_count, "a whole number of at least 1"),
)
"""The expected values of a task's attributes."""
_METRIC_SWITCHES = ("HIGHER_IS_BETTER", "IS_PROPORTION", "EXECUTES_CODE", "COMPARES_TEXTS")
_METRIC_NAMES = ("PACKAGES", "COMPANIONS")


def check_task(task: type[BaseTask[Any]]) -> None:
    """Check that a task class has everything that its response type needs, and metrics that fit it.

    Raises:
        TaskDefinitionError: An attribute or a hook is missing or wrong. The message names the class, what it has and what is expected.
    """
    for problems in (_wrong_styler(task), _missing(task), _wrong_values(task), _wrong_metrics(task)):
        # Later checks rely on earlier ones.
        if found := list(problems):
            raise TaskDefinitionError(f"task class {task.__name__} ({shown_name(task.__module__)}) {'; it '.join(found)}")


def _wrong_styler(task: type[BaseTask[Any]]) -> Iterator[str]:
    styler: object = task.TASK_STYLER
    if styler is not None and not isinstance(styler, TaskStyler):
        yield f"has the TASK_STYLER {styler!r}; expected a styler, MCStyle() say (from eval_dagster.tasks.style import MCStyle)"


def _missing(task: type[BaseTask[Any]]) -> Iterator[str]:
    missing = [name for name in REQUIRED_ATTRIBUTES if not hasattr(task, name)]
    missing += [f"{name}()" for name in _required_hooks(task) if getattr(task, name) is getattr(BaseTask, name)]
    if issubclass(task, DocTask) and task.doc is DocTask.doc:
        missing.append("doc()")
    if missing:
        base = DocTask if issubclass(task, DocTask) else BaseTask
        yield f"lacks {', '.join(missing)}; set the attributes and override the hooks named here (see {base.__name__})"


def _required_hooks(task: type[BaseTask[Any]]) -> list[str]:
    """Hooks that a task must override. With a styler: the hooks that supply the question, the choices and the correct index."""
    given = getattr(task, "RESPONSE_TYPE", None)
    hooks = ["_get_instruction_text"]
    if given is not ResponseType.PERPLEXITY:
        hooks.append("_get_ground_truth")
    if given is ResponseType.LOGLIKELIHOODS:
        hooks.append("_get_possible_completions")
    if task.TASK_STYLER is None:
        return hooks
    styled = [hook for hook in hooks if getattr(task, hook) is getattr(BaseTask, hook)]
    return list(dict.fromkeys(name for hook in styled for name in _STYLED_HOOKS[hook]))


def _wrong_values(task: type[BaseTask[Any]]) -> Iterator[str]:
    given: object = task.RESPONSE_TYPE
    if not isinstance(given, ResponseType):
        *others, last = (f"ResponseType.{member.name}" for member in ResponseType)
        yield f"has the RESPONSE_TYPE {given!r}; expected {', '.join(others)} or {last} (from eval_dagster.records import ResponseType)"
    for name in _LISTS:
        value: object = getattr(task, name)
        if not isinstance(value, Sequence) or isinstance(value, str):
            yield f"has the {name} {value!r}; expected a list"
        elif not value and name in _NOT_EMPTY:
            yield f"has an empty {name}; name at least one"
    for names, is_right, expected in _ATTRIBUTES:
        for name in names:
            value = getattr(task, name)
            if not is_right(value):
                yield f"has the {name} {value!r}; expected {expected}"
    for name, inner in (("STOP_SEQUENCES", _is_mark), ("DATA_FILES", _is_text)):
        value = getattr(task, name)
        wrong = [each for each in value if not inner(each)] if isinstance(value, Sequence) else []
        if wrong and not isinstance(value, str):
            yield f"has {wrong[0]!r} among its {name}; expected texts that are not empty"
    if isinstance(task.SUBJECTS, Sequence):
        names = [subject_name(subject) for subject in task.SUBJECTS]
        if twice := next((name for name in names if names.count(name) > 1), None):
            yield f"has the subject {twice!r} twice among its SUBJECTS; expected each once"
    types: object = task.COLUMN_TYPES
    if not isinstance(types, Mapping) or not all(isinstance(name, str) and kind in _COLUMN_TYPES for name, kind in types.items()):
        yield f"has the COLUMN_TYPES {types!r}; expected names of columns with str, int, float or bool, such as {{'zip_code': str}}"
    if task.SUBJECT_FIELD is not None and task._load_dataset is EvalFrameworkTask._load_dataset:
        yield (
            f"has the SUBJECT_FIELD {task.SUBJECT_FIELD!r}, which eval-framework does not have: its BaseTask reads a configuration of the "
            "dataset for each subject, so that the field would be ignored; derive from the BaseTask of eval_dagster "
            "(from eval_dagster import BaseTask), or choose the rows of a subject in _load_dataset"
        )
    shots: object = task.NUM_FEWSHOT
    if not isinstance(shots, int) or isinstance(shots, bool) or shots < 0:
        yield f"has the NUM_FEWSHOT {shots!r}; expected a whole number of examples, 0 or more"
    elif shots and task.FEWSHOT_SPLIT is None and task._sample_fewshot_examples is BaseTask._sample_fewshot_examples:
        yield f"has the NUM_FEWSHOT {shots} and no FEWSHOT_SPLIT; name the split that its examples are drawn from"


def _wrong_metrics(task: type[BaseTask[Any]]) -> Iterator[str]:
    seen: dict[str, str] = {}
    for metric in task.METRICS:
        shown = metric.__name__ if isinstance(metric, type) else repr(metric)
        if not (isinstance(metric, type) and issubclass(metric, BaseMetric)):
            yield f"has {shown} among its METRICS; expected subclasses of {_expected(task)} (classes, not instances)"
            continue
        name = getattr(metric, "NAME", None)
        if not _fits(metric, task):
            yield f"has the metric {shown}, which cannot score {_asked(task)}; expected a subclass of {_expected(task)}"
        if not _are_bounds(metric.BOUNDS):
            yield (
                f"has the metric {shown} with the BOUNDS {metric.BOUNDS!r}; expected the least and the largest value, such as (0.0, 1.0), "
                "or None"
            )
        yield from _wrong_traits(metric, shown)
        if not isinstance(name, str) or not name.strip() or "/" in name:
            yield f"has the metric {shown} with the NAME {name!r}; expected a text without '/'"
        elif name in seen:
            yield f"has two metrics with the NAME {name!r}: {seen[name]} and {shown}; expected each once, under a name of its own"
        else:
            seen[name] = shown
    headline = task.HEADLINE_METRIC
    if headline is not None and headline not in task.METRICS:
        yield f"has the HEADLINE_METRIC {getattr(headline, '__name__', headline)}, which is not among its METRICS; add it there, too"
    if task.HEADLINE_AGGREGATION not in ("micro", "macro"):
        yield f"has the HEADLINE_AGGREGATION {task.HEADLINE_AGGREGATION!r}; expected 'micro' or 'macro'"


def _wrong_traits(metric: type[BaseMetric], shown: str) -> Iterator[str]:
    """Attributes of a metric whose values would be misread: the text "no" would count as true."""
    for trait in _METRIC_SWITCHES:
        if not isinstance(getattr(metric, trait), bool):
            yield f"has the metric {shown} with the {trait} {getattr(metric, trait)!r}; expected True or False"
    for trait in _METRIC_NAMES:
        names = getattr(metric, trait)
        if not isinstance(names, list | tuple) or not all(map(_is_text, names)):
            yield f"has the metric {shown} with the {trait} {names!r}; expected a tuple of names"
    best: object = metric.BEST
    if best is not None and (isinstance(best, bool) or not isinstance(best, int | float) or not math.isfinite(best)):
        yield f"has the metric {shown} with the BEST {best!r}; expected a number, or None"


def _fits(metric: type[BaseMetric], task: type[BaseTask[Any]]) -> bool:
    return response_kind(metric) is not None if _asks_freely(task) else bool(metrics_for([metric], task.RESPONSE_TYPE))


def _are_bounds(given: object) -> bool:
    if given is None:
        return True
    numbers = isinstance(given, tuple) and all(isinstance(end, int | float) and not isinstance(end, bool) for end in given)
    return numbers and isinstance(given, tuple) and len(given) == 2 and given[0] < given[1]


def _asks_freely(task: type[BaseTask[Any]]) -> bool:
    """Whether the task makes its own samples, as a `DocTask` does: each may ask for another kind of response."""
    return task._create_samples is not BaseTask._create_samples


def _asked(task: type[BaseTask[Any]]) -> str:
    return "any response" if _asks_freely(task) else f"the response type ResponseType.{task.RESPONSE_TYPE.name}"


def _expected(task: type[BaseTask[Any]]) -> str:
    return "CompletionMetric or LoglikelihoodMetric" if _asks_freely(task) else _EXPECTED_METRICS[task.RESPONSE_TYPE]
