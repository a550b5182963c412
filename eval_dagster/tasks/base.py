# ruff: noqa: ARG002 - a hook's default need not read the row
"""`BaseTask`: a benchmark's definition in code.

The hooks bear the names of Aleph Alpha's eval-framework, so that a benchmark written for it reads the same here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from inspect import Parameter, signature
from random import Random
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

from eval_dagster.errors import DataError
from eval_dagster.metrics.base import BaseMetric
from eval_dagster.records import Message, ResponseType, Role, Row, TaskSample
from eval_dagster.tasks.style import TaskStyler

SubjectType = TypeVar("SubjectType")
FewshotStrategy = Literal["random", "first", "balanced"]
NO_SUBJECT = "no_subject"
"""The subject of a dataset that has one configuration only."""


class BaseTask(Generic[SubjectType]):
    """A benchmark: where its rows are, how a row becomes a prompt, what the answer is, and what measures it.

    A subclass sets the attributes and overrides the hooks below; every hook sees one row of the dataset, to which `subject` is
    added where the row has no such field. Where a field is null, `item["field"]` is an error and `item.get("field")` is None: a hook
    that builds a prompt reads by `get` what may be absent. The prompt is made of: system prompt, few-shot pairs, instruction, cue.
    """

    NAME: ClassVar[str]
    """Shown to people."""
    DATASET_PATH: ClassVar[str]
    """Hub id `organisation/name`, or a folder of split files, or a word for the rows that `_load_dataset` brings.

    A folder is absolute or begins with `./` or `../`, and is relative to the folder of evals.yaml: `./quiz` holds `test.jsonl`, say, or
    `<config>/test-00000-of-00001.parquet`. Without that beginning it is a Hub id, whatever folders there are.
    """
    DATASET_REVISION: ClassVar[str | None] = None
    """Full commit hash of the dataset; `HF_REVISION`, as eval-framework calls it, is read where this is not set."""
    DATA_FILES: ClassVar[Sequence[str]] = ()
    """Files or folders that `_load_dataset` reads, relative to the file of the class that sets this; their change makes the snapshot
    anew."""
    SAMPLE_SPLIT: ClassVar[str]
    """The split that is evaluated."""
    FEWSHOT_SPLIT: ClassVar[str | None] = None
    """The split that few-shot examples are drawn from; may be the evaluated one."""
    NUM_FEWSHOT: ClassVar[int] = 0
    """Examples with which results of this benchmark are customarily reported; used unless the eval says otherwise."""
    FEWSHOT_STRATEGY: ClassVar[FewshotStrategy] = "random"
    """How they are drawn, unless the eval says otherwise: `random` (by the eval's seed), `first` (of their split) or `balanced` (the
    classes of `_get_fewshot_class` in turn). All samples of a subject have the same, unless the eval has several `fewshot_sets`."""
    TASK_STYLER: ClassVar[TaskStyler | None] = None
    """Writes instruction, choices, gold, cue and metrics of a task that gives `_get_raw_question`, `_get_choices` and
    `_get_correct_index`."""
    RESPONSE_TYPE: ClassVar[ResponseType]
    """Decides which metrics fit: a `LoglikelihoodMetric` for log-likelihoods, a `CompletionMetric` for completions."""
    METRICS: ClassVar[Sequence[type[BaseMetric]]]
    """The first is the headline, shown on the leaderboard, unless `HEADLINE_METRIC` says otherwise."""
    HEADLINE_METRIC: ClassVar[type[BaseMetric] | None] = None
    """One of `METRICS`."""
    HEADLINE_AGGREGATION: ClassVar[Literal["micro", "macro"]] = "micro"
    """What the leaderboard shows where there are several subjects: the samples together, or the mean of the subjects' values."""
    SUBJECTS: ClassVar[Sequence[Any]] = ("default",)
    """Strings, enum members or tuples of them: the dataset's configurations, each loaded on its own. A dataset that has one alone, or
    a folder without subfolders, needs none named."""
    SUBJECT_FIELD: ClassVar[str | None] = None
    """Field of the row that names its subject, where the dataset has one configuration for all: `SUBJECTS` are the field's values."""
    STOP_SEQUENCES: ClassVar[Sequence[str]] = ()
    """End a completion; not part of its text."""
    MAX_TOKENS: ClassVar[int | None] = None
    """Most tokens of a completion. None: the model's own `generation.max_tokens`, else what its context holds after the prompt."""
    NUM_SAMPLES: ClassVar[int] = 1
    """Completions of each prompt, unless the eval says otherwise; more than one needs a model with a temperature above 0."""
    CLUSTER_FIELD: ClassVar[str | None] = None
    """Field of the row by which samples belong together, a passage's id for instance; their scores are not independent.

    Equal values are one cluster in whatever subject; a row without a value, or with an empty text, stands alone.
    """
    LANGUAGE: ClassVar[Any] = None
    """Language of the rows, where it is one."""
    SOURCE: ClassVar[str] = ""
    """Licence and origin of the rows, shown by `eval-dagster tasks`."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Take from a styler what the class does not say itself."""
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
        """Rows by split. While prompts are made: the few-shot split of the subject, without the row asked about and its duplicates."""
        self.rnd = Random(0)  # noqa: S311
        """Seeded anew for each row by the eval's seed and the row; while examples are chosen and written, by their set; while rows are
        compared, always the same."""
        self.examples_rnd = Random(0)  # noqa: S311
        """What `rnd` is while examples are chosen and written, so that rows with the same examples share the beginning of their prompts."""
        self.draw_examples: Callable[[Row], list[Row]] | None = None
        """Set by the pipeline: draws `num_fewshot` examples for a row by the eval's strategy."""
        self.examples_used: list[Row] = []
        """The examples of the prompt that was made last."""

    @classmethod
    def customary(cls) -> Self:
        """The task with its customary number of examples: `NUM_FEWSHOT`, or what the default of its own `__init__` says."""
        given = signature(cls).parameters.get("num_fewshot")
        return cls(num_fewshot=cls.NUM_FEWSHOT) if given is not None and given.default is Parameter.empty else cls()

    # ---- data

    def _load_dataset(self, subject: SubjectType) -> Mapping[str, Sequence[Row]] | None:
        """Return split -> rows of one subject, or set `self.dataset`. Override only for rows that are not on the Hub.

        Name every file that it reads in `DATA_FILES`: what is not named there can change without a new snapshot.
        """
        raise NotImplementedError

    def _sample_fewshot_examples(self, item: Row) -> list[Row]:
        """The examples that stand before a row: never the row itself, nor a duplicate of it."""
        if not self.num_fewshot:
            return []
        if self.draw_examples is None:
            raise DataError(f"task {self.NAME} has nothing to draw examples from; it is rendered by render_sample or an eval")
        self.examples_used[:] = self.draw_examples(item)
        return list(self.examples_used)

    def fewshot_examples(self, item: Row) -> list[Row]:
        """What `_sample_fewshot_examples` gives, without what would tell the answer: the row itself, or one that asks the same."""
        asked = self._folded_question(item)
        self.examples_used[:] = self._sample_fewshot_examples(item)
        self.examples_used[:] = [each for each in self.examples_used if each != item and self._folded_question(each) != asked]
        return list(self.examples_used)

    def _folded_question(self, item: Row) -> str:
        with self.comparing():
            return " ".join(self._get_instruction_text(item).casefold().split())

    @contextmanager
    def comparing(self) -> Iterator[None]:
        """Within the block `rnd` starts anew, the same for every row; after it, it goes on where it was before."""
        own, self.rnd = self.rnd, Random(0)  # noqa: S311
        try:
            yield
        finally:
            self.rnd = own

    def is_example(self, item: Row) -> bool:
        """Whether a row can stand before a question as an example."""
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
        """The correct answer: for log-likelihoods one (or several) of the choices, for completions one or several texts; none for
        perplexities.
        """
        if self.TASK_STYLER is None:
            if self.RESPONSE_TYPE is ResponseType.PERPLEXITY:
                return None
            raise NotImplementedError
        return self.TASK_STYLER.get_ground_truth(self._get_choices(item), self._get_correct_index(item))

    def _get_possible_completions(self, item: Row) -> list[str] | None:
        """The choices to score; none for completions."""
        if self.TASK_STYLER is None:
            return None
        return self.TASK_STYLER.get_possible_completions(self._get_choices(item), self._get_correct_index(item))

    def _get_system_prompt_text(self, item: Row) -> str | None:
        """What the system says before anybody else."""
        return None

    def _get_initial_prompt_text(self, item: Row) -> str:
        """What stands once, with a blank line, before the first user turn."""
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
        """Whatever a metric needs beside the gold answer: a mapping, or one or several `MetricContext`."""
        return None

    def _get_unconditioned_query(self, item: Row) -> str | None:
        """A prompt without the question, by which metrics by pointwise mutual information normalise; `Answer:`, say."""
        return None

    def post_process_generated_completion(self, completion_text: str, sample: TaskSample | None = None) -> str:
        """What of a generated text, its reasoning already split off, is the answer."""
        return completion_text

    # ---- assembly

    def _get_instruction_messages(self, item: Row) -> list[Message]:
        """The turns that ask about a row: one of the user."""
        return [Message(Role.USER, self._get_instruction_text(item))]

    def _get_example_messages(self, item: Row) -> list[Message]:
        """The turns of the few-shot examples of a row: question and answer of each."""
        messages: list[Message] = []
        for example in self.fewshot_examples(item):
            answer = join_cue(self._get_cue_text(example), self._get_fewshot_target_text(example))
            messages += [*self._get_instruction_messages(example), Message(Role.ASSISTANT, answer)]
        return messages

    def _get_messages(self, item: Row) -> list[Message]:
        """The whole prompt of one row: system, few-shot pairs, instruction, cue."""
        own, self.rnd = self.rnd, self.examples_rnd
        examples = self._get_example_messages(item)
        self.rnd = own
        messages = [*examples, *self._get_instruction_messages(item)]
        if initial := self._get_initial_prompt_text(item):
            messages[0] = Message(messages[0].role, f"{initial}\n\n{messages[0].content}")
        if system := self._get_system_prompt_text(item):
            messages.insert(0, Message(Role.SYSTEM, system))
        if cue := self._get_cue_text(item):
            messages.append(Message(Role.ASSISTANT, cue))
        return messages

    def _create_samples(self, item: Row, index: int, subject: str) -> list[TaskSample]:
        """What is asked about one row; override it to ask several things, or with settings of the row's own.

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


def join_cue(cue: str, answer: str) -> str:
    """Cue and answer, once each, with exactly one space between them where neither brings white space."""
    if not cue or not answer or answer.startswith(cue):
        return answer or cue
    if cue[-1].isspace() or answer[0].isspace():
        return cue + answer
    return f"{cue} {answer}"


def subject_name(subject: Any) -> str:
    """The name of a subject: a string, the value of an enum's member, or those of a tuple with commas between them."""
    if isinstance(subject, tuple):
        return ",".join(subject_name(part) for part in subject)
    return str(subject.value if isinstance(subject, Enum) else subject)
