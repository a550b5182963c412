"""A benchmark whose worker reads, renders, scores and aggregates."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from eval_dagster.peers.processes.process import WorkerProcess
from eval_dagster.peers.processes.questions import answers_sent, failure_of, question_of, values_of
from eval_dagster.records import ResponseType, Row, TaskSample
from eval_dagster.tasks.benchmark import Answer, BenchmarkMetric, BenchmarkRows, DatasetSplit, Item, OpenSplit, RenderSettings
from eval_dagster.versions.hashes import code_version, stable_hash


class ProcessBenchmark:
    """A benchmark of a worker; `described` is what the worker's `describe` gave."""

    def __init__(self, name: str, described: Mapping[str, Any], process: WorkerProcess, code: Sequence[str]) -> None:
        """`code` are the dotted names of the worker's modules."""
        self.name = self._asked = name
        self.description = str(described.get("description", ""))
        self.subjects: Sequence[str] = list(described["subjects"])
        self.response_type = ResponseType(described["response_type"])
        self.num_fewshot = int(described.get("num_fewshot", 0))
        self.is_macro = bool(described.get("is_macro", False))
        self.metrics: Sequence[BenchmarkMetric] = [self._metric(each) for each in described["metrics"]]
        self._splits: Mapping[str, Mapping[str, Any]] = described.get("splits", {})
        self._process = process
        self._version = stable_hash([described["version"], code_version(*code, question_of, answers_sent, values_of)])

    def version(self) -> str:
        """Hash of what the worker gave as its version, and of the worker's code."""
        return self._version

    def splits(self, subject: str, *, fewshot: bool) -> Sequence[DatasetSplit]:
        """The splits that the worker named."""
        named = self._splits.get(subject, {})
        wanted = [*named.get("evaluated", ()), *(named.get("examples", ()) if fewshot else ())]
        return [DatasetSplit(**each) for number, each in enumerate(wanted) if each not in wanted[:number]]

    def read(self, subject: str, open_split: OpenSplit, *, fewshot: bool) -> BenchmarkRows:
        """The rows that the worker makes of the rows of the splits."""
        opened = [{"split": split.split, "rows": open_split(split)} for split in self.splits(subject, fewshot=fewshot)]
        made = self._process.call("rows", name=self._asked, subject=subject, splits=opened, fewshot=fewshot)
        return BenchmarkRows(evaluated=made["evaluated"], examples=made.get("examples", []))

    def render(self, subject: str, rows: BenchmarkRows, settings: RenderSettings) -> Iterator[Sequence[TaskSample] | BaseException]:
        """The worker's questions about each row, or what it raised. They come in batches."""
        how = {
            "num_fewshot": settings.num_fewshot,
            "seed": settings.seed,
            "examples_per_sample": settings.examples_per_sample,
            "format": settings.formatter.name,
        }
        given: dict[str, Any] = {"rows": list(rows.evaluated), "examples": list(rows.examples), "settings": how}
        for asked in self._process.stream("render", name=self._asked, subject=subject, **given):
            yield failure_of(asked) or [question_of(each, settings.formatter) for each in asked]

    def score(self, subject: str, rows: BenchmarkRows, row: Row, answers: Sequence[Answer]) -> Mapping[str, Item]:
        """The values of a row. Raises DataError if the worker failed on it."""
        found = self.score_all(subject, rows, [(row, answers)])[0]
        if isinstance(found, Exception):
            raise found
        return found

    def score_all(
        self,
        subject: str,
        rows: BenchmarkRows,  # noqa: ARG002 - the worker scores each row alone
        answered: Sequence[tuple[Row, Sequence[Answer]]],
    ) -> Sequence[Mapping[str, Item] | Exception]:
        """The values of several rows by one call."""
        several = [{"row": row, "answers": answers_sent(answers)} for row, answers in answered]
        found = self._process.each("score", {"name": self._asked, "subject": subject}, several)
        return [each if isinstance(each, Exception) else values_of(each) for each in found]

    def _metric(self, described: Mapping[str, Any]) -> BenchmarkMetric:
        name = str(described["name"])
        aggregate = None if described.get("is_mean", True) else partial(self._aggregate, name)
        return BenchmarkMetric(name=name, higher_is_better=bool(described.get("higher_is_better", True)), aggregate=aggregate)

    def _aggregate(self, metric: str, items: Sequence[Item]) -> float:
        return float(self._process.call("aggregate", name=self._asked, metric=metric, items=list(items)))
