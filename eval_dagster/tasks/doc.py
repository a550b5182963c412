"""`Doc` is one item of a benchmark, with the names of Hugging Face lighteval. A function from a row to a `Doc` is a benchmark."""

import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from inspect import signature
from typing import Any, ClassVar, TypeAlias

from eval_dagster.errors import DataError, TaskDefinitionError
from eval_dagster.metrics.base import BaseMetric, PerplexityMetric, response_kind
from eval_dagster.records import Completion, Grammar, Loglikelihood, Message, MetricContext, ResponseType, Role, Row, TaskSample
from eval_dagster.tasks.base import BaseTask, FewshotStrategy, join_cue
from eval_dagster.tasks.samples import place_of, png_of, row_name


class SamplingMethod(StrEnum):
    """The kind of answer to a `Doc`."""

    GENERATIVE = "GENERATIVE"
    """Text."""
    LOGPROBS = "LOGPROBS"
    """The log-probability of each choice."""
    PERPLEXITY = "PERPLEXITY"
    """The log-probability of every token of the query."""


@dataclass
class Doc:
    """One item of a benchmark, made from a dataset row. It is mutable, because lighteval's tasks change it before they return it.

    Raises:
        DataError: A field is of the wrong type, or `gold_index` is not a position of `choices`.
    """

    query: str
    """The question as the user asks it."""
    choices: list[str]
    """The possible answers. For a generated text they are empty, or the reference answers."""
    gold_index: int | list[int]
    """Position of the correct choice, or of each of several; not used without choices."""
    instruction: str | None = None
    """The beginning of the first user turn, before all examples, followed by a blank line. As in lighteval, it is not a system message."""
    images: list[Any] | None = None
    """PIL images that belong to the query."""
    specific: dict[str, Any] | None = None
    """Values that a metric needs beside the gold answer; of JSON types."""
    unconditioned_query: str | None = None
    """A query without the question. The pointwise mutual information of a choice is
    log P(choice | query) - log P(choice | unconditioned query)."""
    original_query: str | None = None
    """The query before any preprocessing."""
    id: str = ""
    """The item's own name, shown as `sample_name` and kept in `given_id`. The pipeline then sets the id of the sample here."""
    task_name: str = ""
    """Set by the pipeline: the task's name."""
    fewshot_samples: list["Doc"] = field(default_factory=list)
    """The examples before the query. If empty, the eval draws them."""
    sampling_methods: list[SamplingMethod] = field(default_factory=list)
    """The kinds of answers. Default: the kinds that the task's metrics need."""
    fewshot_sorting_class: str | None = None
    """Class by which balanced few-shot examples are drawn. Default: the gold answer."""
    generation_size: int | None = None
    """Most tokens to generate."""
    stop_sequences: list[str] | None = None
    """End a generated text; not part of it."""
    use_logits: bool = False
    """Whether the logit of every output token is kept."""
    num_samples: int = 1
    """Texts to generate; more than one needs a temperature above 0."""
    generation_grammar: Any = None
    """The form of a generated text: `{"type": "json", "value": <schema>}` or `{"type": "regex", "value": <expression>}`."""
    given_id: str = ""
    """Set by the pipeline: the `id` that the task gave."""

    def __post_init__(self) -> None:
        if not isinstance(self.query, str) or not all(isinstance(choice, str) for choice in self.choices):
            raise DataError(f"a Doc has the query {self.query!r} and the choices {self.choices!r}; expected a text and a list of texts")
        for index in self.gold_indices if self.choices else ():
            if not isinstance(index, int) or not 0 <= index < len(self.choices):
                raise DataError(
                    f"a Doc has the gold_index {self.gold_index!r}; expected positions of its {len(self.choices)} choices, from 0"
                )
        if self.num_samples < 1:
            raise DataError(f"a Doc has num_samples {self.num_samples}; expected 1 at least")
        self.sampling_methods = [SamplingMethod(method) for method in self.sampling_methods]

    @property
    def gold_indices(self) -> list[int]:
        """`gold_index` as a list."""
        return list(self.gold_index) if isinstance(self.gold_index, Sequence) else [self.gold_index]

    def get_golds(self, gold_index: int | list[int] | None = None) -> list[str]:
        """The correct answers' texts; empty without choices.

        Args:
            gold_index: Other positions than the Doc's own.
        """
        indices = self.gold_indices if gold_index is None else [gold_index] if isinstance(gold_index, int) else gold_index
        return [self.choices[index] for index in indices] if self.choices else []


