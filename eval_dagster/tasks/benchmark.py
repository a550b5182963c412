# ruff: noqa: ARG002 - an `AdapterTask` does not need the rows that its hooks get
"""Benchmarks that other code defines, and the tasks that are made of them: of a registry of another package, or of your own.

A registry is named by an entry point of the group `eval_dagster.registries`. Its benchmarks are tasks: evals.yaml says
`task: <name of the entry point>:<name of the benchmark>`.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

from eval_dagster.errors import DataError, RequirementError, TaskDefinitionError, WholeEvalError, described
from eval_dagster.metrics.base import BaseMetric, ItemMetric
from eval_dagster.metrics.base import Item as MetricItem
from eval_dagster.metrics.explanations import Explanation, explained
from eval_dagster.records import Completion, Loglikelihood, ModelResponse, ResponseType, Row, Sample, TaskSample
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.tasks.base import BaseTask, Formatter, SubjectType
from eval_dagster.tasks.samples import TaskRow
from eval_dagster.versions.hashes import stable_hash

Item: TypeAlias = Any
"""An input of an aggregated score: a number, or texts, lists, tuples, mappings by text and NumPy arrays of them."""


@dataclass(frozen=True, kw_only=True)
class DatasetSplit:
    """A split of a dataset."""

    path: str
    """Hub id or folder, as `BaseTask.DATASET_PATH`."""
    config: str | None
    """The dataset's configuration; null for a dataset that has only one."""
    split: str
    revision: str | None = None
    """Full commit hash."""
    files: tuple[str, ...] = ()
    """The files of the split in the folder or repository, unless the dataset names them."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """For these files: arguments of the reader of their kind in `datasets`, such as `column_names` of CSV."""


OpenSplit: TypeAlias = Callable[[DatasetSplit], list[Row]]
"""Reads the rows of a split."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkRows:
    """The rows of one subject, in the order in which they are asked."""

    evaluated: Sequence[Row]
    examples: Sequence[Row] = ()
    """The rows that few-shot examples are drawn from; empty without examples."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkMetric:
    """A metric and its aggregation."""

    name: str
    """Without a slash. The values of a row may have a part after it: `exact_match/strict`."""
    higher_is_better: bool = True
    aggregate: Callable[[Sequence[Item]], float] | None = None
    """Aggregates the items of the rows, in their order. Default: the mean."""
    bounds: tuple[float, float] | None = None
    """The least and the largest possible value, as `BaseMetric.BOUNDS`. Default: the usual bounds of metrics of this name."""


@dataclass(frozen=True, kw_only=True)
class RenderSettings:
    """How the rows of a subject are asked."""

    num_fewshot: int
    seed: int
    """The seed of the eval, 0 by default."""
    examples_per_sample: bool
    """Whether the examples of a row depend only on the row (`fewshot_sets: per_sample`), and not on the rows before it."""
    formatter: Formatter
    """Writes messages as the text that the model reads. Without a chat, its name is `plain`."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A model's answer to one question about a row."""

    prompt: str
    choices: Sequence[str] = ()
    loglikelihoods: Sequence[float] = ()
    """One for each choice, natural logarithm; for a perplexity, one for the whole text."""
    is_greedy: Sequence[bool] = ()
    """For each choice, whether each of its tokens is the most probable one."""
    texts: Sequence[str] = ()
    """Generated texts without their reasoning."""
    tokens: Sequence[Sequence[int]] = ()
    """The ids of the tokens of each choice or text, if the backend returns them."""
    context: Mapping[str, Any] = field(default_factory=dict)
    """The fields of the question's `context`."""


@dataclass(frozen=True)
class ScoreError:
    """Stands for a missing value of a metric for a row."""

    reason: str
    retryable: bool = False
    """Whether the next run may find a value, since a package or a download was missing."""


class Benchmark(Protocol):
    """A benchmark that other code defines: it reads its rows, writes its prompts, scores its answers and aggregates its scores.

    All of it must depend only on `version` and the arguments, since results are cached by these.
    """

    name: str
    """Shown to people."""
    description: str
    """A sentence or a paragraph; may be empty."""
    subjects: Sequence[str]
    response_type: ResponseType
    """The response type of its questions; a question may set another one."""
    metrics: Sequence[BenchmarkMetric]
    """The first is the headline. A value under a name that is not listed is averaged."""
    num_fewshot: int
    """Its own number of examples."""
    is_macro: bool
    """Whether the headline of several subjects is the mean of their values, rather than the value of all rows."""

    def version(self) -> str:
        """Hash of everything that decides rows, prompts and scores, except the rows of the datasets."""
        ...

    def splits(self, subject: str, *, fewshot: bool) -> Sequence[DatasetSplit]:
        """The splits that `read` opens; empty if it makes the rows itself. `fewshot` is whether there are few-shot examples."""
        ...

    def read(self, subject: str, open_split: OpenSplit, *, fewshot: bool) -> BenchmarkRows:
        """The rows of a subject, of types that JSON has."""
        ...

    def render(self, subject: str, rows: BenchmarkRows, settings: RenderSettings) -> Iterator[Sequence[TaskSample] | BaseException]:
        """Yield the questions about each evaluated row, in order. Only as many rows are rendered as are asked.

        An exception instead of the questions is the error of this row. If the method raises, the eval fails.

        A question has a `prompt`, which is sent as it is, or `messages`.
        """
        ...

    def score(self, subject: str, rows: BenchmarkRows, row: Row, answers: Sequence[Answer]) -> Mapping[str, Item]:
        """The values of a row by metric, from the answers to all questions about it, in their order.

        A value may be a `ScoreError`. If the method raises, the row has an error under every metric.
        """
        ...


