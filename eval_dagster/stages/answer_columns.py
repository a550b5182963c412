"""Reads the stored answers of an eval as columns: which are cut off, empty or refusals, and which choices they are. It asks no model."""

import json
import re
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from eval_dagster.errors import LakeError
from eval_dagster.lake.format.parquet_files import columns_of, iter_batches, read_table, rows_in
from eval_dagster.lake.tables.schemas import TABLES
from eval_dagster.metrics.base import AnswerMetric, BaseMetric
from eval_dagster.records import ResponseType
from eval_dagster.stages.score_columns import NONE, Codes, Flags, Floats, Labels, Places, Scores, column_in, flags, numbers
from eval_dagster.stages.scores import headline
from eval_dagster.tasks.base import BaseTask

_TAIL = 1000
"""Characters at the end of a text in which a loop is looked for."""
_SHORTEST_LOOP = 300
_LOOPS = 0.2
"""Compressed size of a loop, as part of its size. Prose of this length has about 0.5, and nearly all tables and code more than 0.2."""
_REGRET = r"(?:(?:i['\u2019]m|i am) (?:very |really |so )?(?:sorry|afraid)|i apologi[sz]e|sorry|unfortunately|as an ai\b[^.,\n]{0,40})"
_CANNOT = r"(?:can(?:no|['\u2019]?)t|can not|won['\u2019]t|will not|must decline to|(?:am|['\u2019]m) (?:unable|not able) to)"
_WISHED = (
    r"assist|help|comply|fulfil|provide|answer|respond|do that|continue|engage|discuss|create|generate|write|share|support|participate"
)
_REFUSAL = re.compile(rf"\W*(?:{_REGRET}[,.]? *(?:but )?(?:that )?)?(?:i|we) ?{_CANNOT} (?:{_WISHED})", re.IGNORECASE)
"""A refusal at the beginning of a text. It is narrow: "I cannot tell which number is larger" is an answer."""
_LETTER = re.compile(r"\W*([A-J])\W*")
_WITHHELD = frozenset({"content_filter", "refusal", "safety"})
"""Words by which servers say that they withheld an answer."""
SHOWN_CHARACTERS = 40
"""Characters of an answer that a finding shows."""
_PROMPT = ("source_id", "sample_name", "response_type", "choices", "gold", "gold_index")
_TEXTS = ("text", "text_post_processed", "finish_reason", "server_finish_reason")
_RESPONSE = (*(*_TEXTS, "truncated_tokens", "choice_logprobs", "error", "attempts", "served_model", "server_fingerprint", "answered_at"),)


