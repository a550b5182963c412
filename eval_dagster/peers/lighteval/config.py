"""Tasks as lighteval writes them: a configuration that names a prompt function, the task that it describes, and its prompts."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np

from eval_dagster.errors import DataError, TaskDefinitionError
from eval_dagster.metrics.base import BaseMetric
from eval_dagster.peers.lighteval.members import DOC_INDEX, Metrics, known_metric, metric_classes
from eval_dagster.peers.lighteval.metric import Metric
from eval_dagster.records import Message, MetricContext, Role, Row, TaskSample
from eval_dagster.tasks.base import FewshotStrategy
from eval_dagster.tasks.doc import Doc, DocFunction, Docs, DocTask, SamplingMethod, with_task_name
from eval_dagster.tasks.samples import row_name

_ANSWER = cast(Role, str(Role.ASSISTANT.value))
"""The role of an example's answer. It is a text equal to the role. So a chat template gets the answer with its leading white space, which
formatters remove for `Role.ASSISTANT`."""


def plain_prompt(doc: Doc, examples: Sequence[Doc]) -> str:
    """Instruction, examples and query with a blank line between them. An answer follows its query after a space."""
    instruction = [] if doc.instruction is None else [doc.instruction]
    shown = [f"{query_of(example)} {example.get_golds()[0].strip()}" for example in examples]
    return "\n\n".join([*instruction, *shown, query_of(doc)])


def chat_messages(doc: Doc, examples: Sequence[Doc]) -> list[Message]:
    """A turn for each query and each example's answer. The instruction opens the first turn, with nothing after it."""
    messages = []
    for example in examples:
        messages += [Message(Role.USER, query_of(example)), Message(_ANSWER, example.get_golds()[0])]
    messages.append(Message(Role.USER, query_of(doc)))
    first = messages[0]
    return [Message(first.role, f"{doc.instruction or ''}{first.content}"), *messages[1:]]


def query_of(doc: Doc) -> str:
    """The query; an instruction at its beginning is removed, and the rest stripped."""
    if doc.instruction is not None and doc.query.startswith(doc.instruction):
        return doc.query.removeprefix(doc.instruction).strip()
    return doc.query


@dataclass(frozen=True)
class DocMaker:
    """Makes the `Doc`s of rows, always the same for a row."""

    name: str
    """The task's name, which the function gets."""
    function: DocFunction
    filter: Callable[[Row], bool] | None = None
    """Rows for which it is false are left out."""

    def made_of(self, row: Row, *, is_example: bool = False) -> Docs:
        """The function's result for a row.

        The function gets a copy, in which nulls are None, with lighteval's field `__few_shots`. Meanwhile the random generators of Python
        and NumPy depend on the row alone.
        """
        own = deepcopy(dict(row.items()))
        if self.filter is not None and not self.filter(own):
            return None
        with _seeded(row_name(row)):
            return with_task_name(self.function)({**own, "__few_shots": is_example}, self.name)

    def docs_of(self, row: Row) -> list[Doc]:
        """The `Doc`s of a row, for metrics."""
        made = self.made_of(row)
        docs = [] if made is None else [made] if isinstance(made, Doc) else made
        return [replace(doc, task_name=self.name) for doc in docs]


