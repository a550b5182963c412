"""eval-framework's benchmarks by its contract, `Benchmark` and `Eval`, which releases since 0.11 have. The worker imports this module where
the installed release has it.

The samples come from `iterate_samples`. Datasets are read by eval_dagster: `load_dataset` gives the rows that were sent.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import datasets
from eval_framework.contract import ResponseType
from eval_framework.metrics.base import BaseMetric
from eval_framework.metrics.llm.base import BaseLLMJudgeMetric
from eval_framework.shared.types import Completion, Error, Loglikelihood, RawCompletion
from eval_framework.tasks.base import RANDOM_SEED, BaseTask
from eval_framework_code import code_of
from eval_framework_datasets import FoundError, loading
from eval_framework_parts import Generator, Item, Loader, Splits
from eval_framework_programs import runs_programs
from eval_framework_users import benchmark_of, registered
from installed_versions import versions_around
from template_formatting.formatter import ConcatFormatter, IdentityFormatter, Llama3Formatter, Message

if TYPE_CHECKING:
    from collections.abc import Callable

    from eval_dagster.peers.workers.messages import (
        AnswerSent,
        Described,
        ErrorSent,
        MetricDescribed,
        QuestionSent,
        RowsMade,
        SettingsSent,
        SplitDescribed,
        SplitRows,
        SplitsDescribed,
    )
    from eval_dagster.records import Row

__all__ = ["aggregate", "describe", "names", "render", "rows", "score"]

_FORMATTERS = {"plain": ConcatFormatter, "identity": IdentityFormatter, "llama3": Llama3Formatter}
_LEFT_OUT = ("Bytes", "SequencePositions", "FinishReason")
"""Metrics of what eval-framework's own backends report."""
_READS_MESSAGES = re.compile(r"instruction|\.messages\b")
"""In the module of a metric: it may look at the messages of the prompt, which with examples are not those without."""

datasets.disable_progress_bars()
logging.getLogger("eval_framework").setLevel(logging.ERROR)  # else each question repeats that its number of examples is fixed


def names() -> dict[str, str]:
    """All names of the registry."""
    return {str(name): "task" for name in registered()}


def describe(name: str) -> Described:
    """The description of a benchmark, as JSON."""
    benchmark = benchmark_of(name)
    metrics = [metric for metric in benchmark.metrics() if metric.NAME not in _LEFT_OUT]
    for metric in metrics:
        if issubclass(metric, BaseLLMJudgeMetric):
            raise PermissionError(
                f"the metric {metric.NAME!r} ({metric.__name__}) asks another model, which eval_dagster does not do for eval-framework"
            )
    made = benchmark.create(num_fewshot=0, custom_subjects=None, custom_hf_revision=None, seed=RANDOM_SEED)
    if not isinstance(made, BaseTask) and not all(hasattr(made, part) for part in ("loader", "rnd", "sample_split")):
        raise PermissionError(
            f"it makes an {type(made).__name__}, which reads its rows in its own way; expected a benchmark of "
            "`ComposedBenchmark.compose` or `.choice`, or a subclass of `BaseTask`"
        )
    subjects = [str(subject) for subject in benchmark.subjects()]
    with loading(_find):
        splits = {subject: _splits(name, subject) for subject in subjects}
    return {
        "shown": str(benchmark.id()),
        "description": _first_paragraph(inspect.getdoc(inspect.getmodule(_definition(benchmark)))),
        "subjects": subjects,
        "response_type": benchmark.response_type().value,
        "metrics": _all_described(metrics, benchmark),
        "num_fewshot": 0,
        "is_macro": True,
        "splits": splits,
        "version": [
            {package: version for package, version in versions_around("eval-framework").items() if package != "eval-framework"},
            code_of([benchmark, type(made), *metrics, RawCompletion, Completion, Loglikelihood]),
            made.get_metadata(),
        ],
    }


def _definition(benchmark: Any) -> Any:
    """The part of a benchmark that was written for it alone: its module describes it."""
    kind = getattr(benchmark, "_kind", None)
    for part in (getattr(kind, "_reader", None), getattr(kind, "_build_prompt", None), kind, benchmark):
        if part is not None and not getattr(inspect.getmodule(part), "__name__", "eval_framework.").startswith(_ENGINE):
            return part
    return None


_ENGINE = ("eval_framework.composed", "eval_framework.eval_kind", "eval_framework.choices", "eval_framework.tasks")


def _first_paragraph(text: str | None) -> str:
    return (text or "").split("\n\n")[0]