@runtime_checkable
class BatchBenchmark(Benchmark, Protocol):
    """A benchmark that scores many rows by one call, for instance by one call of another process."""

    def score_all(
        self, subject: str, rows: BenchmarkRows, answered: Sequence[tuple[Row, Sequence[Answer]]]
    ) -> Sequence[Mapping[str, Item] | Exception]:
        """As `score`, for several rows. If scoring a row failed, its values are the exception."""
        ...


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A name in the list of a registry."""

    kind: str
    """`task`, `group` or the registry's own word."""
    detail: str = ""


class Registry(Protocol):
    """Benchmarks by name. Its class is called without arguments."""

    def names(self) -> Mapping[str, Listed]:
        """All names."""
        ...

    def benchmark(self, name: str, folder: Path) -> Benchmark | type[BaseTask[Any]]:
        """The benchmark of a name, or a task class where a benchmark has not all that is needed, such as episodes.

        Args:
            name: The part after the registry's name and a colon.
            folder: The folder of evals.yaml, which paths are relative to.

        Raises:
            TaskDefinitionError: There is none, or it cannot be evaluated here. The message gives the reason.
        """
        ...

    def suite(self, name: str, folder: Path) -> Mapping[str, Mapping[str, Any]]:
        """The evals of a group whose benchmarks have no value in common: their settings, as in evals.yaml, by name.

        Raises:
            TaskDefinitionError: The group does not exist.
        """
        ...


@runtime_checkable
class EnvironmentRegistry(Registry, Protocol):
    """A registry whose package may live in an environment of its own."""

    def within(self, python: Path | None) -> Registry:
        """The registry with the interpreter that evals.yaml names under `environments`; None if it names none."""
        ...


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


@dataclass(frozen=True)
class ScoredRow:
    """The result of a benchmark for a row."""

    values: Mapping[str, MetricItem] | Exception
    """The values by metric, or the exception that was raised."""
    words: Mapping[str | None, Explanation] = field(default_factory=dict)
    """Explanations of the values, by their names."""


class AdapterTask(BaseTask[str]):
    """A task whose rows, prompts and scores are made by a `Benchmark`; `adapter_task` makes its class."""

    BENCHMARK: ClassVar[Benchmark]
    SAMPLE_SPLIT = "evaluated"
    FEWSHOT_SPLIT = "examples"

    def __init__(self, num_fewshot: int | None = None) -> None:
        super().__init__(num_fewshot)
        self._rows: dict[str, BenchmarkRows] = {}
        self._settings: RenderSettings | None = None
        self._asked: dict[str, tuple[int, Iterator[Sequence[TaskSample] | BaseException]]] = {}

    def prepare(self, samples: Sequence[Sample], settings: RenderSettings | None = None) -> None:
        """Take all rows of the eval before the first is asked or scored. Asking needs the settings."""
        rows: dict[str, dict[str, list[Row]]] = defaultdict(lambda: {self.SAMPLE_SPLIT: [], self.FEWSHOT_SPLIT: []})
        for sample in samples:
            rows[sample.subject][sample.split].append(plain_row(sample))
        self._rows = {
            subject: BenchmarkRows(evaluated=splits[self.SAMPLE_SPLIT], examples=splits[self.FEWSHOT_SPLIT])
            for subject, splits in rows.items()
        }
        self._settings = settings
        self._asked = {}

    def score_rows(self, answered: Sequence[tuple[Sample, Sequence[Answer]]]) -> Sequence[ScoredRow]:
        """The values of several rows, each from the answers to all questions about it.

        Raises:
            RequirementError: The benchmark lacks a package or a program.
        """
        found: list[ScoredRow] = []
        for subject, group in groupby(answered, key=lambda pair: pair[0].subject):
            rows, several = self._rows[subject], [(plain_row(sample), answers) for sample, answers in group]
            try:
                if isinstance(self.BENCHMARK, BatchBenchmark):
                    found += [ScoredRow(values) for values in self.BENCHMARK.score_all(subject, rows, several)]
                else:
                    found += [self._score(subject, rows, row, answers) for row, answers in several]
            except RequirementError:
                raise
            except Exception as problem:  # the whole batch failed: a process ended, for instance
                found += [ScoredRow(problem)] * len(several)
        return found

    def _score(self, subject: str, rows: BenchmarkRows, row: Row, answers: Sequence[Answer]) -> ScoredRow:
        with explained() as words:
            try:
                return ScoredRow(self.BENCHMARK.score(subject, rows, row, answers), words)
            except RequirementError:
                raise
            except Exception as problem:  # code of the benchmark: it may fail for one row
                return ScoredRow(problem, words)

    def _get_instruction_text(self, item: Row) -> str:
        return ""

    def _get_ground_truth(self, item: Row) -> None:
        return None

    def _get_possible_completions(self, item: Row) -> None:
        return None

    def _create_samples(self, item: Row, index: int, subject: str) -> list[TaskSample]:
        """The questions about a row. The benchmark renders the rows in their order, since its examples may depend on earlier rows."""
        start, rendered = self._asked.get(subject, (0, None))
        if rendered is None or start > index:
            if self._settings is None:
                raise RuntimeError(f"task {self.NAME} is not prepared; it is rendered by an eval")
            start, rendered = 0, iter(self.BENCHMARK.render(subject, self._rows[subject], self._settings))
        try:
            made = next(islice(rendered, index - start, None))
        except (Exception, SystemExit) as error:  # its later rows may depend on this one
            raise WholeEvalError(str(error) if isinstance(error, DataError) else f"the task raised {described(error)}") from error
        self._asked[subject] = (index + 1, rendered)
        if isinstance(made, BaseException):
            raise made
        return list(made)