class LightevalTask(DocTask):
    """The task that a `LightevalTaskConfig` describes, with lighteval's prompts."""

    DOCS: ClassVar[DocMaker]
    """Makes the `Doc`s of the rows."""

    def doc(self, row: Row) -> Docs:
        """The prompt function's result for a row; None if the filter excludes the row."""
        return self.DOCS.made_of(row, is_example=self._is_example)

    _is_example = False
    """Whether rows become examples, which some prompt functions write differently."""

    def _folded_question(self, item: Row) -> str:
        return super()._folded_question(item) or row_name(item)  # questions without a text are not duplicates

    def _examples(self, item: Row) -> Sequence[Row]:
        self._is_example = True
        try:
            return super()._examples(item)
        finally:
            self._is_example = False

    def _get_messages(self, item: Row) -> list[Message]:
        return chat_messages(self._doc_of(item), self._example_docs(item))

    def _example_docs(self, item: Row) -> list[Doc]:
        own, self.rnd = self.rnd, self.examples_rnd
        examples = [self._doc_of(each) for each in self._examples(item)]
        self.rnd = own
        for doc in examples:
            if not doc.get_golds() or doc.images:
                raise DataError(
                    f"task {self.NAME} made {doc!r} of a few-shot example; expected a Doc with choices and gold_index, and without "
                    "images: only the question itself may have some"
                )
        self._shown = examples
        return examples

    _shown: Sequence[Doc] = ()
    """The examples of the latest prompt."""

    def _get_context(self, item: Row) -> MetricContext | None:
        context, index = super()._get_context(item), self._doc_of(item).id.partition(".")[2]
        if not index:  # the only Doc of its row, or the first
            return context
        return MetricContext(**{**(dict(context) if context else {}), DOC_INDEX: int(index)})

    def _sample(self, item: Any, doc: Doc, method: SamplingMethod, index: int, subject: str) -> TaskSample:
        sample = super()._sample(item, doc, method, index, subject)
        if method is SamplingMethod.PERPLEXITY or self.formatter is None:
            return sample
        if self.formatter.name == "plain" and not sample.images:
            return replace(sample, prompt=plain_prompt(doc, self._shown))
        return replace(sample, prompt=self.formatter.format(sample.messages, images=len(sample.images)))


@contextmanager
def _seeded(seed: str) -> Iterator[None]:
    state, of_arrays = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(random.getrandbits(32))
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(of_arrays)


_STRATEGIES: Mapping[str | None, FewshotStrategy] = {
    None: "balanced",
    "balanced": "balanced",
    "random": "random",
    "random_sampling": "random",
    "random_sampling_from_train": "random",
    "sequential": "first",
}


