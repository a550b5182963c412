"""The variant of a benchmark with the choice "I don't know"."""

from typing import Any

from eval_dagster.errors import TaskDefinitionError
from eval_dagster.metrics.abstention import DistributionalCorrectnessScore, TernaryScore
from eval_dagster.records import ResponseType, Row
from eval_dagster.tasks.base import BaseTask
from eval_dagster.tasks.style import BPBStyle

_SCORES = (TernaryScore, DistributionalCorrectnessScore)


class IDKMixin(BaseTask[Any]):
    """Adds "I don't know" to the choices of a task: `class MMLU_IDK(IDKMixin, MMLU)`, with a `NAME` of its own.

    It is the last choice, never the correct one, and never the answer of a few-shot example. For a task with `_get_choices` it is among
    these choices: if the prompt lists them with labels, it gets a line and its label is scored. Otherwise the scores, which divide by
    characters, would compare a letter with a sentence. A wrong answer costs as much as a correct one gains, and the prompt states this rule
    (Kalai et al. 2025, arXiv:2509.04664). Both scores come before the task's own metrics, unless `METRICS` is set.
    """

    IDK_CHOICE = "I don't know."
    """The text of the last choice. It has the same space before it as the others."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Put the scores first.

        Raises:
            TaskDefinitionError: The task does not score all its choices, or is named before the mixin.
        """
        given = "METRICS" in vars(cls)
        super().__init_subclass__(**arguments)
        owner = next((parent for parent in cls.__mro__[1:] if "METRICS" in vars(parent)), None)
        if owner is None:
            return  # a mixin itself
        if getattr(cls, "RESPONSE_TYPE", None) is not ResponseType.LOGLIKELIHOODS or isinstance(cls.TASK_STYLER, BPBStyle):
            raise TaskDefinitionError(
                f'task class {cls.__name__} adds "I don\'t know" to {owner.__name__}, whose choices are not all scored; '
                "expected ResponseType.LOGLIKELIHOODS, and another styler than BPBStyle"
            )
        if any(issubclass(parent, BaseTask) and not issubclass(parent, IDKMixin) for parent in cls.__mro__[: cls.__mro__.index(IDKMixin)]):
            raise TaskDefinitionError(f"task class {cls.__name__} names IDKMixin too late; write: class {cls.__name__}(IDKMixin, ...)")
        if not given and not issubclass(owner, IDKMixin):
            cls.METRICS = (*_SCORES, *(metric for metric in cls.METRICS if metric not in _SCORES))
            cls.HEADLINE_METRIC = vars(cls).get("HEADLINE_METRIC")

    def _get_initial_prompt_text(self, item: Row) -> str:
        rule = f"A wrong answer loses as much as a correct one gains. Where you are not sure, answer: {self.IDK_CHOICE}"
        return "\n\n".join(text for text in (super()._get_initial_prompt_text(item), rule) if text)

    def _get_choices(self, item: Row) -> list[str]:
        return [*super()._get_choices(item), self.IDK_CHOICE]

    def _get_possible_completions(self, item: Row) -> list[str] | None:
        choices = super()._get_possible_completions(item) or []
        if self._gives_choices() and len(choices) == len(self._get_choices(item)):
            return choices
        gap = " " if choices and choices[0].startswith(" ") else ""
        return [*choices, f"{gap}{self.IDK_CHOICE}"]

    @classmethod
    def _gives_choices(cls) -> bool:
        """Whether the task has `_get_choices`."""
        return any("_get_choices" in vars(parent) for parent in cls.__mro__ if parent not in (IDKMixin, BaseTask))