def grammar_of(given: Any) -> Grammar | None:
    """The grammar that a Doc or a task names.

    Args:
        given: None, a `Grammar`, a mapping with `type` (`json` or `regex`) and `value`, or an object with these attributes.

    Raises:
        DataError: It is something else.
    """
    if given is None or isinstance(given, Grammar):
        return given
    kind, value = (given.get(name) if isinstance(given, Mapping) else getattr(given, name, None) for name in ("type", "value"))
    kind = str(getattr(kind, "value", kind))
    if kind in ("json", "json_schema") and isinstance(value, str | Mapping):
        return Grammar(kind="json_schema", value=value if isinstance(value, str) else json.dumps(value, sort_keys=True))
    if kind == "regex" and isinstance(value, str):
        return Grammar(kind="regex", value=value)
    raise DataError(
        f"the generation grammar {given!r} is not understood; expected {{'type': 'json', 'value': <schema>}} or "
        "{'type': 'regex', 'value': <expression>}"
    )


Docs: TypeAlias = Doc | list[Doc] | None
DocFunction: TypeAlias = Callable[..., Docs]
"""Takes a row, or a row and the task's name; returns a `Doc`, several, or None to leave the row out."""

_NOTHING = Doc(query="", choices=[], gold_index=[])
"""The `Doc` of a row that is left out."""
_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
_RESPONSE_TYPES = {
    SamplingMethod.GENERATIVE: ResponseType.COMPLETION,
    SamplingMethod.LOGPROBS: ResponseType.LOGLIKELIHOODS,
    SamplingMethod.PERPLEXITY: ResponseType.PERPLEXITY,
}