@dataclass
class LightevalTaskConfig:
    """A benchmark as lighteval 0.13 describes one: evals.yaml says `task: path/to/file.py:<variable>`, or gives the `name` of an element
    of the file's `TASKS_TABLE`.

    The seed is the eval's own. Some fields are accepted but not used: `solver`, `scorer`, `sample_fields`, `sample_to_fewshot` and
    `filter`, which are for another engine; `original_num_docs` and `effective_num_docs`, which lighteval sets itself; `version`, since the
    code's own version counts; `suite`, from older versions of lighteval.
    """

    name: str
    prompt_function: DocFunction
    """Takes a row and the task's name; gives a `Doc`, several, or None."""
    hf_repo: str
    """Hub id or folder, as `BaseTask.DATASET_PATH`."""
    hf_subset: str | None
    """The dataset's configuration."""
    metrics: Sequence[Metric | type[BaseMetric] | str]
    """Members of lighteval's `Metrics` or their names, metrics of the file's own, or metric classes of this project."""
    solver: Any = None
    scorer: Any = None
    sample_fields: Any = None
    sample_to_fewshot: Any = None
    filter: Any = None
    hf_revision: str | None = None
    """Full commit hash of the dataset."""
    hf_filter: Callable[[Row], bool] | None = None
    """Rows for which it is false are left out."""
    hf_avail_splits: Sequence[str] = ("train", "validation", "test")
    evaluation_splits: Sequence[str] = ("validation",)
    """Several are read one after the other."""
    few_shots_split: str | None = None
    """Default: the first available split that is not evaluated and whose name contains train, dev, valid or default."""
    few_shots_select: str | None = None
    """`balanced` (the default), `random`, `random_sampling`, `random_sampling_from_train` or `sequential`."""
    generation_size: int | None = None
    """Most tokens of a text, unless the `Doc` sets them; a number below 1 means without a limit."""
    generation_grammar: Any = None
    """The form of a text, unless the `Doc` sets it."""
    stop_sequence: Sequence[str] | None = None
    """End a text, unless the `Doc` sets them."""
    num_samples: Sequence[int] | int | None = None
    """Texts for each prompt: the largest of these numbers and of the numbers that the metrics need."""
    original_num_docs: int = -1
    effective_num_docs: int = -1
    must_remove_duplicate_docs: bool = False
    num_fewshots: int = 0
    """Examples before each question, unless the eval says otherwise."""
    version: int | str = 0
    suite: Any = None

    def task_class(self, class_name: str, module: str, metrics: type[Metrics] = Metrics) -> "type[LightevalTask]":
        """The task that this describes.

        Args:
            class_name: The name of the class.
            module: The module of the file that it was found in.
            metrics: `Metrics` as the file left it, for metrics by name.

        Raises:
            TaskDefinitionError: Something in it is wrong or cannot be done here.
        """
        if problems := self._problems():
            raise TaskDefinitionError(f"the LightevalTaskConfig {self.name!r} {'; it '.join(problems)}")
        with_task_name(self.prompt_function)  # refused here rather than at the first row
        known = [known_metric(metric, self.name, metrics) for metric in self.metrics]
        docs = DocMaker(name=self.name, function=self.prompt_function, filter=self.hf_filter)
        attributes: dict[str, object] = {
            "DOCS": docs,
            "NAME": self.name,
            "DATASET_PATH": self.hf_repo,
            "DATASET_REVISION": self.hf_revision,
            "SAMPLE_SPLIT": "+".join(self.evaluation_splits),
            "FEWSHOT_SPLIT": self.few_shots_split or self._default_fewshot_split(),
            "NUM_FEWSHOT": self.num_fewshots,
            "FEWSHOT_STRATEGY": _STRATEGIES[self.few_shots_select],
            "SUBJECTS": [self.hf_subset or "default"],
            "METRICS": _metric_classes(known, docs, module),
            "STOP_SEQUENCES": tuple(self.stop_sequence or ()),
            "NUM_SAMPLES": self._num_samples(known),
            "GENERATION_GRAMMAR": self.generation_grammar,
            "__module__": module,
            "__qualname__": class_name,
            "MAX_TOKENS": self.generation_size if self.generation_size and self.generation_size > 0 else None,
            "__doc__": self.prompt_function.__doc__,
        }
        return type(class_name, (LightevalTask,), attributes)

    def _problems(self) -> list[str]:
        problems = []
        if not self.evaluation_splits or isinstance(self.evaluation_splits, str):
            problems.append(f"has the evaluation_splits {self.evaluation_splits!r}; expected a list of one split at least")
        if not self.metrics:
            problems.append("has no metrics; name one at least, since an eval shows its metrics: metrics=[Metrics.exact_match]")
        if self.few_shots_select not in _STRATEGIES:
            known = ", ".join(name for name in _STRATEGIES if name)
            problems.append(f"has the few_shots_select {self.few_shots_select!r}; expected one of: {known}")
        if self.must_remove_duplicate_docs:
            problems.append("has must_remove_duplicate_docs, which is not supported; remove the rows by hf_filter")
        return problems

    def _default_fewshot_split(self) -> str | None:
        others = [split for split in self.hf_avail_splits if split not in self.evaluation_splits]
        found = (split for word in ("train", "dev", "valid", "default") for split in others if word in split)
        return next(found, "+".join(self.evaluation_splits))

    def _num_samples(self, known: Sequence[Metric | type[BaseMetric]]) -> int:
        own = [self.num_samples] if isinstance(self.num_samples, int) else self.num_samples or []
        functions = [metric.sample_level_fn for metric in known if isinstance(metric, Metric)]
        return max([1, *own, *(int(function.num_samples()) for function in functions if hasattr(function, "num_samples"))])


def _metric_classes(known: Sequence[Metric | type[BaseMetric]], docs: DocMaker, module: str) -> list[type[BaseMetric]]:
    """A class for each name of a value. If several metrics have one name, the last counts, as in lighteval."""
    made = [metric_classes(metric, docs.docs_of, module) if isinstance(metric, Metric) else [metric] for metric in known]
    return list({each.NAME: each for classes in made for each in classes}.values())
