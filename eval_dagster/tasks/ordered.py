"""`OrderedTask`: a task whose prompts depend on the rows before, as in frameworks with one random generator for all rows."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

from eval_dagster.errors import TaskDefinitionError
from eval_dagster.records import Completion, Loglikelihood, ModelResponse, Row, Sample, TaskSample
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.tasks.base import BaseTask, SubjectType

OpenSplits: TypeAlias = Callable[[str, str | None, str | None, Sequence[str]], Mapping[str, Sequence[Row]]]
"""Reads a dataset: path, configuration (null for the only one), commit and splits -> rows by split."""


class OrderedTask(BaseTask[SubjectType]):
    """A task that renders the rows of a subject in their order, and gives the metrics its own views of a response.

    The pipeline passes it all rows by `prepare` before it asks for the first prompt.
    """

    STATE_SPLIT: ClassVar[str | None] = None
    """A split that `load_rows` adds to the dataset's if examples are drawn: data that its prompts need beside the rows."""
    open_splits: OpenSplits | None = None
    """Set by the reader of datasets."""

    @classmethod
    def reads_dataset(cls) -> bool:
        """Whether the rows come from `DATASET_PATH`, rather than from the task itself."""
        raise NotImplementedError

    @classmethod
    def configs(cls, subjects: Sequence[SubjectType]) -> list[str] | None:
        """The configurations of the dataset that are read for subjects; None if only loading shows them."""
        raise NotImplementedError

    def load_rows(self, subject: SubjectType) -> Mapping[str, Sequence[Row]]:
        """The rows of a subject by split, in the order in which they are asked."""
        raise NotImplementedError

    def prepare(self, samples: Sequence[Sample]) -> None:
        """Take all samples of an eval."""
        raise NotImplementedError

    def questions(self, sample: Sample) -> list[TaskSample]:
        """The questions about a row."""
        raise NotImplementedError

    def views(self, sample: Sample, prompt: RenderedPrompt, response: ModelResponse) -> Sequence[Completion | Loglikelihood]:
        """The views of a response that the metrics score."""
        raise NotImplementedError


def shots_of(task: type[BaseTask[Any]], wanted: int) -> int:
    """The number of examples that a task takes if `wanted` are asked for: an `OrderedTask` may have a number of its own.

    Raises:
        TaskDefinitionError: The task does not take this number.
    """
    if not issubclass(task, OrderedTask):
        return wanted
    try:
        return task(num_fewshot=wanted).num_fewshot
    except (AssertionError, ValueError) as problem:
        raise TaskDefinitionError(
            f"task {task.NAME} cannot be asked with num_fewshot {wanted}: {problem or type(problem).__name__}"
        ) from problem