def _all_described(metrics: Sequence[type[Any]], benchmark: Any) -> list[MetricDescribed]:
    """The metrics by the names of their values, which they show by their values of an answer that is an error. Two may share a name."""
    error = Error(error_class="", message="", traceback="")
    kind = Completion if benchmark.response_type() is ResponseType.COMPLETION else Loglikelihood
    described: dict[str, MetricDescribed] = {}
    for metric in metrics:
        try:
            found = metric().calculate(_model(kind, error=error, messages=[]))
        except Exception:  # the metric's own code
            found = []
        better = {result.metric_name.partition("/")[0]: result.higher_is_better for result in found} or {metric.NAME: True}
        is_mean, runs = not _is_of_all(metric), runs_programs(metric)
        for name, value in better.items():
            described.setdefault(name, {"name": name, "higher_is_better": bool(value), "is_mean": is_mean, "runs_programs": runs})
    return list(described.values())


def _model(kind: type[Any], **given: Any) -> Any:
    """A record of eval-framework. Releases differ in its fields: those that are not given, and that are required, are empty."""
    known = {name: value for name, value in given.items() if name in kind.model_fields}
    texts = dict.fromkeys(("subject", "prompt", "completion", "raw_completion", "ground_truth"), "")
    empty = {**texts, "id": 0, **{name: {} for name in kind.model_fields if name.startswith("loglikelihoods")}}
    lacking = {name for name, field in kind.model_fields.items() if field.is_required()} - known.keys()
    return kind(**known, **{name: empty.get(name) for name in lacking})


# ---- evals


def _created(name: str, subject: str, num_fewshot: int) -> Any:
    benchmark = benchmark_of(name)
    several = len(benchmark.subjects()) > 1  # a benchmark without subjects takes no name of one
    return benchmark.create(
        num_fewshot=num_fewshot, custom_subjects=[subject] if several else None, custom_hf_revision=None, seed=RANDOM_SEED
    )


def _splits(name: str, subject: str) -> SplitsDescribed:
    """The splits of a subject. It is called where loading a dataset raises what was asked for."""
    made = _created(name, subject, 0)
    meta = made.get_metadata()
    if isinstance(made, BaseTask):
        made._load_hf_dataset = lambda path, name=None, **_: _find(path, name, revision=made.hf_revision)
    try:
        next(iter(made.iterate_samples(1)))
    except FoundError as wanted:
        evaluated: SplitDescribed = {
            "path": wanted.path,
            "config": wanted.config,
            "split": str(meta["sample_split"]),
            "revision": wanted.revision,
        }
        try:
            _created(name, subject, 1)
        except ValueError as problem:
            return {"evaluated": [evaluated], "no_examples": str(problem)}
        examples = meta.get("fewshot_split")
        if examples in (None, "", "predefined"):
            return {"evaluated": [evaluated]}
        return {"evaluated": [evaluated], "examples": [{**evaluated, "split": str(examples)}]}
    return {}


def _find(path: str, name: str | None = None, *, revision: str | None = None, **_: Any) -> Any:
    raise FoundError(path, name, revision)


# ---- rows


def rows(name: str, subject: str, splits: Sequence[SplitRows], fewshot: bool) -> RowsMade:
    """The rows as the eval has them after loading: filtered, and in its order."""
    given = {each["split"]: datasets.Dataset.from_list(each["rows"]) for each in splits}

    def load(*_: Any, split: str | None = None, **__: Any) -> Any:
        return datasets.DatasetDict(given) if split is None else given[split]

    made = _created(name, subject, 0)
    meta = made.get_metadata()
    split, pool = str(meta["sample_split"]), meta.get("fewshot_split")
    if isinstance(made, BaseTask):
        made._load_hf_dataset = load
        with loading(load):
            made._load_dataset(made.SUBJECTS[0])
        loaded: Mapping[str, Sequence[Row]] = made.dataset
        evaluated = [dict(row) for row in loaded[split]]
    else:
        seen: list[Mapping[str, Sequence[Row]]] = []
        kept: list[Row] = []
        own = made.loader

        def keep(key: str | None) -> Mapping[str, object]:
            seen.append(Splits({name: list(data) for name, data in own.load(key).items()}))
            return seen[-1]

        def order(generator: Generator, rows: list[Row]) -> None:
            generator.shuffle(rows)
            kept.extend(dict(row) for row in rows)

        made.loader, made.rnd = Loader(keep, own), Generator(RANDOM_SEED, order)
        with loading(load):
            try:
                next(iter(made.iterate_samples(1)))
            except Exception:
                if not kept:  # else it is an error of the first row, which its prompt has
                    raise
        loaded, evaluated = seen[0], kept
    if not fewshot or pool == split:
        return {"evaluated": evaluated}
    return {"evaluated": evaluated, "examples": [dict(row) for row in loaded.get(str(pool), [])]}


# ---- questions