@dataclass(frozen=True, kw_only=True, eq=False)
class Positions:
    """Several positions for each answer."""

    answer: Codes
    """The answer of each position."""
    position: Codes
    counts: Codes
    """The number of positions of each answer."""

    def first(self) -> Codes:
        """The first position of each answer."""
        found = np.full(len(self.counts), NONE, dtype=np.int32)
        found[self.answer[::-1]] = self.position[::-1]
        return found

    def have(self, position: int) -> Flags:
        """Whether each answer has a position."""
        found = np.zeros(len(self.counts), dtype=np.bool_)
        found[self.answer[self.position == position]] = True
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class _Responses:
    """What can be seen of responses without their prompts. Shares are of the texts of a response, from 0 to 1; NaN without texts."""

    has_error: Flags
    is_served: Flags
    """Whether a server gave the answer."""
    served_models: pa.ChunkedArray
    server_fingerprints: pa.ChunkedArray
    answered_at: NDArray[np.int64]
    """Microseconds since the first second of 1970, UTC; -1 without a time."""
    is_shortened: Flags
    """Whether the prompt was too long for the model."""
    cut_off: Floats
    empty: Floats
    refused: Floats
    repeated: Floats
    unparsed: Mapping[str, Floats]
    """By the names of the metrics that say what the answer in a text is; NaN for an answer that they do not score."""
    chosen: Codes
    """Position of the only choice with the highest log-probability, from 0; -1 without one."""
    n_choices: Codes
    letters: Codes
    """Position of the answer, from 0, if it is a letter from A to J; else -1."""
    answers: NDArray[np.int64]
    """A number for the answer in the first text, equal for equal answers of one process; -1 without an answer, or if it was cut off. The
    answer is the one that a metric finds, else the text."""
    shown: pa.ChunkedArray
    """The beginning of the answer."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Answers(_Responses):
    """The answers to the prompts of an eval, in the order of the prompts, by what can be seen of them."""

    sample_ids: pa.ChunkedArray
    sample_names: pa.ChunkedArray
    samples: Codes
    """The samples by their codes in `Scores.samples`; -1 for one without a score."""
    sources: Labels
    """The ids of the rows of the dataset."""
    expects_text: Flags
    gold: Positions
    """Positions of the correct choices, from 0."""
    gold_letters: Codes
    """Position of the correct answer, from 0, if it is the only one and a letter from A to J; else -1. Only of questions for a text."""

    def __len__(self) -> int:
        return len(self.samples)

    def naming_metrics(self) -> list[str]:
        """The metrics that say what the answer in a text is, and score one of the answers. The first answer's come first."""
        first = {name: int((~np.isnan(shares)).argmax()) for name, shares in self.unparsed.items() if not np.isnan(shares).all()}
        return sorted(first, key=first.__getitem__)


def read_answers(
    task: type[BaseTask[Any]], prompts: Path, outputs: Path, scored: Path, scores: Scores, *, is_partial: bool = False
) -> Answers:
    """Look at each answer of an eval.

    Args:
        task: The task of the eval.
        prompts: The file of its prompts.
        outputs: The file of its responses.
        scored: The file of its scores.
        scores: All rows of that file.
        is_partial: Whether prompts may lack a response, because they were not asked. They are left out.

    Raises:
        LakeError: A file is damaged, or a prompt has no answer.
    """
    asked = read_table(outputs, ["sample_id"])["sample_id"].combine_chunks() if is_partial else None
    sample_ids = pa.chunked_array([batch["sample_id"] for batch in _asked(prompts, ["sample_id"], asked)], pa.string())
    known = pa.chunked_array([scores.samples.texts])
    sample_ids = known if sample_ids.equals(known) else sample_ids  # usually each sample has a score; held once
    place, count = _places(sample_ids, outputs)
    samples = numbers(pc.index_in(sample_ids, value_set=scores.samples.texts).combine_chunks(), NONE)
    of_outputs = np.full(count, NONE, dtype=np.int32)
    of_outputs[place] = samples
    noted, start = _NotedAnswers(task, scored, scores), 0
    columns = _Columns(_seen(pa.RecordBatch.from_pylist([], TABLES["responses"]), of_outputs[:0], noted))
    for batch in iter_batches(outputs, _RESPONSE):
        columns.add(_seen(batch, of_outputs[start : start + len(batch)], noted))
        start += len(batch)
    responses = columns.whole()
    if len(place) != count or (place != np.arange(count)).any():
        responses = _reordered(responses, place)
    answers = _with_prompts(_asked(prompts, _PROMPT, asked), sample_ids, samples, responses)
    pa.default_memory_pool().release_unused()  # the columns of the files were there too
    return answers


def _places(sample_ids: pa.ChunkedArray, outputs: Path) -> tuple[Codes, int]:
    """The row of the answer to each sample, and the number of rows."""
    given = read_table(outputs, ["sample_id"])["sample_id"]
    place = numbers(pc.index_in(sample_ids, value_set=given).combine_chunks(), NONE)
    if (lacking := np.flatnonzero(place == NONE)).size:
        name = sample_ids[int(lacking[0])].as_py()
        raise LakeError(f"{outputs} has no answer to the sample {name}; materialize model_outputs for this partition")
    return place, len(given)


# ---- responses


