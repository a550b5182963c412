# ruff: noqa: ARG002 - a hook's default need not read the row
"""`BaseTask` of eval-framework: it assembles a prompt, shuffles rows and draws examples as eval-framework 0.9 does.

One generator per subject shuffles the evaluated split and then draws the examples, row by row. So rows are rendered in order from the
first, whichever rows are asked.
"""

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import cached_property
from pathlib import Path
from random import Random
from types import CodeType
from typing import Any, ClassVar, Self

from eval_dagster.errors import DataError, TaskDefinitionError
from eval_dagster.metrics.base import BaseMetric, RowMetric
from eval_dagster.peers.eval_framework.contexts import ContextClasses, described
from eval_dagster.peers.eval_framework.formatters import lost_space, prompt_text
from eval_dagster.peers.eval_framework.responses import PlainRow, answered
from eval_dagster.peers.eval_framework.revisions import commit_in
from eval_dagster.records import Completion, Loglikelihood, Message, ModelResponse, ResponseType, Role, Row, Sample, TaskSample
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.tasks.base import NO_SUBJECT, SubjectType, subject_name
from eval_dagster.tasks.benchmark import OrderedTask
from eval_dagster.tasks.samples import is_whole

log = logging.getLogger("eval_dagster.eval_framework")

RANDOM_SEED = 42
"""The seed of every task's generator."""
STATE_SPLIT = "random_state"
"""The split of one row with the state of the generator after the rows were read."""