class DocTask(BaseTask[str]):
    """A benchmark whose rows become `Doc`s. A subclass overrides `doc`, and sets the attributes that name the dataset and its splits.

    If a `Doc` has no `sampling_methods`, they follow from `METRICS`: text for a completion metric, the log-probabilities of the choices for
    a log-likelihood metric, and the log-probabilities of the query's own tokens if all log-likelihood metrics are perplexity metrics. A
    perplexity metric scores the queries alone if any row asks for their perplexity, else the correct choices. `RESPONSE_TYPE` is the
    response type of the first metric. Each metric scores the answers of its kind.
    """

    GENERATION_GRAMMAR: ClassVar[Any] = None
    """The form of a text, for a `Doc` without one."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Take the response type from the metrics."""
        super().__init_subclass__(**arguments)
        if "METRICS" in vars(cls) and "RESPONSE_TYPE" not in vars(cls):
            cls.RESPONSE_TYPE = _RESPONSE_TYPES[next(iter(wanted_methods(cls.METRICS)), SamplingMethod.GENERATIVE)]

    def doc(self, row: Row) -> Docs:
        """The questions about a row: one `Doc`, several, or None to leave the row out."""
        raise NotImplementedError

    def docs(self, row: Row) -> list[Doc]:
        """The result of `doc` as a list, with `id` and `task_name` set.

        Raises:
            DataError: It has another type.
        """
        made = self.doc(row)
        docs = [] if made is None else [made] if isinstance(made, Doc) else made
        if not isinstance(docs, list) or not all(isinstance(each, Doc) for each in docs):
            raise DataError(
                f"task {self.NAME} made {made!r} of a row; expected a Doc, a list of Docs or None (from eval_dagster import Doc)"
            )
        name = row_name(row)
        return [
            replace(doc, id=f"{name}.{index}" if index else name, given_id=str(doc.id), task_name=self.NAME)
            for index, doc in enumerate(docs)
        ]

    def is_example(self, item: Row) -> bool:
        """Whether a row can be an example: its `Doc` has an answer."""
        return bool(self._doc_of(item).get_golds())

    def _doc_of(self, item: Row) -> Doc:
        """The `Doc` of a row for a hook: the first of several, unless the row names another."""
        return item.doc if isinstance(item, _DocRow) else next(iter(self.docs(item)), _NOTHING)

    # ---- the hooks of BaseTask, answered by the Doc

    def _get_fewshot_class(self, item: Row) -> str:
        return self._doc_of(item).fewshot_sorting_class or self._get_fewshot_target_text(item)

    def _get_initial_prompt_text(self, item: Row) -> str:
        return self._doc_of(item).instruction or ""

    def _get_instruction_text(self, item: Row) -> str:
        return _question(self._doc_of(item))

    def _get_ground_truth(self, item: Row) -> list[str] | None:
        return self._doc_of(item).get_golds() or None

    def _get_possible_completions(self, item: Row) -> list[str] | None:
        return self._doc_of(item).choices

    def _get_fewshot_target_text(self, item: Row) -> str:
        return next(iter(self._doc_of(item).get_golds()), "")

    def _get_context(self, item: Row) -> MetricContext | None:
        doc = self._doc_of(item)
        fields = {**(doc.specific or {}), **({} if doc.original_query is None else {"original_query": doc.original_query})}
        return MetricContext(**fields) if fields else None

    def _get_unconditioned_query(self, item: Row) -> str | None:
        return self._doc_of(item).unconditioned_query

    def _get_example_messages(self, item: Row) -> list[Message]:
        """The turns of the examples: the `Doc`'s own examples if it has some, else the drawn ones."""
        messages: list[Message] = []
        for example in self._in_turn(self._examples(item)):
            doc = self._doc_of(example)
            if not doc.get_golds() or doc.images:
                raise DataError(
                    f"task {self.NAME} made {doc!r} of a few-shot example; expected a Doc with choices and gold_index, and without "
                    "images: only the question itself may have some"
                )
            answer = join_cue(self._get_cue_text(example), self._get_fewshot_target_text(example))
            messages += [*self._get_instruction_messages(example), Message(Role.ASSISTANT, answer)]
        return messages

    def _examples(self, item: Row) -> Sequence[Row]:
        doc = self._doc_of(item)
        if not doc.fewshot_samples:
            return [_DocRow(each, self._doc_of(each)) for each in self._in_turn(self.fewshot_examples(item))]
        own = [each for each in doc.fewshot_samples if _question(each) != _question(doc)]
        self.examples_used[:] = [_DocRow({"query": each.query, "choices": each.choices}, each) for each in own]
        return list(self.examples_used)

    # ---- assembly

    def _create_samples(self, item: Row, index: int, subject: str) -> list[TaskSample]:
        """Make one sample for each sampling method of each `Doc`."""
        return [
            self._sample(_DocRow(item, doc), doc, method, index, subject)
            for doc in self.docs(item)
            for method in dict.fromkeys(doc.sampling_methods) or wanted_methods(self.METRICS)
        ]

    def _sample(self, item: "_DocRow", doc: Doc, method: SamplingMethod, index: int, subject: str) -> TaskSample:
        is_perplexity, is_scored = method is SamplingMethod.PERPLEXITY, method is SamplingMethod.LOGPROBS
        return TaskSample(
            id=index,
            subject=subject,
            row=item.row,
            response_type=_RESPONSE_TYPES[method],
            messages=[Message(Role.USER, doc.query)] if is_perplexity else self._get_messages(item),
            ground_truth=None if is_perplexity else self._get_ground_truth(item),
            possible_completions=self._get_possible_completions(item) if is_scored else None,
            gold_indices=doc.gold_indices if is_scored else None,
            context=self._get_context(item),
            unconditioned_query=self._get_unconditioned_query(item) if is_scored else None,
            use_logits=doc.use_logits,
            images=[_png(image) for image in doc.images or ()],
            max_tokens=doc.generation_size,
            stop_sequences=doc.stop_sequences,
            num_samples=doc.num_samples if doc.num_samples > 1 else None,
            grammar=grammar_of(doc.generation_grammar or self.GENERATION_GRAMMAR),
            sample_name=doc.given_id or None,
        )


