"""Rows of the lake's tables, made of the samples of a log of inspect_ai."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa
from xxhash import xxh3_128_digest

from eval_dagster.errors import DataError
from eval_dagster.imports.inspect_archive import Archive, Member
from eval_dagster.imports.inspect_header import Log
from eval_dagster.imports.inspect_samples import (
    EventFigures,
    LogMessage,
    LogSample,
    input_of,
    is_mark,
    read_sample,
    reasoning_of,
    text_of,
    values_of,
)
from eval_dagster.lake.tables.schemas import TABLES
from eval_dagster.records import SUBJECT, ResponseType, Role
from eval_dagster.tasks.base import NO_SUBJECT
from eval_dagster.texts.visible_text import storable
from eval_dagster.versions.hashes import text_hash

MADE = ("samples", "prompts", "responses", "scores")
"""The tables that a log fills, in the order of the data flow."""
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "samples": ("sample_id", "sample_name", "content_id", "row"),
    "prompts": (*("sample_id", "sample_name", "source_id", "request_id", "messages", "prompt", "gold", "gold_is_list", "context"),),
    "responses": (
        *("sample_id", "sample_name", "request_id", "text", "text_post_processed", "reasoning", "finish_reason", "server_finish_reason"),
        *("served_model", "prompt_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "cost", "latency_s", "error", "episode"),
    ),
    "scores": ("sample_id", "sample_name", "source_id", "cluster", "metric", "value", "error", "explanation"),
}
"""The columns that differ from row to row. Others are null, or have one value in all rows."""
_LIMITS = {"token": "tokens", "cost": "cost", "time": "seconds", "working": "seconds", "turn": "turns", "message": "messages"}
"""Limits of inspect_ai -> how an episode ended by them."""
_ENDS = {"max_tokens": "length", "model_length": "length", "tool_calls": "tool_calls"}
"""Reasons for the end of an answer -> their names in the lake; `stop` for others."""
_ROLES = frozenset(map(str, Role))


@dataclass(frozen=True, kw_only=True)
class Lacking:
    """An answer that a scorer gave no score, or perhaps not all of several."""

    sample_id: str
    sample_name: str
    source_id: str
    reason: str
    scorers: frozenset[str]
    """Scorers that gave it a score."""
    parts: frozenset[str]
    """Metrics of the scorers that gave it several values. Other answers may have others of the same scorers."""
    is_counted: bool
    """Whether it is an error already, because a score is not a number."""

    def lacks(self, metric: str, scorer: str) -> bool:
        """Whether it has no value of a metric, and no reason for that."""
        if scorer not in self.scorers:
            return True
        start = scorer.replace("/", ".") + "/"
        return metric.startswith(start) and metric not in self.parts and any(each.startswith(start) for each in self.parts)


@dataclass(kw_only=True)
class Batch:
    """The rows of some samples, with the values of `COLUMNS`."""

    rows: Mapping[str, list[tuple[object, ...]]] = field(default_factory=lambda: {name: [] for name in MADE})
    digests: Mapping[str, bytearray] = field(default_factory=lambda: {name: bytearray() for name in MADE})
    """Hashes of 16 bytes of what decides the version of each table, a row after the other."""
    errors: int = 0
    """Answers with a score that is not a number."""
    metrics: dict[str, str] = field(default_factory=dict)
    """The metrics, each with its scorer, in the order in which they come first."""
    marks: dict[str, bool] = field(default_factory=dict)
    """Whether all values of a scorer mark answers as right, wrong or between."""
    unread: list[str] = field(default_factory=list)
    """Why samples could not be read."""
    lacking: list["Lacking"] = field(default_factory=list)
    """The answers that a scorer gave no score, or several. Their rows of `scores` need the metrics of all others."""
    totals: dict[str, float] = field(default_factory=lambda: {"model_seconds": 0.0, "prompt_tokens": 0.0, "output_tokens": 0.0})
    """Tokens and seconds of all answers."""
    seen: set[str] = field(default_factory=set)
    """The samples with a row in `samples`."""
    known: dict[frozenset[str], frozenset[str]] = field(default_factory=dict)
    """Sets of names, each once, since most answers have the same."""

    def shared(self, names: frozenset[str]) -> frozenset[str]:
        """The set of the batch that equals a set."""
        return self.known.setdefault(names, names)

    def add(self, table: str, identity: str, *values: object) -> None:
        """Add a row with the values of the table's `COLUMNS`. `identity` is what the version of the table covers."""
        self.rows[table].append(values)
        self.digests[table].extend(xxh3_128_digest(identity.encode("utf-8", "surrogatepass")))

    def tables(self, log: Log) -> dict[str, pa.Table]:
        """The rows as Arrow tables."""
        return {table: arrow_table(table, rows, log) for table, rows in self.rows.items()}