class _NotedAnswers:
    """The answers that metrics noted with their scores. They are read as far as they are needed: files usually have one order."""

    def __init__(self, task: type[BaseTask[Any]], scored: Path, scores: Scores) -> None:
        self.metrics = [metric.NAME for metric in task.METRICS if _names_answers(metric)]
        self.first = next((metric.NAME for metric in (headline(task), *task.METRICS) if metric.NAME in self.metrics), None)
        self.scored: dict[str, Flags] = {}
        """By metric, whether each sample has a score without an error."""
        count = len(scores.samples.texts)
        self._last = np.full(count, NONE, dtype=np.intp)  # the last row of each sample
        self._is_named = np.zeros(len(scores), dtype=np.bool_)
        for name in self.metrics:
            of_metric = scores.metrics.is_text(name)
            self.scored[name] = np.zeros(count, dtype=np.bool_)
            self.scored[name][scores.samples.codes[of_metric & ~scores.has_error]] = True
            self._is_named |= of_metric
        rows = np.flatnonzero(self._is_named)
        np.maximum.at(self._last, scores.samples.codes[rows], rows)
        self._codes = scores.samples.codes
        self._batches = iter_batches(scored, ["sample_id", "metric", "explanation"])
        self._read = 0
        self._ahead: dict[int, dict[str, list[str | None]]] = defaultdict(dict)

    def of(self, sample: int) -> Mapping[str, Sequence[str | None]]:
        """The answers in the texts of a sample, by metric."""
        while self._read <= self._last[sample]:
            batch = next(self._batches)
            places = np.flatnonzero(self._is_named[self._read : self._read + len(batch)] & flags(batch["explanation"].is_valid()))
            rows = rows_in(batch.take(pa.array(places)).select(["metric", "explanation"]))
            for row, code in zip(rows, self._codes[self._read + places].tolist(), strict=True):
                self._ahead[code][row["metric"]] = json.loads(row["explanation"] or "{}").get("answer") or []
            self._read += len(batch)
        return self._ahead.pop(sample, {})


def _names_answers(metric: type[BaseMetric[Any]]) -> bool:
    of_text = getattr(metric, "METRIC", metric)  # for one text, if the metric takes several
    return isinstance(of_text, type) and issubclass(of_text, AnswerMetric)


def _seen(batch: pa.RecordBatch, samples: Codes, noted: _NotedAnswers) -> _Responses:
    """What can be seen of a part of the responses, of which `samples` are the codes of the samples."""
    count, has_error = len(batch), flags(batch["error"].is_valid())
    cut_off, empty, refused, repeated = (np.full(count, np.nan) for _ in range(4))
    unparsed = {name: np.full(count, np.nan) for name in noted.metrics}
    letters, answers = np.full(count, NONE, dtype=np.int32), np.full(count, NONE, dtype=np.int64)
    shown: list[str | None] = [None] * count
    with_text = np.flatnonzero((_lengths(batch["text"]) > 0) & ~has_error)
    columns = columns_of(batch.select([name for name in _TEXTS if name in batch.schema.names]).take(pa.array(with_text)))
    given = (columns.get(name) or [None] * len(with_text) for name in _TEXTS)
    for place, raw, processed, reasons, words in zip(with_text.tolist(), *given, strict=True):
        sample, texts = int(samples[place]), processed or raw
        is_cut = [reason in ("length", "reasoning") for reason in reasons or ()] or [False] * len(raw)
        withheld = [word in _WITHHELD for word in words or ()] or [False] * len(raw)
        whole = [bool(text.strip()) and not cut for text, cut in zip(texts, is_cut, strict=True)]
        cut_off[place] = _share(is_cut)
        empty[place] = _share([not text.strip() and not cut for text, cut in zip(texts, is_cut, strict=True)])
        refused[place] = _share([bool(_REFUSAL.match(text)) or kept for text, kept in zip(texts, withheld, strict=True)])
        repeated[place] = _share([_ends_in_loop(text) for text in raw])
        named = noted.of(sample) if noted.metrics and sample != NONE else {}
        for name in noted.metrics if sample != NONE else ():
            if noted.scored[name][sample]:
                parts = named.get(name) or texts  # without a note, the answers are the texts
                lacking = [not (part or "").strip() for part in parts]
                unparsed[name][place] = _share([is_whole and lacks for is_whole, lacks in zip(whole, lacking, strict=False)])
        if whole[0]:
            found = named.get(noted.first) if noted.first else None
            answer = found[0] if found else texts[0].strip()
            if answer is not None:
                letters[place], answers[place], shown[place] = _letter(answer), hash(answer), answer[:SHOWN_CHARACTERS]
    chosen, n_choices = _chosen(column_in(batch, "choice_logprobs", pa.list_(pa.float64())))
    times = column_in(batch, "answered_at", pa.timestamp("us", "UTC")).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    return _Responses(
        has_error=has_error,
        is_served=flags(column_in(batch, "attempts", pa.int64()).is_valid()),
        served_models=pa.chunked_array([column_in(batch, "served_model", pa.string())]),
        server_fingerprints=pa.chunked_array([column_in(batch, "server_fingerprint", pa.string())]),
        answered_at=numbers(times, NONE),
        is_shortened=numbers(batch["truncated_tokens"], 0) != 0,
        cut_off=cut_off,
        empty=empty,
        refused=refused,
        repeated=repeated,
        unparsed=unparsed,
        chosen=np.where(has_error, NONE, chosen).astype(np.int32),
        n_choices=np.where(has_error, 0, n_choices).astype(np.int32),
        letters=letters,
        answers=answers,
        shown=pa.chunked_array([pa.array(shown, pa.string())]),
    )