class _DocRow(Row):
    """A row with one of its `Doc`s. Its fields are read through the row, which raises an error for a null."""

    def __init__(self, row: Row, doc: Doc) -> None:
        super().__init__(row.items())
        self.row = row
        self.doc = doc
        self.place = place_of(row)

    def __getitem__(self, key: str) -> Any:
        return self.row[key]


def doc_task(
    *,
    dataset_path: str,
    sample_split: str,
    metrics: Sequence[type[BaseMetric]],
    fewshot_split: str | None = None,
    num_fewshot: int = 0,
    fewshot_strategy: FewshotStrategy = "random",
    subjects: Sequence[Any] = ("default",),
    subject_field: str | None = None,
    cluster_field: str | None = None,
    id_field: str | None = None,
    name: str | None = None,
    dataset_revision: str | None = None,
    headline_metric: type[BaseMetric] | None = None,
    generation_size: int | None = None,
    stop_sequences: Sequence[str] = (),
    generation_grammar: Any = None,
    num_samples: int = 1,
    language: Any = None,
    source: str = "",
    data_files: Sequence[str] = (),
    column_types: Mapping[str, type] | None = None,
    load_rows: Callable[[Any], Mapping[str, Sequence[Row]]] | None = None,
) -> Callable[[DocFunction], type[DocTask]]:
    """Turn a function from a row to a `Doc` into a task, for `task: path/to/file.py:quiz` in evals.yaml.

    Args:
        dataset_path: Hub id or folder, as `BaseTask.DATASET_PATH`.
        sample_split: The split that is evaluated.
        metrics: The metrics; the first is the headline.
        fewshot_split: The split that few-shot examples are drawn from.
        num_fewshot: The task's own number of examples, as `BaseTask.NUM_FEWSHOT`.
        fewshot_strategy: How examples are drawn, for evals that do not set it.
        subjects: The dataset's configurations, or the values of `subject_field`.
        subject_field: Field of the row that names its subject, as `BaseTask.SUBJECT_FIELD`.
        cluster_field: Field of the row by which samples belong together, as `BaseTask.CLUSTER_FIELD`.
        id_field: Field of the row that names it for people, as `BaseTask.ID_FIELD`.
        name: Shown to people; by default the function's name.
        dataset_revision: Full commit hash of the dataset.
        headline_metric: One of `metrics`.
        generation_size: Most tokens of a text, for a `Doc` without a number, as `BaseTask.MAX_TOKENS`.
        stop_sequences: End a text, for a `Doc` without any.
        generation_grammar: The form of a text, for a `Doc` without one.
        num_samples: Texts for each prompt, if neither `Doc` nor eval sets it.
        language: Language of the rows, if they share one.
        source: Licence and origin of the rows.
        data_files: Files that `load_rows` reads, as `BaseTask.DATA_FILES`.
        column_types: Types of columns of CSV files, as `BaseTask.COLUMN_TYPES`.
        load_rows: Returns split -> rows of one subject, if the rows are not in a dataset. `dataset_path` is then any word.

    Raises:
        TaskDefinitionError: Both `load_rows` and `subject_field` are given.
    """
    if load_rows is not None and subject_field is not None:
        raise TaskDefinitionError(
            f"found load_rows and subject_field={subject_field!r}; expected one of them: load_rows gets a subject, and returns its rows"
        )

    def decorate(function: DocFunction) -> type[DocTask]:
        make = with_task_name(function)

        def doc(self: DocTask, row: Row) -> Docs:
            return make(row, self.NAME)

        attributes = {
            "doc": doc,
            "NAME": name or function.__name__,
            "DATASET_PATH": dataset_path,
            "DATASET_REVISION": dataset_revision,
            "DATA_FILES": data_files,
            "SAMPLE_SPLIT": sample_split,
            "FEWSHOT_SPLIT": fewshot_split,
            "NUM_FEWSHOT": num_fewshot,
            "FEWSHOT_STRATEGY": fewshot_strategy,
            "SUBJECTS": subjects,
            "CLUSTER_FIELD": cluster_field,
            "ID_FIELD": id_field,
            "METRICS": metrics,
            "HEADLINE_METRIC": headline_metric,
            "MAX_TOKENS": generation_size,
            "STOP_SEQUENCES": stop_sequences,
            "GENERATION_GRAMMAR": generation_grammar,
            "NUM_SAMPLES": num_samples,
            "LANGUAGE": language,
            "SOURCE": source,
            "__doc__": function.__doc__,
            "__module__": function.__module__,
            "__qualname__": function.__qualname__,
        }
        if subject_field is not None:
            attributes["SUBJECT_FIELD"] = subject_field
        if column_types is not None:
            attributes["COLUMN_TYPES"] = column_types
        if load_rows is not None:
            attributes["_load_dataset"] = lambda _, subject: load_rows(subject)
        return type(function.__name__, (DocTask,), attributes)

    return decorate