def arrow_table(table: str, rows: Sequence[tuple[object, ...]], log: Log) -> pa.Table:
    """Rows with the values of `COLUMNS` as an Arrow table with all columns of a table of the lake."""
    schema, count = TABLES[table], len(rows)
    columns = dict(zip(COLUMNS[table], zip(*rows, strict=True), strict=bool(rows)))
    same: dict[str, object] = {"eval": log.eval, "model": log.model, "subject": NO_SUBJECT, **_SAME.get(table, {})}
    if table == "samples":
        same["dataset_path"] = log.dataset
    if table == "prompts":
        same["generation"] = log.generation
    if table == "responses":
        same["model_version"] = log.model_version
    arrays = []
    for each in schema:
        if each.name in columns:
            try:
                arrays.append(pa.array(columns[each.name], each.type))
            except UnicodeEncodeError:  # half of a character
                arrays.append(pa.array([_storable(value) for value in columns[each.name]], each.type))
        elif each.name in same:
            arrays.append(pa.repeat(pa.scalar(same[each.name], each.type), count))
        else:
            arrays.append(pa.nulls(count, each.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def _storable(value: object) -> object:
    if isinstance(value, list):
        return [_storable(each) for each in value]
    return storable(value) if isinstance(value, str) else value


_SAME: Mapping[str, Mapping[str, object]] = {
    "samples": {"split": "evaluated"},
    "prompts": {
        "response_type": ResponseType.COMPLETION.value,
        "has_special_tokens": False,
        "gold_index": [],
        "use_logits": False,
        "num_fewshot": 0,
        "fewshot_ids": [],
    },
    "responses": {
        "text_is_escaped": False,
        "choice_logprobs": [],
        "choice_token_logprobs": [],
        "choice_is_greedy": [],
        "input_token_ids": [],
        "output_token_ids": [],
        "truncated_tokens": 0,
        "padded_tokens": 0,
        "retryable": False,
    },
}
"""Columns with one value in all rows of an import."""


def read_batch(archive: Archive, members: Sequence[Member], log: Log) -> Batch:
    """The rows of some members of a log. One that cannot be read does not affect the others."""
    batch = Batch()
    for member in members:
        try:
            _add_sample(batch, read_sample(archive.read(member)), log)
        except (DataError, msgspec.DecodeError) as error:
            batch.unread.append(f"{member.name}: {error}")
    return batch


class _ShownCall(msgspec.Struct, gc=False):
    call_id: str
    name: str
    arguments_text: str


class _Shown(msgspec.Struct, omit_defaults=True, gc=False):
    """A message as the lake has it."""

    role: str
    content: str
    tool_calls: list[_ShownCall] | None = None
    tool_call_id: str | None = None


class _Turn(msgspec.Struct, gc=False):
    """An answer in the column `episode`."""

    number: int
    place: str
    role: str
    kept: int
    new_messages: list[_Shown]
    prompt_tokens: int | None
    output_tokens: int | None
    cost: float | None
    request_id: None
    answer: _Shown
    error: None
    latency_s: float | None


class _ToolUse(msgspec.Struct, gc=False):
    """A call of a tool in the column `episode`."""

    number: int
    place: str
    call_id: str | None
    name: str | None
    kind: None
    arguments: str | None
    result: str
    error: str | None
    seconds: float | None


class _Course(msgspec.Struct, gc=False):
    """The column `episode`."""

    status: str
    seconds: float | None
    turns: list[_Turn]
    tool_calls: list[_ToolUse]


class _Row(msgspec.Struct, gc=False):
    """The column `row` of a sample."""

    id: int | str
    input: msgspec.Raw
    target: str | list[str]
    choices: list[str] | None
    metadata: msgspec.Raw


_encode = msgspec.json.Encoder().encode


def _add_sample(batch: Batch, sample: LogSample, log: Log) -> None:
    asked, kept = input_of(sample), sample.attachments
    question = [LogMessage(role="user", content=asked)] if isinstance(asked, str) else asked
    is_list = not isinstance(sample.target, str)
    gold = sample.target if is_list else [sample.target]
    name = str(sample.id)
    messages = _json([_shown(each, kept) for each in question])
    content = _json([sample.choices, gold])
    source = text_hash(f"{sample.id!r} {messages} {content}")
    sample_id = source if sample.epoch == 1 else f"{source}-epoch{sample.epoch}"
    if source not in batch.seen:
        batch.seen.add(source)
        row = _Row(sample.id, sample.input, sample.target, sample.choices, sample.metadata)
        batch.add("samples", source, source, name, text_hash(messages + content), _json(row))
    figures = EventFigures(sample.events)
    episode, prompt = _episode(sample, figures)
    request_id = text_hash(f"{prompt} {log.generation} {sample.epoch}")
    context = f'[{{"solvers": "{log.plan}"}}]'
    identity = f"{sample_id} {request_id} {content}"
    batch.add("prompts", identity, sample_id, name, source, request_id, messages, prompt, gold, is_list, context)
    error = None if sample.error is None else sample.error.message or "the sample failed, and the log does not say why"
    _add_response(batch, sample, figures, sample_id, request_id, episode, error)
    is_wrong, parts = False, list[str]()
    for scorer, score in (sample.scores or {}).items():
        batch.marks[scorer] = batch.marks.get(scorer, True) and is_mark(score.value)
        words = {"answer": score.answer, "judge_response": score.explanation}
        shown = {kind: [text_of(text, kept)] for kind, text in words.items() if isinstance(text, str)}
        explanation = _json(shown) if shown else None
        values = values_of(scorer, score)
        parts += values if isinstance(score.value, dict | list) else ()
        for metric, value in values.items():
            number, why = (None, value) if isinstance(value, str) else (value, None)
            is_wrong = is_wrong or why is not None
            batch.metrics.setdefault(metric, scorer)
            batch.add("scores", f"{sample_id} {metric} {value}", sample_id, name, source, source, metric, number, why, explanation)
    batch.errors += is_wrong
    given = frozenset(sample.scores or ())
    if error is not None or not given.issuperset(log.scorers) or not given or parts:
        reason = error or "not scored: the log has no score of this answer"
        found = Lacking(
            sample_id=sample_id,
            sample_name=name,
            source_id=source,
            reason=reason,
            scorers=batch.shared(given),
            parts=batch.shared(frozenset(parts)),
            is_counted=is_wrong,
        )
        batch.lacking.append(found)


def _json(value: object) -> str:
    return _encode(value).decode()


def _add_response(
    batch: Batch, sample: LogSample, figures: EventFigures, sample_id: str, request_id: str, episode: str, error: str | None
) -> None:
    kept, output = sample.attachments, sample.output
    choice = output.choices[0] if output.choices else None
    text = None if choice is None else text_of(choice.message.content, kept) if output.completion is None else output.completion
    texts = [] if text is None else [text_of(text, kept)]
    usages = sample.model_usage.values()
    prompt_tokens, output_tokens = _sum([usage.input_tokens for usage in usages]), _sum([usage.output_tokens for usage in usages])
    cached_tokens = _sum([usage.input_tokens_cache_read for usage in usages])
    reasoning_tokens = _sum([usage.reasoning_tokens for usage in usages])
    costs = [usage.total_cost for usage in usages if usage.total_cost is not None]
    seconds = figures.seconds or sample.working_time  # a log may have neither
    totals = batch.totals
    totals["model_seconds"] += seconds or 0
    totals["prompt_tokens"] += prompt_tokens or 0
    totals["output_tokens"] += output_tokens or 0
    batch.add(
        "responses",
        f"{sample_id} {sample.uuid} {texts} {error}",
        *(sample_id, str(sample.id), request_id, texts, texts),
        [] if choice is None else [reasoning_of(choice.message, kept)],
        [] if choice is None else [_ENDS.get(choice.stop_reason, "stop")],
        [] if choice is None else [choice.stop_reason],
        *(output.model or None, prompt_tokens, output_tokens, cached_tokens, reasoning_tokens),
        *(sum(costs) if costs else None, seconds, error, episode),
    )


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _shown(message: LogMessage, kept: Mapping[str, str]) -> _Shown:
    """A message as the lake has it."""
    calls = None
    if message.tool_calls:
        calls = [_ShownCall(call.id, call.function, bytes(call.arguments).decode()) for call in message.tool_calls]
    role = message.role if message.role in _ROLES else "user"
    return _Shown(role, text_of(message.content, kept), calls, message.tool_call_id)


def _episode(sample: LogSample, figures: EventFigures) -> tuple[str, str]:
    """The column `episode` of a sample, and the messages before its first answer as a text."""
    kept = sample.attachments
    turns: list[_Turn] = []
    tools: list[_ToolUse] = []
    called = {call.id: call for message in sample.messages if message.tool_calls for call in message.tool_calls}
    start, number = 0, 0
    for place, message in enumerate(sample.messages):
        if message.role == "tool":
            call = called.get(message.tool_call_id or "")
            tools.append(
                _ToolUse(
                    number=number,
                    place=f":{number}",
                    call_id=message.tool_call_id,
                    name=None if call is None else call.function,
                    kind=None,
                    arguments=None if call is None else bytes(call.arguments).decode(),
                    result=text_of(message.content, kept),
                    error=None if message.error is None else f"{message.error.type}: {message.error.message}",
                    seconds=figures.calls.get(message.tool_call_id or ""),
                )
            )
            number += 1
        elif message.role == "assistant" and message.source != "input":
            seconds, usage = figures.answers.get(message.id or "", (None, None))
            turns.append(
                _Turn(
                    number=number,
                    place=f":{number}",
                    role=SUBJECT,
                    kept=start,
                    new_messages=[_shown(each, kept) for each in sample.messages[start:place]],
                    prompt_tokens=None if usage is None else usage.input_tokens,
                    output_tokens=None if usage is None else usage.output_tokens,
                    cost=None if usage is None else usage.total_cost,
                    request_id=None,
                    answer=_shown(message, kept),
                    error=None,
                    latency_s=seconds,
                )
            )
            start, number = place + 1, number + 1
    first = turns[0].new_messages if turns else [_shown(each, kept) for each in sample.messages]
    prompt = first[0].content if len(first) == 1 else "\n\n".join(f"{each.role}: {each.content}" for each in first)
    limit = None if sample.limit is None else _LIMITS.get(sample.limit.type, sample.limit.type)
    status = "error" if sample.error is not None else limit or "done"
    seconds = sample.working_time if sample.working_time is not None else sample.total_time
    return _json(_Course(status, seconds, turns, tools)), prompt