class _Mean(BaseMetric[Completion]):
    """A metric of a benchmark: the mean of the rows' values."""

    IS_PROPORTION = True
    BEST = None


class _OfItems(ItemMetric[Completion]):
    """A metric of a benchmark that is computed from the items of all rows."""

    BEST = None


def adapter_task(benchmark: Benchmark) -> type[AdapterTask]:
    """The task class of a benchmark."""
    version = benchmark.version()
    path = next((split.path for subject in benchmark.subjects for split in benchmark.splits(subject, fewshot=False)), benchmark.name)
    attributes: dict[str, Any] = {
        "BENCHMARK": benchmark,
        "NAME": benchmark.name,
        "VERSION": version,
        "DATASET_PATH": path,
        "NUM_FEWSHOT": benchmark.num_fewshot,
        "SUBJECTS": list(benchmark.subjects),
        "RESPONSE_TYPE": benchmark.response_type,
        "METRICS": [metric_class(metric, version) for metric in benchmark.metrics],
        "HEADLINE_AGGREGATION": "macro" if benchmark.is_macro else "micro",
        "__module__": AdapterTask.__module__,
        "__qualname__": AdapterTask.__qualname__,
        "__doc__": benchmark.description,
    }
    return type(AdapterTask.__name__, (AdapterTask,), attributes)


_SHARES = (
    *("acc", "acc_bytes", "acc_mutual_info", "acc_norm", "em", "exact_match", "f1", "mc1", "mc2", "truthfulqa_mc1", "truthfulqa_mc2"),
    *("F1", "F1 SQuAD Normalized", "Drop F1", "ROUGE-1", "ROUGE-2", "ROUGE-L", "ROUGE-Geometric-Mean"),
    *("Confidence-weighted Accuracy", "Probability Mass", "Probability Mass Normalized"),
)
"""Names of metrics of other packages whose values lie between 0 and 1."""
_BALANCED = ("Ternary Score", "Distributional Correctness Score")
"""Names of metrics whose values lie between -1 and 1."""
_OF_SEVERAL = ("avg@", "g-pass@", "maj@", "pass@")
"""Beginnings of the names of metrics of several texts, whose values lie between 0 and 1."""


def _usual_bounds(name: str) -> tuple[float, float]:
    """The usual bounds of metrics of a name. They do not count if values lie outside."""
    if name in _BALANCED:
        return -1.0, 1.0
    return (0.0, 1.0) if name in _SHARES or name.startswith(_OF_SEVERAL) else (-math.inf, math.inf)


def metric_class(metric: BenchmarkMetric, version: str) -> type[BaseMetric[Any]]:
    """A metric of a benchmark as a class; `version` is the benchmark's."""
    base: type[BaseMetric[Any]] = _Mean if metric.aggregate is None else _OfItems
    attributes: dict[str, Any] = {
        "NAME": metric.name,
        "HIGHER_IS_BETTER": metric.higher_is_better,
        "BOUNDS": metric.bounds or _usual_bounds(metric.name),
        "VERSION": version,
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
    }
    if metric.aggregate is not None:
        attributes["aggregate"] = staticmethod(metric.aggregate)
    return type(base.__name__, (base,), attributes)


def plain_row(sample: Sample) -> Row:
    """A row as the benchmark read it: nulls are None. The `subject` that the lake adds to each row is left out unless it is its own."""
    row = dict(TaskRow(sample).items())
    own = {key: value for key, value in sample.row.items() if key != "subject"}
    if sample.row.get("subject") == sample.subject and stable_hash(own) == sample.content_id:
        del row["subject"]
    return row