def _chosen(logprobs: pa.ListArray) -> tuple[Places, Places]:
    """The position of the only highest value of each of several lists, -1 without one or with a single value; and the lengths."""
    lengths, values = _lengths(logprobs), numbers(logprobs.flatten(), np.nan)
    owner, starts = np.repeat(np.arange(len(lengths)), lengths), np.cumsum(lengths) - lengths
    filled = lengths > 0
    best = np.maximum.reduceat(values, starts[filled]) if filled.any() else np.empty(0)
    is_best = values == np.repeat(best, lengths[filled])
    chosen = np.full(len(lengths), NONE, dtype=np.intp)
    chosen[owner[is_best]] = (np.arange(len(values)) - starts[owner])[is_best]
    chosen[(np.bincount(owner[is_best], minlength=len(lengths)) != 1) | (lengths < 2)] = NONE
    return chosen, lengths


def _lengths(lists: pa.ListArray) -> Places:
    return numbers(pc.list_value_length(lists), 0).astype(np.intp)


def _letter(text: str) -> int:
    found = _LETTER.fullmatch(text)
    return ord(found[1]) - ord("A") if found else NONE


def _share(is_so: Sequence[bool]) -> float:
    return sum(is_so) / len(is_so) if is_so else 0.0


def _ends_in_loop(text: str) -> bool:
    """Whether a long text ends in the same words again and again, so that its end can be compressed to almost nothing."""
    tail = text.rstrip()[-_TAIL:]
    if len(tail) < _SHORTEST_LOOP:
        return False
    content = tail.encode(errors="replace")
    return len(zlib.compress(content, 9)) < _LOOPS * len(content)


class _Columns:
    """The responses of several parts of a file, column by column, so that few are there twice when they are put together."""

    def __init__(self, first: _Responses) -> None:
        self._parts = {field.name: [getattr(first, field.name)] for field in fields(_Responses)}

    def add(self, more: _Responses) -> None:
        """Add the next part."""
        for name, parts in self._parts.items():
            parts.append(getattr(more, name))

    def whole(self) -> _Responses:
        """All parts as one. The parts are gone."""
        return _Responses(**{name: _joined(self._parts.pop(name)) for name in list(self._parts)})


