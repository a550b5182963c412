"""A benchmark whose worker reads, renders, scores and aggregates, and the questions and answers that are sent between both processes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from eval_dagster.errors import DataError, TaskDefinitionError
from eval_dagster.peers.processes.process import WorkerProcess
from eval_dagster.peers.workers.messages import AnswerSent, Described, QuestionSent, RowsMade, SettingsSent, SplitRows
from eval_dagster.records import Message, ResponseType, Role, Row, TaskSample
from eval_dagster.tasks.base import Formatter
from eval_dagster.tasks.benchmark import Answer, BenchmarkMetric, BenchmarkRows, DatasetSplit, Item, OpenSplit, RenderSettings, ScoreError
from eval_dagster.versions.hashes import code_version, stable_hash

_ERROR = "$error"
_RETRYABLE = "$retryable"


def question_of(sent: QuestionSent, formatter: Formatter) -> TaskSample:
    """A question of a worker. If it has messages but no prompt, the formatter writes the prompt. Choices are sent as they are."""
    messages = [Message(Role(role), content) for role, content in sent.get("messages") or ()]
    prompt = sent.get("prompt")
    if prompt is None:
        prompt = formatter.format(messages)
    return TaskSample(
        messages=messages or [Message(Role.USER, prompt)],
        prompt=prompt,
        response_type=ResponseType(sent["response_type"]) if sent.get("response_type") else None,
        possible_completions=sent.get("choices"),
        gold_indices=sent.get("gold_indices"),
        ground_truth=sent.get("ground_truth"),
        context=sent.get("context") or {},
        max_tokens=sent.get("max_tokens"),
        stop_sequences=sent.get("stop_sequences"),
        num_samples=sent.get("num_samples"),
        temperature=sent.get("temperature"),
        top_k=sent.get("top_k"),
        top_p=sent.get("top_p"),
    )


def failure_of(sent: object) -> DataError | None:
    """The error that a worker sent in the place of the questions about a row, `{"$error": reason}`; None for questions."""
    return DataError(str(sent[_ERROR])) if isinstance(sent, Mapping) else None


def answers_sent(answers: Sequence[Answer]) -> list[AnswerSent]:
    """Answers as a worker gets them."""
    return [
        {
            "prompt": answer.prompt,
            "choices": list(answer.choices),
            "loglikelihoods": list(answer.loglikelihoods),
            "is_greedy": list(answer.is_greedy),
            "texts": list(answer.texts),
            "tokens": [list(tokens) for tokens in answer.tokens],
            "context": dict(answer.context),
        }
        for answer in answers
    ]


def values_of(sent: Mapping[str, Item]) -> dict[str, Item]:
    """The values of a row. `{"$error": reason}` is a metric without a value; with `"$retryable": true` the next run may have it."""
    return {
        name: ScoreError(str(value[_ERROR]), bool(value.get(_RETRYABLE))) if isinstance(value, Mapping) and _ERROR in value else value
        for name, value in sent.items()
    }


class ProcessBenchmark:
    """A benchmark of a worker; `described` is what the worker's `describe` gave."""

    def __init__(
        self, asked: str, described: Described, process: WorkerProcess, code: Sequence[str], functions: Iterable[Callable[..., object]] = ()
    ) -> None:
        """`asked` is the name by which the worker knows it, `code` are the dotted names of the worker's modules, and `functions` are those
        that it may ask for when it scores.
        """
        self.name, self._asked = described.get("shown", asked), asked
        self.description = str(described.get("description", ""))
        self.subjects: Sequence[str] = list(described["subjects"])
        self.response_type = ResponseType(described["response_type"])
        self.num_fewshot = int(described.get("num_fewshot", 0))
        self.is_macro = bool(described.get("is_macro", False))
        self.metrics: Sequence[BenchmarkMetric] = [
            BenchmarkMetric(
                name=str(metric["name"]),
                higher_is_better=bool(metric.get("higher_is_better", True)),
                aggregate=None if metric.get("is_mean", True) else partial(self._aggregate, str(metric["name"])),
            )
            for metric in described["metrics"]
        ]
        self.executes_code = [str(metric["name"]) for metric in described["metrics"] if metric.get("runs_programs")]
        self._splits = described.get("splits", {})
        self._process = process
        reached = functions if self.executes_code else ()
        self._version = stable_hash([described["version"], code_version(*code, question_of, answers_sent, values_of, *reached)])

    def version(self) -> str:
        """Hash of what the worker gave as its version, and of the worker's code."""
        return self._version

    def splits(self, subject: str, *, fewshot: bool) -> Sequence[DatasetSplit]:
        """The splits that the worker named. Raises `TaskDefinitionError` if examples are wanted of a task that has none."""
        named = self._splits.get(subject, {})
        if fewshot and "no_examples" in named:
            raise TaskDefinitionError(named["no_examples"])
        wanted = [*named.get("evaluated", ()), *(named.get("examples", ()) if fewshot else ())]
        several = [each for number, each in enumerate(wanted) if each not in wanted[:number]]
        return [
            DatasetSplit(
                path=each["path"],
                config=each["config"],
                split=each["split"],
                revision=each.get("revision"),
                files=tuple(each.get("files", ())),
                options=each.get("options", {}),
            )
            for each in several
        ]

    def read(self, subject: str, open_split: OpenSplit, *, fewshot: bool) -> BenchmarkRows:
        """The rows that the worker makes of the rows of the splits."""
        opened: list[SplitRows] = [{"split": split.split, "rows": open_split(split)} for split in self.splits(subject, fewshot=fewshot)]
        made: RowsMade = self._process.call("rows", name=self._asked, subject=subject, splits=opened, fewshot=fewshot)
        return BenchmarkRows(evaluated=made["evaluated"], examples=made.get("examples", []))

    def render(self, subject: str, rows: BenchmarkRows, settings: RenderSettings) -> Iterator[Sequence[TaskSample] | BaseException]:
        """The worker's questions about each row, or what it raised. They come in batches."""
        how: SettingsSent = {
            "num_fewshot": settings.num_fewshot,
            "seed": settings.seed,
            "examples_per_sample": settings.examples_per_sample,
            "format": settings.formatter.name,
        }
        given, examples = list(rows.evaluated), list(rows.examples)
        for asked in self._process.stream("render", name=self._asked, subject=subject, rows=given, examples=examples, settings=how):
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

    def _aggregate(self, metric: str, items: Sequence[Item]) -> float:
        return float(self._process.call("aggregate", name=self._asked, metric=metric, items=list(items)))
