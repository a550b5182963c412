"""Variants of a task's prompts: the same questions in other words, or with their choices in another order.

A variant overrides hooks of the task, so that it applies to the examples as to the question, and the gold answer follows the choices.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from eval_dagster.errors import DataError, TaskDefinitionError
from eval_dagster.records import Row
from eval_dagster.tasks.base import BaseTask, IDKMixin
from eval_dagster.tasks.benchmark import AdapterTask, OrderedTask
from eval_dagster.tasks.samples import row_name
from eval_dagster.tasks.style import ClozeStyle, get_n_letters

if TYPE_CHECKING:
    from jinja2 import Template

DEFAULT = "default"
"""The variant that is the task's own prompt."""
_SEPARATOR = "~"
"""Stands between the id of a question and the name of its variant."""


def variant_id(sample_id: str, variant: str) -> str:
    """The sample id of a question in a variant: its own in the default, so that it is compared with results without variants."""
    return sample_id if variant == DEFAULT else f"{sample_id}{_SEPARATOR}{variant}"


def question_of(sample_id: str, variant: str) -> str:
    """The question's own sample id, from the id in a variant."""
    return sample_id if variant == DEFAULT else sample_id.removesuffix(f"{_SEPARATOR}{variant}")


def varied_task(
    task: type[BaseTask[Any]], *, instruction: str | None = None, template: str | None = None, choice_order: str | None = None
) -> type[BaseTask[Any]]:
    """The task with another wording or another order of choices.

    Args:
        task: The task.
        instruction: The text before the first question, once; empty for none.
        template: A Jinja template of the question. It reads `text` (the question as the task asks it), `row`, and for a task with
            `_get_choices` also `choices` and `labels`, with a styler also `question`.
        choice_order: `reversed`, `rotated N` (by N places to the left) or `shuffled N` (by the seed N and the row).

    Raises:
        TaskDefinitionError: The variant does not apply to the task.
    """
    if issubclass(task, AdapterTask | OrderedTask):
        raise TaskDefinitionError(
            f"the prompts of {task.NAME} are written by code of another package, which has no hooks for variants; expected a task that is "
            "a subclass of BaseTask or a function to a Doc"
        )
    hooks: dict[str, Callable[[Any, Row], Any]] = {}
    if instruction is not None:
        hooks["_get_initial_prompt_text"] = _instructed(task, instruction)
    if choice_order is not None:
        hooks |= _reordered(task, choice_order)
    names = {name: getattr(task, name) for name in ("__module__", "__qualname__", "__doc__")}
    found = type(task.__name__, (task,), {**names, **hooks}) if hooks else task
    if template is not None:  # after the choices, which it reads in their new order
        found = type(task.__name__, (found,), {**names, "_get_instruction_text": _templated(found, template)})
    return found


def _instructed(task: type[BaseTask[Any]], instruction: str) -> Callable[[Any, Row], str]:
    def initial(self: Any, _item: Row) -> str:
        # The rule of the scores of "I don't know" holds whatever the wording is.
        rule = self.idk_rule() if issubclass(task, IDKMixin) else ""
        return "\n\n".join(text for text in (instruction, rule) if text)

    return initial


def template_of(text: str) -> "Template":
    """The template. Raises `ValueError` if it cannot be read."""
    # Imported lazily: few evals have templates.
    from jinja2 import StrictUndefined, TemplateSyntaxError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    try:
        return ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True).from_string(text)
    except TemplateSyntaxError as error:
        raise ValueError(f"line {error.lineno} of the template cannot be read: {error.message}") from error


def _templated(task: type[BaseTask[Any]], text: str) -> Callable[[Any, Row], str]:
    template = template_of(text)
    has_choices = task._get_choices is not BaseTask._get_choices

    def instruction(self: Any, item: Row) -> str:
        choices = list(self._get_choices(item)) if has_choices else None
        values = {
            "text": task._get_instruction_text(self, item),
            "row": item,
            **({} if choices is None else {"choices": choices, "labels": get_n_letters(len(choices))}),
            **({} if task.TASK_STYLER is None else {"question": self._get_raw_question(item)}),
        }
        return template.render(values)

    return instruction


def _reordered(task: type[BaseTask[Any]], order: str) -> dict[str, Callable[[Any, Row], Any]]:
    own = (task._get_choices, task._get_correct_index)
    if BaseTask._get_choices in own or BaseTask._get_correct_index in own or isinstance(task.TASK_STYLER, ClozeStyle):
        why = "scores each choice by itself" if isinstance(task.TASK_STYLER, ClozeStyle) else "has no hooks for its choices"
        raise TaskDefinitionError(
            f"choice_order is {order!r}, and the task {task.NAME} {why}; expected a task whose prompts list the choices of `_get_choices`, "
            "and whose gold answer follows `_get_correct_index`, as with MCStyle"
        )
    fixed = int(issubclass(task, IDKMixin))  # "I don't know" stays the last choice

    def order_of(item: Row, count: int) -> list[int]:
        moved = _order(order, row_name(item), count - fixed)
        return [*moved, *range(count - fixed, count)]

    def choices(self: Any, item: Row) -> list[str]:
        texts = task._get_choices(self, item)
        return [texts[position] for position in order_of(item, len(texts))]

    def correct_index(self: Any, item: Row) -> int:
        before = task._get_correct_index(self, item)
        places = order_of(item, len(task._get_choices(self, item)))
        return places.index(before) if before in places else before  # a wrong index is an error of the task's own checks

    def ground_truth(self: Any, item: Row) -> str | list[str] | None:
        truth = task._get_ground_truth(self, item)
        texts, before = task._get_choices(self, item), task._get_correct_index(self, item)
        is_moved = self._get_correct_index(item) != before
        truths = [str(each).strip() for each in (truth if isinstance(truth, list) else [truth])]
        if is_moved and texts[before].strip() not in truths and truth == _own_truth(task, self, item):
            raise DataError(
                f"the correct choice is at another place in the order {order!r}, and the gold answer of {task.NAME} is still {truth!r}; "
                "expected a `_get_ground_truth` that follows `_get_correct_index`"
            )
        return truth

    return {"_get_choices": choices, "_get_correct_index": correct_index, "_get_ground_truth": ground_truth}


def _own_truth(task: type[BaseTask[Any]], varied: BaseTask[Any], item: Row) -> object:
    """The gold answer of the task itself, without the variant."""
    own = task.__new__(task)
    own.__dict__.update(vars(varied))
    with own.comparing():
        return own._get_ground_truth(item)


def _order(order: str, row: str, count: int) -> Sequence[int]:
    """The old positions of the choices, in their new order."""
    kind, _, number = order.partition(" ")
    positions = list(range(count))
    if kind == "reversed":
        return positions[::-1]
    if kind == "rotated":
        by = int(number) % max(count, 1)
        return positions[by:] + positions[:by]
    Random(f"{number}/{row}").shuffle(positions)  # noqa: S311
    return positions