def render(
    name: str, subject: str, rows: Sequence[Row], examples: Sequence[Row], settings: SettingsSent
) -> Iterator[list[QuestionSent] | ErrorSent]:
    """The eval's samples for each row."""
    made = _created(name, subject, settings["num_fewshot"])
    shows = settings["num_fewshot"] > 0 and any(
        _READS_MESSAGES.search(inspect.getsource(inspect.getmodule(metric) or metric)) for metric in benchmark_of(name).metrics()
    )
    for samples in _by_row(made, rows, examples, settings):
        if isinstance(samples, Exception):
            yield {"$error": f"{type(samples).__name__}: {samples}"}
        else:
            yield [_question(made, sample, number, settings["format"], shows) for number, sample in enumerate(samples)]


def _by_row(made: Any, rows: Sequence[Row], examples: Sequence[Row], settings: SettingsSent) -> Iterator[list[Any] | Exception]:
    """The samples of each row, or the exception instead of them."""
    generator = random.Random(RANDOM_SEED + settings["seed"])
    generator.shuffle(list(range(len(rows))))
    state = generator.getstate()
    meta = made.get_metadata()
    split, pool = str(meta["sample_split"]), str(meta.get("fewshot_split"))

    def drawn_by(generator: random.Random, row: Row) -> None:
        if settings["examples_per_sample"]:
            text = json.dumps([settings["seed"], row], sort_keys=True)
            generator.seed(int(hashlib.sha256(text.encode()).hexdigest()[:8], 16))

    if isinstance(made, BaseTask):
        items = [dict(row) for row in rows]
        made.dataset = {pool: [dict(row) for row in examples] or items} | {split: items}
        made.rnd = random.Random()
        made.rnd.setstate(state)
        index, own = 0, made.SUBJECTS[0]
        for item, row in zip(items, rows, strict=True):
            drawn_by(made.rnd, row)
            item["subject"] = own
            try:
                found = made._create_samples(item, index, str(own))
            except Exception as error:  # the task's own code
                yield error
                continue
            index += len(found)
            yield found
        return
    start = 0
    while start < len(rows):
        start = yield from _of_composed(made, rows, examples, start, (split, pool), state, drawn_by)
        state = made.rnd.getstate()


def _of_composed(
    made: Any,
    rows: Sequence[Row],
    examples: Sequence[Row],
    start: int,
    splits: tuple[str, str],
    state: Any,
    drawn_by: Callable[[random.Random, Row], None],
) -> Any:
    """The samples of the rows from one on. An exception ends the eval's iteration: returns the row with which the next one begins."""
    items = [Item(row) for row in rows]
    place, at = {id(item): number for number, item in enumerate(items)}, [start]

    def begin(item: Item) -> None:
        at[0] = place[id(item)]
        drawn_by(made.rnd, rows[at[0]])

    for item in items[start:]:
        item.begun = begin

    def order(generator: Generator, given: list[Any]) -> None:
        given[:] = items[start:]
        generator.setstate(state)

    # The eval iterates over the rows that `order` leaves, and may draw examples from all.
    own = made.loader
    made.loader = Loader(lambda _: Splits({splits[1]: [dict(row) for row in examples], splits[0]: items}), own)
    made.rnd = Generator(RANDOM_SEED, order)
    samples, done = iter(made.iterate_samples(None)), start
    found: list[Any] = []
    try:
        while True:
            try:
                sample = next(samples, None)
            except Exception as error:  # the benchmark's own code
                if at[0] > done:
                    yield found
                    yield from ([] for _ in range(at[0] - done - 1))
                yield error
                return at[0] + 1
            if sample is None:
                yield found
                yield from ([] for _ in range(len(rows) - done - 1))
                return len(rows)
            if at[0] > done:
                yield found
                yield from ([] for _ in range(at[0] - done - 1))
                found, done = [], at[0]
            found.append(sample)
    finally:
        made.loader = own


def _question(made: Any, sample: Any, number: int, prompt_format: str, shows: bool) -> QuestionSent:
    messages = [[message.role.value, message.content] for message in sample.messages]
    question: QuestionSent = {
        "messages": messages,
        "ground_truth": sample.ground_truth,
        "response_type": made.get_response_type().value,
        "context": {"number": number, "id": sample.id, **({"messages": messages} if shows else {})},
    }
    if formatter := _FORMATTERS.get(prompt_format):
        question["prompt"] = formatter().format([Message(role=each.role, content=each.content) for each in sample.messages])
    if made.get_response_type() is ResponseType.LOGLIKELIHOODS:
        choices = list(sample.possible_completions or ())
        truths = [sample.ground_truth] if isinstance(sample.ground_truth, str) else list(sample.ground_truth or ())
        gold = [position for position, choice in enumerate(choices) if choice in truths]
        # eval-framework does not require that the correct answer is among the choices.
        return {**question, "choices": choices, "gold_indices": gold, "ground_truth": None}
    return {**question, "stop_sequences": sorted(set(made.get_stop_sequences())), "max_tokens": made.get_max_tokens()}


