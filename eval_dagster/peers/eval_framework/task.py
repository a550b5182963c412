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
from random import Random
from types import CodeType
from typing import Any, Self

from eval_dagster.errors import DataError
from eval_dagster.peers.eval_framework.formatters import lost_space, prompt_text
from eval_dagster.peers.eval_framework.responses import Completion, Loglikelihood
from eval_dagster.records import Message, MetricContext, ModelResponse, ResponseType, Role, Row, Sample, TaskSample
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.tasks.base import NO_SUBJECT, SubjectType, subject_name
from eval_dagster.tasks.benchmark import OrderedTask
from eval_dagster.tasks.samples import TaskRow, is_whole
from eval_dagster.versions.hashes import stable_hash

log = logging.getLogger("eval_dagster.eval_framework")

RANDOM_SEED = 42
"""The seed of every task's generator."""
STATE_SPLIT = "random_state"
"""The split of one row with the state of the generator after the rows were read."""


class EvalFrameworkTask(OrderedTask[SubjectType]):
    """A benchmark in eval-framework's way."""

    STATE_SPLIT = STATE_SPLIT

    def __init__(self, num_fewshot: int = 0) -> None:
        super().__init__(num_fewshot)
        self.stop_sequences = None
        self.max_tokens = None
        self.rnd = Random(RANDOM_SEED)  # noqa: S311
        self._samples: dict[str, list[Sample]] = {}
        self._is_warned = False
        self._known: set[tuple[str, str, int, str]] = set()
        self._asked: tuple[str, Iterator[tuple[int, list[TaskSample] | BaseException]], int] | None = None

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

            whole = load_dataset(path, name, revision=self.DATASET_REVISION)
            return Splits({split: Rows(whole[split]) for split in splits})
        return Splits({split: Rows(rows) for split, rows in self.open_splits(path, name, self.DATASET_REVISION, splits).items()})

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
        messages = [*examples, *self._get_instruction_messages(item)]
        if cue := self._get_cue_text(item):
            messages.append(Message(role=Role.ASSISTANT, content=cue))
        if initial := self._get_initial_prompt_text(item):
            messages[0] = replace(messages[0], content=f"{initial}\n\n{messages[0].content}")
        if system := self._get_system_prompt_text(item):
            messages.insert(0, Message(role=Role.SYSTEM, content=system))
        return messages

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
            gold_indices=self._gold_indices(made) if self.RESPONSE_TYPE is ResponseType.LOGLIKELIHOODS else None,
            context=_contexts(made, number),
        )

    def _gold_indices(self, made: TaskSample) -> list[int]:
        """Positions of the gold answers among the choices; empty if no choice is one, so that every answer is wrong."""
        truths = [made.ground_truth] if isinstance(made.ground_truth, str) else list(made.ground_truth or ())
        choices = list(made.possible_completions or ())
        found = [place for place, choice in enumerate(choices) if choice in truths]
        found = found or [place for place, choice in enumerate(choices) if choice.strip() in [truth.strip() for truth in truths]]
        if not found and not self._is_warned:
            self._is_warned = True
            log.warning(f"task {self.NAME}: the gold answer {made.ground_truth!r} is not among the choices {choices}")
        return found

    def views(self, sample: Sample, prompt: RenderedPrompt, response: ModelResponse) -> Sequence[Completion | Loglikelihood]:
        """The responses to score: each generated text, or all choices together."""
        asked, own = _asked_about(prompt)
        shared: dict[str, Any] = {
            "id": asked["id"],
            "subject": asked["subject"],
            "prompt": prompt.request.prompt,
            "context": own if asked["is_list"] else own[0] if own else None,
            "row": PlainRow(sample),
        }
        if prompt.response_type is not ResponseType.COMPLETION:
            return [
                Loglikelihood(
                    loglikelihoods=response.choice_logprobs,
                    choices=list(prompt.request.choices or ()),
                    ground_truth=prompt.ground_truth or "",
                    gold_indices=list(prompt.gold_indices),
                    token_loglikelihoods=response.token_logprobs,
                    is_greedy=response.argmax_logits_eq_gold,
                    **shared,
                )
            ]
        messages = list(prompt.messages)
        question = TaskSample(
            messages=messages,
            ground_truth=prompt.ground_truth,
            **{name: shared[name] for name in ("id", "subject", "context", "row")},
        )
        return [
            Completion(
                completion_text=self.post_process_generated_completion(answer, question),
                raw_text=text,
                reasoning=response.reasonings[place] if response.reasonings else None,
                finish_reason=response.finish_reason[place] if response.finish_reason else "stop",
                messages=messages,
                ground_truth=prompt.ground_truth,
                ground_truths=list(prompt.ground_truths),
                **shared,
            )
            for place, (text, answer) in enumerate(zip(response.text, response.final_text, strict=True))
        ]


_KEY = "eval_framework"
"""The field of the first context of a prompt: the number of the question and its subject."""


def _contexts(made: TaskSample, number: int) -> list[MetricContext]:
    """The contexts of a question, after one with its number among the questions of its subject, from 0."""
    given: Any = made.context
    is_list = isinstance(given, list | tuple)
    parts = [] if given is None else list(given) if is_list else [given]
    classes = [type(part).__qualname__ for part in parts]
    return [MetricContext.model_validate({_KEY: {"id": number, "subject": made.subject, "classes": classes, "is_list": is_list}}), *parts]


def _asked_about(prompt: RenderedPrompt) -> tuple[Mapping[str, Any], list[MetricContext]]:
    """The notes of `_contexts` about a question, and the task's own contexts."""
    about, *own = prompt.context
    found: Mapping[str, Any] = getattr(about, _KEY)
    return found, own


class PlainRow(TaskRow):
    """A row whose nulls are None, without the field `subject` that every row of the lake has."""

    def __init__(self, sample: Sample) -> None:
        super().__init__(sample)
        own = {key: value for key, value in sample.row.items() if key != "subject"}
        if stable_hash(own) == sample.content_id:
            self.pop("subject", None)

    def __getitem__(self, key: str) -> Any:
        """Return a field's value."""
        return dict.__getitem__(self, key)


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