def _joined(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    if isinstance(parts[0], Mapping):
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return pa.chunked_array([chunk for part in parts for chunk in part.chunks], pa.string())


def _reordered(responses: _Responses, places: Codes) -> _Responses:
    """The responses at these places."""

    def taken(column: Any) -> Any:
        if isinstance(column, Mapping):
            return {name: each[places] for name, each in column.items()}
        return column[places] if isinstance(column, np.ndarray) else column.take(pa.array(places))

    return _Responses(**{field.name: taken(getattr(responses, field.name)) for field in fields(_Responses)})


# ---- prompts


def _asked(prompts: Path, columns: Sequence[str], asked: pa.Array | None) -> Iterator[pa.RecordBatch]:
    """The prompts that were asked; all if `asked` is None."""
    for batch in iter_batches(prompts, columns if asked is None else [*{*columns, "sample_id"}]):
        yield batch if asked is None else batch.filter(pc.is_in(batch["sample_id"], value_set=asked))


def _with_prompts(prompts: Iterator[pa.RecordBatch], sample_ids: pa.ChunkedArray, samples: Codes, responses: _Responses) -> Answers:
    """Responses in the order of their prompts, with the prompts and their gold answers."""
    texts: dict[str, list[pa.Array]] = {"source_id": [], "sample_name": []}
    expects_text, has_choices = np.zeros(len(samples), dtype=np.bool_), np.zeros(len(samples), dtype=np.bool_)
    is_blank, refuses, loops = (np.zeros(len(samples), dtype=np.bool_) for _ in range(3))
    gold_letters, counts = np.full(len(samples), NONE, dtype=np.int32), np.zeros(len(samples), dtype=np.int32)
    positions, start = [np.empty(0, dtype=np.int32)], 0
    has_text = ~np.isnan(responses.cut_off)
    for batch in prompts:
        own = slice(start, start + len(batch))
        for name, chunks in texts.items():
            chunks.append(column_in(batch, name, pa.string()))
        expects_text[own] = flags(pc.equal(batch["response_type"], ResponseType.COMPLETION.value))
        has_choices[own] = _lengths(batch["choices"]) > 0
        counts[own] = _lengths(batch["gold_index"])
        positions.append(numbers(batch["gold_index"].flatten(), NONE).astype(np.int32))
        examined = np.flatnonzero(expects_text[own] | has_text[own])
        golds = columns_of(batch.select(["gold"]).take(pa.array(examined)))["gold"]
        for place, given in zip((start + examined).tolist(), golds, strict=True):
            gold = given or []
            is_blank[place] = not all(truth.strip() for truth in gold)
            refuses[place] = any(_REFUSAL.match(truth) for truth in gold)
            loops[place] = any(_ends_in_loop(truth) for truth in gold)
            gold_letters[place] = _letter(gold[0]) if len(gold) == 1 else NONE
        start += len(batch)
    # An answer like the gold answer has no fault; and a question without an answer is answered by an empty text.
    without_fault = {"empty": is_blank, "refused": refuses, "repeated": loops}
    columns = {field.name: getattr(responses, field.name) for field in fields(_Responses)}
    columns |= {name: np.where(has_text & is_so, 0.0, columns[name]) for name, is_so in without_fault.items()}
    columns |= {
        "chosen": np.where(has_choices, responses.chosen, NONE).astype(np.int32),
        "n_choices": np.where(has_choices, responses.n_choices, 0).astype(np.int32),
    }
    return Answers(
        **columns,
        sample_ids=sample_ids,
        sample_names=pa.chunked_array(texts["sample_name"], pa.string()),
        samples=samples,
        sources=Labels.of(texts.pop("source_id")).shared(Labels(texts=sample_ids.combine_chunks(), codes=samples)),
        expects_text=expects_text,
        gold=Positions(
            answer=np.repeat(np.arange(len(samples), dtype=np.int32), counts), position=np.concatenate(positions), counts=counts
        ),
        gold_letters=gold_letters,
    )