# ---- scores


class _Answers:
    """A model that has answered, as `generate_completions` asks it."""

    def __init__(self, answer: AnswerSent) -> None:
        self._answer = answer

    def generate(self, samples: Sequence[Any], **_: Any) -> list[Any]:
        texts, tokens = self._answer["texts"], self._answer["tokens"]
        counts = [len(each) for each in tokens] if len(tokens) == len(texts) else [None] * len(texts)
        return [
            _model(RawCompletion, prompt=self._answer["prompt"], completion=text, completion_num_tokens=count)
            for text, count, _ in zip(texts, counts, samples, strict=True)
        ]

    def post_process_completion(self, completion: str, _sample: Any) -> str:
        return completion


def score(name: str, subject: str, row: Row, answers: Sequence[AnswerSent]) -> dict[str, object]:
    """The values of a row: the means over its questions and their texts, and for a metric of all rows together the answers."""
    made = _created(name, subject, 0)
    settings: SettingsSent = {"num_fewshot": 0, "seed": 0, "examples_per_sample": False, "format": ""}
    samples = next(_by_row(made, [row], [], settings))
    if isinstance(samples, Exception):
        raise samples
    metrics = [metric() for metric in benchmark_of(name).metrics() if metric.NAME not in _LEFT_OUT]
    found: dict[str, list[float]] = {}
    of_all: dict[str, list[object]] = {}
    errors: dict[str, str] = {}
    again: set[str] = set()
    for answer in answers:
        for response in _responses(made, samples[int(str(answer["context"]["number"]))], answer):
            for metric in metrics:
                if _is_of_all(type(metric)):
                    sent = response.model_dump(mode="json", exclude={"prompt", "messages", "concat_compression"}, exclude_defaults=True)
                    of_all.setdefault(metric.NAME, []).append(sent)
                    continue
                metric.fail_on_error = True
                try:
                    results = metric.calculate(response)
                except Exception as error:  # the other metrics of the row are computed
                    errors[metric.NAME] = f"{type(error).__name__}: {error}"
                    again |= {metric.NAME} if type(error).__name__ == "AskedError" else set()
                    continue
                for result in results:
                    if result.error is not None:
                        errors[result.metric_name] = f"{result.error.error_class}: {result.error.message}"
                    elif result.value is not None:
                        found.setdefault(result.metric_name, []).append(float(result.value))
    means: dict[str, object] = {metric: math.fsum(values) / len(values) for metric, values in found.items()}
    failed: dict[str, ErrorSent] = {metric: {"$error": reason, "$retryable": metric in again} for metric, reason in errors.items()}
    return {**means, **of_all, **failed}


def _is_of_all(metric: type[Any]) -> bool:
    """Whether a metric looks at all responses before it gives a value for one."""
    return hasattr(BaseMetric, "prepare") and metric.prepare is not BaseMetric.prepare


def aggregate(name: str, metric: str, items: Sequence[Any]) -> float:
    """The mean of a metric that is prepared by all responses."""
    benchmark = benchmark_of(name)
    computed = next(each for each in benchmark.metrics() if metric == each.NAME)()
    kind = Completion if benchmark.response_type() is ResponseType.COMPLETION else Loglikelihood
    responses = [_model(kind, **sent) for item in items for sent in item]
    computed.prepare(responses)
    values = [result.value for response in responses for result in computed.calculate(response) if result.value is not None]
    if not values:
        raise ValueError(f"the metric {metric} has no value for any of {len(responses)} answers")
    return math.fsum(values) / len(values)


def _responses(made: Any, sample: Any, answer: AnswerSent) -> list[Any]:
    context = answer["context"]
    sample = sample.model_copy(update={"id": context.get("id", sample.id)})
    shown: Any = context.get("messages")
    if shown:
        sample = sample.model_copy(update={"messages": [Message(role=role, content=text) for role, text in shown]})
    if made.get_response_type() is ResponseType.LOGLIKELIHOODS:
        tokens = {choice: len(each) for choice, each in zip(answer["choices"], answer["tokens"], strict=False)}
        return [
            _model(
                Loglikelihood,
                id=sample.id,
                subject=sample.subject,
                ground_truth=sample.ground_truth,
                prompt=answer["prompt"],
                loglikelihoods=dict(zip(answer["choices"], answer["loglikelihoods"], strict=True)),
                loglikelihoods_num_tokens=tokens,
                loglikelihoods_sequence_positions=tokens,
            )
        ]
    several = [sample] * len(answer["texts"])
    found: list[Any] = made.generate_completions(
        _Answers(answer), several, stop_sequences=made.get_stop_sequences(), max_tokens=made.get_max_tokens(), fail_on_error=False
    )
    return found