def with_task_name(function: DocFunction) -> Callable[[Row, str], Docs]:
    """The function as one that takes a row and the task's name.

    Raises:
        TaskDefinitionError: It takes neither a row, nor a row and the task's name.
    """
    for takes_name in (True, False):
        try:
            signature(function).bind(*(["row", "name"] if takes_name else ["row"]))
        except TypeError:
            continue
        return function if takes_name else lambda row, _: function(row)
    raise TaskDefinitionError(
        f"{getattr(function, '__name__', function)}{signature(function)} cannot make a Doc; expected it to take a row, or a row and the "
        "task's name: def quiz(row, task_name): return Doc(...)"
    )


def wanted_methods(metrics: object) -> list[SamplingMethod]:
    """The kinds of answers that the metrics need, in their order. Other objects than metrics are ignored.

    Perplexity comes last if the log-probabilities of choices are needed too.
    """
    classes = [metric for metric in metrics if isinstance(metric, type)] if isinstance(metrics, Iterable) else []
    kinds = {metric: response_kind(metric) for metric in classes if issubclass(metric, BaseMetric)}
    of_texts = [metric for metric in kinds if issubclass(metric, PerplexityMetric)]
    needs_choices = any(kind is Loglikelihood and metric not in of_texts for metric, kind in kinds.items())
    scoring = SamplingMethod.LOGPROBS if needs_choices else SamplingMethod.PERPLEXITY
    methods = {Completion: SamplingMethod.GENERATIVE, Loglikelihood: scoring}
    wanted = [methods[kind] for kind in kinds.values() if kind is not None]
    wanted += [SamplingMethod.PERPLEXITY for metric in of_texts if not metric.SCORES_CHOICES]
    return list(dict.fromkeys(wanted))


def _question(doc: Doc) -> str:
    """The query without the instruction at its beginning, which some lighteval prompts repeat there."""
    if doc.instruction and doc.query.startswith(doc.instruction):
        return doc.query.removeprefix(doc.instruction).lstrip()
    return doc.query


def _png(image: Any) -> bytes:
    if isinstance(image, bytes) and image.startswith(_PNG_MAGIC):
        return image
    from PIL import Image, UnidentifiedImageError  # imported lazily: few tasks have images

    try:
        return png_of(Image.open(io.BytesIO(image)) if isinstance(image, bytes) else image)
    except (AttributeError, UnidentifiedImageError) as error:
        raise DataError(f"a Doc has an image of type {type(image).__name__}; expected a PIL image or the bytes of an image file") from error