class EvalFrameworkTask(OrderedTask[SubjectType]):
    """A benchmark in eval-framework's way."""

    STATE_SPLIT = STATE_SPLIT
    REVISION_LOCKFILE: ClassVar[Path | None] = None
    """A JSON file that maps paths of datasets to commits."""
    PERTURBATION_UNMODIFIABLE_WORDS: ClassVar[Sequence[str] | None] = None

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Take response type and metrics from the styler, and the dataset's commit from the lock file."""
        super().__init_subclass__(**arguments)
        own = vars(cls)
        if cls.TASK_STYLER is not None:
            cls.RESPONSE_TYPE, cls.METRICS = cls.TASK_STYLER.response_type, cls.TASK_STYLER.metrics
        if "DATASET_REVISION" not in own and {"REVISION_LOCKFILE", "DATASET_PATH"} & own.keys() and cls.REVISION_LOCKFILE is not None:
            cls.DATASET_REVISION = commit_in(cls.REVISION_LOCKFILE, getattr(cls, "DATASET_PATH", ""))

    def __init__(self, num_fewshot: int = 0) -> None:
        super().__init__(num_fewshot)
        self.stop_sequences = None
        self.max_tokens = None
        self.user_prompt_suffix: str | None = None
        self.hf_revision: str | None = self.DATASET_REVISION
        self.rnd = Random(RANDOM_SEED)  # noqa: S311
        self._samples: dict[str, list[Sample]] = {}
        self._is_warned = False
        self._known: set[tuple[str, str, int, str]] = set()
        self._asked: tuple[str, Iterator[tuple[int, list[TaskSample] | BaseException]], int] | None = None

    @classmethod
    def with_overwrite(
        cls,
        num_fewshot: int,
        *,
        custom_subjects: Sequence[Any] | None = None,
        custom_hf_revision: str | None = None,
        user_prompt_suffix: str | None = None,
    ) -> Self:
        """The task with other settings.

        Raises:
            TaskDefinitionError: A suffix is given for a task that does not generate text.
        """
        made = cls(num_fewshot=num_fewshot)
        if user_prompt_suffix is not None and made.get_response_type() is not ResponseType.COMPLETION:
            raise TaskDefinitionError(f"task {cls.NAME} scores choices; expected a task that generates text for user_prompt_suffix")
        made.user_prompt_suffix = user_prompt_suffix
        if custom_subjects:
            made.SUBJECTS = list(custom_subjects)  # type: ignore[misc]
        made.hf_revision = custom_hf_revision or made.hf_revision
        return made

    # ---- data

    @classmethod
    def reads_dataset(cls) -> bool:
        """Whether `_load_dataset` reads rows by `_load_hf_dataset` rather than in a way of its own."""
        if cls._load_hf_dataset is not EvalFrameworkTask._load_hf_dataset:
            return False
        return "_load_hf_dataset" in names_in(cls._load_dataset.__code__)

    @classmethod
    def configs(cls, subjects: Sequence[SubjectType]) -> list[str] | None:
        """The configurations of the dataset that are read for subjects; None if only loading shows them."""
        if cls._load_dataset is not EvalFrameworkTask._load_dataset:
            return None
        return ["default" if subject == NO_SUBJECT else subject_name(subject) for subject in subjects]

    def _load_hf_dataset(self, **kwargs: Any) -> Any:
        """The evaluated split of a dataset, and the few-shot split if examples are drawn.

        Raises:
            DataError: Another argument than path and name is given.
        """
        path, name = kwargs.pop("path", self.DATASET_PATH), kwargs.pop("name", None)
        if kwargs:
            raise DataError(f"_load_hf_dataset of task {self.NAME} got {', '.join(kwargs)}; expected path and name alone")
        splits = list(dict.fromkeys([self.SAMPLE_SPLIT, *([self.FEWSHOT_SPLIT] if self.FEWSHOT_SPLIT and self.num_fewshot else [])]))
        if self.open_splits is None:
            # Imported lazily: slow, and only needed outside of an eval.
            from datasets import load_dataset

            whole = load_dataset(path, name, revision=self.hf_revision)
            return Splits({split: Rows(whole[split]) for split in splits})
        return Splits({split: Rows(rows) for split, rows in self.open_splits(path, name, self.hf_revision, splits).items()})

    def _shuffle_splits(self, hf_dataset: Mapping[str, Sequence[Row]]) -> dict[str, list[Row]]:
        """The two splits of the task as lists, the evaluated one shuffled."""
        self.rnd = Random(RANDOM_SEED)  # noqa: S311
        found = {split: list(rows) for split, rows in hf_dataset.items() if split in (self.SAMPLE_SPLIT, self.FEWSHOT_SPLIT)}
        if self.SAMPLE_SPLIT in found:
            self.rnd.shuffle(found[self.SAMPLE_SPLIT])
        return found

    def _load_dataset(self, subject: SubjectType) -> Any:
        """Set `self.dataset` to the rows of a subject by split."""
        name = subject if subject != NO_SUBJECT else None
        self.dataset = self._shuffle_splits(hf_dataset=self._load_hf_dataset(path=self.DATASET_PATH, name=name))

    def load_rows(self, subject: SubjectType) -> Mapping[str, Sequence[Row]]:
        """The rows of a subject in the order in which they are asked, and the state of the generator."""
        returned = self._load_dataset(subject)
        rows: Mapping[str, Sequence[Row]] = self.dataset if returned is None else returned
        return {**rows, STATE_SPLIT: [state_row(self.rnd)]}

    # ---- prompt

    def _sample_fewshot_examples(self, item: Row) -> list[Row]:
        """The examples before a row. If both splits are the same, one more is drawn, and the row itself is left out."""
        pool = self.dataset[self.FEWSHOT_SPLIT or ""]
        if self.FEWSHOT_SPLIT != self.SAMPLE_SPLIT:
            return self.rnd.sample(pool, self.num_fewshot)
        drawn = self.rnd.sample(pool, self.num_fewshot + 1)
        return [example for example in drawn if example != item][: self.num_fewshot]

    def _get_fewshot_target_text(self, item: Row) -> str:
        if self.TASK_STYLER is not None:
            return self.TASK_STYLER.get_fewshot_target_text(self._get_choices(item), self._get_correct_index(item))
        target = self._get_ground_truth(item)
        if not isinstance(target, str):
            raise DataError(f"the gold answer of an example is {target!r}; expected a text, or override _get_fewshot_target_text")
        return target

    def _get_example_messages(self, item: Row) -> list[Message]:
        self.examples_used[:] = self._sample_fewshot_examples(item) if self.num_fewshot > 0 else []
        messages: list[Message] = []
        for example in self._in_turn(self.examples_used):
            example["subject"] = item["subject"]
            messages += self._get_instruction_messages(example)
            messages.append(Message(role=Role.ASSISTANT, content=self._get_fewshot_target_text(example)))
        return messages

    def _get_messages(self, item: Row) -> list[Message]:
        examples = self._get_example_messages(item)
        messages = [*examples, *self._apply_user_prompt_suffix(self._get_instruction_messages(item))]
        if cue := self._get_cue_text(item):
            messages.append(Message(role=Role.ASSISTANT, content=cue))
        if initial := self._get_initial_prompt_text(item):
            messages[0] = replace(messages[0], content=f"{initial}\n\n{messages[0].content}")
        if system := self._get_system_prompt_text(item):
            messages.insert(0, Message(role=Role.SYSTEM, content=system))
        return messages

    def _apply_user_prompt_suffix(self, instruction_messages: list[Message]) -> list[Message]:
        last = max((place for place, message in enumerate(instruction_messages) if message.role is Role.USER), default=None)
        if self.user_prompt_suffix is None or last is None:
            return instruction_messages
        changed = replace(instruction_messages[last], content=f"{instruction_messages[last].content}{self.user_prompt_suffix}")
        return [*instruction_messages[:last], changed, *instruction_messages[last + 1 :]]

    # ---- samples

    def prepare(self, samples: Sequence[Sample]) -> None:
        """Take all samples of an eval."""
        by_subject: dict[str, list[Sample]] = defaultdict(list)
        for sample in samples:
            by_subject[sample.subject].append(sample)
        self._samples, self._asked = by_subject, None
        self._known = {(sample.subject, sample.split, sample.row_index, sample.sample_id) for sample in samples}

    def questions(self, sample: Sample) -> list[TaskSample]:
        """The questions about a row, after those about all rows before it."""
        if (sample.subject, sample.split, sample.row_index, sample.sample_id) not in self._known:
            self.prepare([sample])
        if self._asked is None or self._asked[0] != sample.subject or self._asked[2] >= sample.row_index:
            self._asked = (sample.subject, self._of_subject(sample.subject), -1)
        for index, made in self._asked[1]:
            self._asked = (*self._asked[:2], index)
            if index == sample.row_index:
                if isinstance(made, BaseException):
                    raise made
                return made
        raise DataError(f"row {sample.row_index} of subject {sample.subject!r} is not among the rows of task {self.NAME}")

    def _of_subject(self, name: str) -> Iterator[tuple[int, list[TaskSample] | BaseException]]:
        """The index of each row of a subject with the questions about it, or with an exception, which is the error of this row alone."""
        subject = next((each.value if isinstance(each, Enum) else each for each in self.SUBJECTS if subject_name(each) == name), name)
        indices = sorted(each.row_index for each in self._samples[name] if each.split == self.SAMPLE_SPLIT and is_whole(each.row))
        rows = split_rows(self._samples[name])
        state = rows.pop(STATE_SPLIT, None)
        self.rnd = restored(state[0]) if state else Random(RANDOM_SEED)  # noqa: S311
        self.dataset = rows
        number = 0
        for index, item in zip(indices, rows[self.SAMPLE_SPLIT], strict=True):
            item["subject"] = subject
            self.written_example = None
            try:
                made = self._create_samples(item, number, str(subject))
                asked = [self._asked_sample(each, number + place) for place, each in enumerate(made)]
            except (Exception, SystemExit) as error:
                yield index, error
                number += 1
                continue
            yield index, asked
            number += len(made)

    def _asked_sample(self, made: TaskSample, number: int) -> TaskSample:
        if self.formatter is None:
            raise DataError(f"task {self.NAME} has no formatter; it is rendered by render_sample or an eval")
        return replace(
            made,
            prompt=prompt_text(made.messages, self.formatter) + lost_space(made, self.formatter),
            gold_indices=self._gold_indices(made) if self.get_response_type() is ResponseType.LOGLIKELIHOODS else None,
            context=described(made, number, self.context_classes),
        )

    def _gold_indices(self, made: TaskSample) -> list[int]:
        """Positions of the gold answers among the choices; empty if no choice is one, so that every answer is wrong."""
        truths = [made.ground_truth] if isinstance(made.ground_truth, str) else list(made.ground_truth or ())
        choices = list(made.possible_completions or ())
        found = [place for place, choice in enumerate(choices) if choice in truths]
        found = found or [place for place, choice in enumerate(choices) if choice.strip() in [truth.strip() for truth in truths]]
        if not found and not self._is_warned and not all(issubclass(metric, RowMetric) for metric in self.METRICS):
            self._is_warned = True
            log.warning(f"task {self.NAME}: the gold answer {made.ground_truth!r} is not among the choices {choices}")
        return found

    def iterate_samples(self, num_samples: int | None = None) -> Iterator[TaskSample]:
        """The samples of all subjects, at most `num_samples` of each."""
        for subject in self.SUBJECTS:
            self._load_dataset(subject)
            number = 0
            for item in self.dataset[self.SAMPLE_SPLIT]:
                item["subject"] = subject
                for made in self._create_samples(item, number, str(subject)):
                    yield made
                    number += 1
                    if number == num_samples:
                        break
                if number == num_samples:
                    break

    @cached_property
    def context_classes(self) -> ContextClasses:
        """The classes of contexts that the task and its metrics mean."""
        return ContextClasses([type(self), *self.METRICS])

    def views(self, sample: Sample, prompt: RenderedPrompt, response: ModelResponse) -> Sequence[Completion | Loglikelihood]:
        """The responses to score, with eval-framework's view for its metrics."""
        return answered(self, self.context_classes, sample, prompt, response)

    # ---- about the task

    @classmethod
    def get_response_type(cls) -> ResponseType:
        """The styler's, or `RESPONSE_TYPE`."""
        return cls.RESPONSE_TYPE

    @classmethod
    def get_metrics(cls) -> list[type[BaseMetric[Any]]]:
        """The styler's, or `METRICS`."""
        return list(cls.METRICS)

    def display_name(self) -> str:
        """The name for people."""
        return self.NAME

    def get_metadata(self) -> dict[str, str | list[str]]:
        """The description of the task in reports."""
        about: dict[str, str | list[str]] = {
            "dataset_path": self.DATASET_PATH,
            "sample_split": self.SAMPLE_SPLIT,
            "fewshot_split": self.FEWSHOT_SPLIT or "",
            "response_type": self.get_response_type().value,
            "metrics": [metric.NAME for metric in self.get_metrics()],
            "subjects": [str(subject) for subject in self.SUBJECTS],
        }
        return about | getattr(self.TASK_STYLER, "get_extra_metadata", dict)()

    def generate_completions(self, *given: Any, **named: Any) -> Any:
        """Raises `TaskDefinitionError`: evals ask the model."""
        raise TaskDefinitionError("generate_completions asks a model itself; name the task and the model in evals.yaml and run the eval")

    def markdown_doc(self, formatters: Sequence[Any] = ()) -> str:
        """Raises `TaskDefinitionError`: a command shows the task."""
        raise TaskDefinitionError(
            "markdown_doc is not available; `eval-dagster tasks path/to/file.py:Class` shows a task and its first prompt"
        )


