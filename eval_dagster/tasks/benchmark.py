"""The protocol of benchmarks that other code defines: a registry of another package, or one of your own.

A registry is named by an entry point of the group `eval_dagster.registries`. Its benchmarks are tasks: evals.yaml says
`task: <name of the entry point>:<name of the benchmark>`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from eval_dagster.records import ResponseType, Row, TaskSample
from eval_dagster.tasks.formatter import Formatter

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

    def benchmark(self, name: str, folder: Path) -> Benchmark:
        """The benchmark of a name.

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
