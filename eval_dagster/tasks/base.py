# ruff: noqa: ARG002 - a hook's default need not read the row
"""`BaseTask` defines a benchmark in code; `Formatter` turns its conversation into text, and `IDKMixin` adds a choice "I don't know".

The hooks bear the names of Aleph Alpha's eval-framework, so that a benchmark written for it reads the same here.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from inspect import Parameter, signature
from random import Random
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar

from eval_dagster.errors import DataError, TaskDefinitionError
from eval_dagster.metrics.base import BaseMetric
from eval_dagster.metrics.loglikelihood import DistributionalCorrectnessScore, TernaryScore
from eval_dagster.records import Message, ResponseType, Role, Row, TaskSample
from eval_dagster.tasks.style import BPBStyle, TaskStyler


class _Generator:
    """A random generator, or the seed of one that is made when it is used."""

    __slots__ = ("_seed",)

    def __init__(self, seed: Random | int | str) -> None:
        self._seed = seed

    def made(self) -> Random:
        """The generator: the same one each time."""
        if not isinstance(self._seed, Random):
            self._seed = Random(self._seed)  # noqa: S311
        return self._seed


class Formatter(Protocol):
    """Turns a conversation into one prompt. A last assistant message is a cue: it stays open, and the model continues it."""

    name: str
    """The same as in `prompt_format` of evals.yaml."""
    has_special_tokens: bool
    """Whether the prompt contains the special tokens, so that a tokenizer must not add any."""

    def format(self, messages: Sequence[Message], *, images: int = 0) -> str:
        """Return the prompt, with the marks of `images` images before the text of the last user turn.

        Raises:
            ModelError: The model takes no images, or refuses these messages.
        """
        ...

    def answer_gap(self, question: str, answer: str) -> str:
        """Return the text between a user turn and an answer if neither has white space there."""
        ...

    def version(self) -> str:
        """Hash of everything that can change a prompt."""
        ...


def join_cue(cue: str, answer: str) -> str:
    """Cue and answer, once each, with one space between them if neither has white space there."""
    if not cue or not answer or answer.startswith(cue):
        return answer or cue
    if cue[-1].isspace() or answer[0].isspace():
        return cue + answer
    return f"{cue} {answer}"


SubjectType = TypeVar("SubjectType")
FewshotStrategy = Literal["random", "first", "balanced"]
NO_SUBJECT = "no_subject"
"""The subject of a dataset that has only one configuration."""


class BaseTask(Generic[SubjectType]):
    """A benchmark: the place of its rows, the prompt and the answer of a row, and the metrics.

    A subclass sets the attributes and overrides the hooks below. Every hook gets one row of the dataset, to which `subject` is added if the
    row has no such field. If a field is null, `item["field"]` is an error and `item.get("field")` is None, so hooks read optional fields by
    `get`. A prompt consists of: system prompt, few-shot pairs, instruction, cue.
    """

    NAME: ClassVar[str]
    """Shown to people."""
    DATASET_PATH: ClassVar[str]
    """Hub id `organisation/name`, or a folder of split files, or any word if `_load_dataset` makes the rows.

    A folder is absolute or begins with `./` or `../`. It is relative to the folder of evals.yaml, or else to the folder of the task's file:
    `./quiz` holds `test.jsonl`, for example, or `<config>/test-00000-of-00001.parquet`. Without that beginning it is a Hub id, even if a
    folder of that name exists.
    """
    DATASET_REVISION: ClassVar[str | None] = None
    """Full commit hash of the dataset. If it is not set, `HF_REVISION`, eval-framework's name for it, is read."""
    DATA_FILES: ClassVar[Sequence[str]] = ()
    """Files or folders that `_load_dataset` reads, relative to the file of the class that sets this. Changing them makes a new snapshot."""
    COLUMN_TYPES: ClassVar[Mapping[str, type]] = {}
    """Types of columns of CSV files: `str`, `int`, `float` or `bool`. Another column has numbers if each of its cells is exactly Python's
    text of a number, booleans if each is `True` or `False`, else the texts as written. Types do not change the ids of samples."""
    SAMPLE_SPLIT: ClassVar[str]
    """The split that is evaluated; `validation+test` reads one after the other."""
    FEWSHOT_SPLIT: ClassVar[str | None] = None
    """The split that few-shot examples are drawn from; may be the evaluated one."""
    NUM_FEWSHOT: ClassVar[int] = 0
    """The task's own number of examples, for evals that do not set one."""
    FEWSHOT_STRATEGY: ClassVar[FewshotStrategy] = "random"
    """How examples are drawn, for evals that do not set it: `random` (by the eval's seed), `first` (of their split) or `balanced` (the
    classes of `_get_fewshot_class` in turn). All samples of a subject have the same examples, unless the eval has several
    `fewshot_sets`."""
    TASK_STYLER: ClassVar[TaskStyler | None] = None
    """Writes instruction, choices, gold, cue and metrics of a task that gives `_get_raw_question`, `_get_choices` and
    `_get_correct_index`."""
    RESPONSE_TYPE: ClassVar[ResponseType]
    """Decides which metrics fit: a `LoglikelihoodMetric` for log-likelihoods, a `CompletionMetric` for completions."""
    METRICS: ClassVar[Sequence[type[BaseMetric]]]
    """The first is the headline, shown on the leaderboard, unless `HEADLINE_METRIC` is set."""
    HEADLINE_METRIC: ClassVar[type[BaseMetric] | None] = None
    """One of `METRICS`."""
    HEADLINE_AGGREGATION: ClassVar[Literal["micro", "macro"]] = "micro"
    """The value on the leaderboard for several subjects: computed from all samples together, or the mean of the subjects' values."""
    SUBJECTS: ClassVar[Sequence[Any]] = ("default",)
    """Strings, enum members or tuples of them: the dataset's configurations, each loaded on its own. A dataset with only one, or a folder
    without subfolders, needs no names here."""
    SUBJECT_FIELD: ClassVar[str | None] = None
    """Field of the row that names its subject, if the dataset has one configuration for all: `SUBJECTS` are the field's values."""
    STOP_SEQUENCES: ClassVar[Sequence[str]] = ()
    """End a completion; not part of its text."""
    MAX_TOKENS: ClassVar[int | None] = None
    """Most tokens of a completion. None: the model's own `generation.max_tokens`, else the rest of its context after the prompt."""
    NUM_SAMPLES: ClassVar[int] = 1
    """Completions of each prompt, for evals that do not set it; more than one needs a model with a temperature above 0."""
    CLUSTER_FIELD: ClassVar[str | None] = None
    """Field of the row by which samples belong together, such as a passage's id; their scores are not independent.

    Equal values are one cluster in any subject; a row without a value, or with an empty text, stands alone.
    """
    ID_FIELD: ClassVar[str | None] = None
    """Field of the row that names it for people, such as a ticket's number: the column `sample_name` of every relation of samples.

    A sample's id stays the hash of its content. Several rows with one name are reported, and evaluated like all others.
    """
    LANGUAGE: ClassVar[Any] = None
    """Language of the rows, if they share one."""
    SOURCE: ClassVar[str] = ""
    """Licence and origin of the rows, shown by `eval-dagster tasks`."""
    VERSION: ClassVar[str] = ""
    """Version of everything outside of the task's code that decides rows, prompts or scores."""

    variants: Mapping[str, "BaseTask[Any]"] = MappingProxyType({})
    """The task as it asks each variant of an eval, by the variant's name. Set by the pipeline for the scores."""
    written_example: Row | None = None
    """The example that is being written, so that an exception can name it; null outside of examples."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Take the attributes that the class does not set from its styler."""
        super().__init_subclass__(**arguments)
        own = vars(cls)
        if styler := own.get("TASK_STYLER"):
            for name, value in (("RESPONSE_TYPE", styler.response_type), ("METRICS", tuple(styler.metrics))):
                if name not in own:
                    setattr(cls, name, value)
        if own.get("HF_REVISION") and "DATASET_REVISION" not in own:
            cls.DATASET_REVISION = own["HF_REVISION"]

    def __init__(self, num_fewshot: int | None = None) -> None:
        self.num_fewshot = self.NUM_FEWSHOT if num_fewshot is None else num_fewshot
        self.stop_sequences: list[str] | None = list(self.STOP_SEQUENCES)
        self.max_tokens: int | None = self.MAX_TOKENS
        self.dataset: Mapping[str, Sequence[Row]] = {}
        """Rows by split. While a prompt is made: the few-shot split of the subject, without the row of the question and its duplicates."""
        self.seed_random(0, 0)
        self.draw_examples: Callable[[Row], list[Row]] | None = None
        """Set by the pipeline: draws `num_fewshot` examples for a row by the eval's strategy."""
        self.formatter: Formatter | None = None
        """Set by the pipeline: writes messages as the text that the model reads. A task needs it only to give a whole `prompt`."""
        self.examples_used: list[Row] = []
        """The examples of the latest prompt."""

    def seed_random(self, seed: int | str, examples_seed: int | str) -> None:
        """Replace `rnd` and `examples_rnd`. They are made when they are used, since most tasks use none, and a seed takes long."""
        self._rnd, self._examples_rnd = _Generator(seed), _Generator(examples_seed)
        if not isinstance(getattr(type(self), "rnd", None), property):  # a generator of the task's own class
            self.rnd = Random(seed)  # noqa: S311

    @property
    def rnd(self) -> Random:
        """A random generator. Its seed for each row is the eval's seed and the row; while examples are chosen and written, it is their set;
        while rows are compared, it is constant."""
        return self._rnd.made()

    @rnd.setter
    def rnd(self, generator: Random) -> None:
        self._rnd = _Generator(generator)

    @property
    def examples_rnd(self) -> Random:
        """The generator that replaces `rnd` while examples are chosen and written, so that prompts with the same examples begin equally."""
        return self._examples_rnd.made()

    @examples_rnd.setter
    def examples_rnd(self, generator: Random) -> None:
        self._examples_rnd = _Generator(generator)

    @classmethod
    def customary(cls) -> Self:
        """The task with its own number of examples: `NUM_FEWSHOT`, or the default of its own `__init__`."""
        given = signature(cls).parameters.get("num_fewshot")
        return cls(num_fewshot=cls.NUM_FEWSHOT) if given is not None and given.default is Parameter.empty else cls()

    # ---- data

    def _load_dataset(self, subject: SubjectType) -> Mapping[str, Sequence[Row]] | None:
        """Return split -> rows of one subject, or set `self.dataset`. Override only for rows that are not on the Hub.

        Name every file that it reads in `DATA_FILES`; changes of other files make no new snapshot.
        """
        raise NotImplementedError

    def _sample_fewshot_examples(self, item: Row) -> list[Row]:
        """The examples before a row: never the row itself or a duplicate of it."""
        if not self.num_fewshot:
            return []
        if self.draw_examples is None:
            raise DataError(f"task {self.NAME} has nothing to draw examples from; it is rendered by render_sample or an eval")
        self.examples_used[:] = self.draw_examples(item)
        return list(self.examples_used)

    def fewshot_examples(self, item: Row) -> list[Row]:
        """The examples of `_sample_fewshot_examples`, except any that reveal the answer: the row itself, or one with the same question."""
        self.examples_used[:] = self._sample_fewshot_examples(item)
        if self.examples_used:
            asked = self._folded_question(item)
            self.examples_used[:] = [
                each for each in self._in_turn(self.examples_used) if each != item and self._folded_question(each) != asked
            ]
        return list(self.examples_used)

    def _folded_question(self, item: Row) -> str:
        with self.comparing():
            return " ".join(self._instruction_text(item).casefold().split())

    def _instruction_text(self, item: Row) -> str:
        text: object = self._get_instruction_text(item)
        if not isinstance(text, str):
            raise DataError(f"_get_instruction_text returned {text!r}; expected a text")
        return text

    def _in_turn(self, examples: Iterable[Row]) -> Iterator[Row]:
        """Yield the examples, each noted as the one that is being written."""
        for example in examples:
            self.written_example = example
            yield example
        self.written_example = None

    @contextmanager
    def comparing(self) -> Iterator[None]:
        """Within the block, `rnd` is a new generator with a constant seed. The old one goes on after it."""
        own, examples = self._rnd, self._examples_rnd
        shown = None if isinstance(getattr(type(self), "rnd", None), property) else self.rnd
        self.seed_random(0, 0)
        self._examples_rnd = examples
        try:
            yield
        finally:
            self._rnd = own
            if shown is not None:
                self.rnd = shown

    def is_example(self, item: Row) -> bool:
        """Whether a row can be an example."""
        return True

    def _get_fewshot_class(self, item: Row) -> str:
        """The class by which balanced examples are drawn, by default the gold answer."""
        truth = self._get_ground_truth(item)
        return str(truth[0] if isinstance(truth, list) and truth else truth)

    # ---- a question with choices, for a styler

    def _get_raw_question(self, item: Row) -> str:
        """The question alone."""
        raise NotImplementedError

    def _get_choices(self, item: Row) -> list[str]:
        """The texts of the choices."""
        raise NotImplementedError

    def _get_correct_index(self, item: Row) -> int:
        """Position of the correct choice, from 0."""
        raise NotImplementedError

    # ---- prompt

    def _get_instruction_text(self, item: Row) -> str:
        """The question, as the user asks it."""
        if self.TASK_STYLER is None:
            raise NotImplementedError
        return self.TASK_STYLER.get_instruction_text(self._get_raw_question(item), self._get_choices(item))

    def _get_ground_truth(self, item: Row) -> str | list[str] | None:
        """The correct answer: for log-likelihoods one (or several) of the choices, for completions one or several texts; None for
        perplexities.
        """
        if self.TASK_STYLER is None:
            if self.RESPONSE_TYPE is ResponseType.PERPLEXITY:
                return None
            raise NotImplementedError
        return self.TASK_STYLER.get_ground_truth(self._get_choices(item), self._get_correct_index(item))

    def _get_possible_completions(self, item: Row) -> list[str] | None:
        """The choices to score; None for completions."""
        if self.TASK_STYLER is None:
            return None
        return self.TASK_STYLER.get_possible_completions(self._get_choices(item), self._get_correct_index(item))

    def _get_system_prompt_text(self, item: Row) -> str | None:
        """The system message before all others."""
        return None

    def _get_initial_prompt_text(self, item: Row) -> str:
        """A text before the first user turn, once, followed by a blank line."""
        return ""

    def _get_cue_text(self, item: Row) -> str:
        """The opening of the assistant's answer, e.g. `Answer:`; few-shot answers carry it too."""
        return "" if self.TASK_STYLER is None else self.TASK_STYLER.get_cue_text()

    def _get_fewshot_target_text(self, item: Row) -> str:
        """The answer of a few-shot example, with or without the cue; by default the ground truth."""
        if self.TASK_STYLER is not None:
            return self.TASK_STYLER.get_fewshot_target_text(self._get_choices(item), self._get_correct_index(item))
        truth = self._get_ground_truth(item)
        return (truth[0] if isinstance(truth, list) else truth) or ""

    def _get_context(self, item: Row) -> Any:
        """Values that a metric needs beside the gold answer: a mapping, or one or several `MetricContext`."""
        return None

    def _get_unconditioned_query(self, item: Row) -> str | None:
        """A prompt without the question, such as `Answer:`, by which metrics of pointwise mutual information normalise."""
        return None

    def post_process_generated_completion(self, completion_text: str, sample: TaskSample | None = None) -> str:
        """The answer in a generated text, after its reasoning is removed."""
        return completion_text

    # ---- assembly

    def _get_instruction_messages(self, item: Row) -> list[Message]:
        """The turns that ask about a row: one of the user."""
        return [Message(Role.USER, self._instruction_text(item))]

    def _get_example_messages(self, item: Row) -> list[Message]:
        """The turns of the few-shot examples of a row: question and answer of each."""
        messages: list[Message] = []
        for example in self._in_turn(self.fewshot_examples(item)):
            answer = join_cue(self._get_cue_text(example), self._get_fewshot_target_text(example))
            messages += [*self._get_instruction_messages(example), Message(Role.ASSISTANT, answer)]
        return messages

    def _get_messages(self, item: Row) -> list[Message]:
        """The whole prompt of one row: system, few-shot pairs, instruction, cue."""
        if type(self).rnd is BaseTask.rnd and type(self).examples_rnd is BaseTask.examples_rnd:
            own, self._rnd = self._rnd, self._examples_rnd  # neither is made if no hook uses it
            examples = self._get_example_messages(item)
            self._rnd = own
        else:
            shown, self.rnd = self.rnd, self.examples_rnd
            examples = self._get_example_messages(item)
            self.rnd = shown
        messages = [*examples, *self._get_instruction_messages(item)]
        initial: object = self._get_initial_prompt_text(item)
        if not isinstance(initial, str | None):
            raise DataError(f"_get_initial_prompt_text returned {initial!r}; expected a text")
        if initial:
            messages[0] = Message(messages[0].role, f"{initial}\n\n{messages[0].content}")
        if system := self._get_system_prompt_text(item):
            messages.insert(0, Message(Role.SYSTEM, system))
        if cue := self._get_cue_text(item):
            messages.append(Message(Role.ASSISTANT, cue))
        return messages

    def _create_samples(self, item: Row, index: int, subject: str) -> list[TaskSample]:
        """The questions about one row. Override it to ask several, or to use settings of the row.

        Args:
            item: The row.
            index: Its position in its split, from 0.
            subject: The name of its subject.
        """
        return [
            TaskSample(
                id=index,
                subject=subject,
                row=item,
                messages=self._get_messages(item),
                ground_truth=self._get_ground_truth(item),
                possible_completions=self._get_possible_completions(item),
                context=self._get_context(item),
                unconditioned_query=self._get_unconditioned_query(item),
            )
        ]


def subject_name(subject: Any) -> str:
    """The name of a subject: a string, the value of an enum's member, or the names of a tuple's parts, separated by commas."""
    if isinstance(subject, tuple):
        return ",".join(subject_name(part) for part in subject)
    return str(subject.value if isinstance(subject, Enum) else subject)


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
        return "\n\n".join(text for text in (super()._get_initial_prompt_text(item), self.idk_rule()) if text)

    def idk_rule(self) -> str:
        """The rule of the scores, as the prompt states it."""
        return f"A wrong answer loses as much as a correct one gains. Where you are not sure, answer: {self.IDK_CHOICE}"

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