def split_rows(samples: Iterable[Sample]) -> dict[str, list[Row]]:
    """The readable rows of one subject by split, in their order."""
    rows: dict[str, list[Row]] = defaultdict(list)
    for sample in sorted(samples, key=lambda sample: sample.row_index):
        if is_whole(sample.row):
            rows[sample.split].append(PlainRow(sample))
    return dict(rows)


def state_row(generator: Random) -> Row:
    """The state of a generator as a row."""
    return {"state": json.dumps(generator.getstate())}


def restored(row: Row) -> Random:
    """The generator of a row of `state_row`."""
    version, numbers, gauss = json.loads(row["state"])
    generator = Random()  # noqa: S311
    generator.setstate((version, tuple(numbers), gauss))
    return generator


class Rows(list[Row]):
    """The rows of a split."""

    def filter(self, function: Callable[[Row], bool]) -> Self:
        """The rows that the function accepts."""
        return type(self)(row for row in self if function(row))

    def map(self, function: Callable[[Row], Mapping[str, object]]) -> Self:
        """The rows, each with the fields that the function returns for it."""
        return type(self)({**row, **function(row)} for row in self)


class Splits(dict[str, Rows]):
    """Rows by split."""

    def filter(self, function: Callable[[Row], bool]) -> Self:
        """The rows that the function accepts."""
        return type(self)({split: rows.filter(function) for split, rows in self.items()})

    def map(self, function: Callable[[Row], Mapping[str, object]]) -> Self:
        """The rows, each with the fields that the function returns for it."""
        return type(self)({split: rows.map(function) for split, rows in self.items()})


def names_in(code: CodeType) -> set[str]:
    """The names of attributes and globals that a function uses, and `_load_hf_dataset` if it calls the base class's `_load_dataset`."""
    inner = [part for part in code.co_consts if isinstance(part, CodeType)]
    names = {*code.co_names, *(name for part in inner for name in names_in(part))}
    return names | {"_load_hf_dataset"} if {"super", "_load_dataset"} <= names else names
