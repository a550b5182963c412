# ruff: noqa: ARG002 - the benchmark has all rows
"""A task whose rows, prompts and scores are made by a `Benchmark`."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any, ClassVar

from eval_dagster.errors import DataError, RequirementError, WholeEvalError, described
from eval_dagster.metrics.base import BaseMetric
from eval_dagster.metrics.explanations import Explanation, explained
from eval_dagster.metrics.items import Item, ItemMetric
from eval_dagster.records import Completion, Row, Sample, TaskSample
from eval_dagster.tasks.base import BaseTask
from eval_dagster.tasks.benchmark import Answer, BatchBenchmark, Benchmark, BenchmarkMetric, BenchmarkRows, RenderSettings
from eval_dagster.tasks.samples import TaskRow
from eval_dagster.versions.hashes import stable_hash


@dataclass(frozen=True)
class ScoredRow:
    """The result of a benchmark for a row."""

    values: Mapping[str, Item] | Exception
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
