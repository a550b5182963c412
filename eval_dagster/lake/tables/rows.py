"""Rows of the lake's tables: made from records, turned back into records, and as Arrow tables."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import Any

import pyarrow as pa

from eval_dagster.lake.tables.columns import AnswerRow, PromptRow, ResponseRow, SampleRow, ScoreRow
from eval_dagster.records import (
    SUBJECT,
    DatasetSource,
    GenerationSettings,
    Grammar,
    ItemScore,
    Message,
    MetricContext,
    ModelResponse,
    RepeatedScore,
    Request,
    ResponseType,
    Role,
    Sample,
    Score,
    ToolCall,
    Turn,
)
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.texts.json_texts import json_text, quick_json
from eval_dagster.texts.visible_text import is_storable, storable


def fields_in(row: Mapping[str, Any], record: type) -> dict[str, Any]:
    """The columns of a row that are fields of a dataclass. A missing column takes the field's default."""
    return {name: row[name] for name in _field_names(record) if name in row}


@cache
def _field_names(record: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(record))


def sample_row(eval_name: str, sample: Sample, source: DatasetSource, version: str) -> SampleRow:
    """A sample as a row of `samples`; `version` is the snapshot's version."""
    return {
        "eval": eval_name,
        "sample_id": sample.sample_id,
        "content_id": sample.content_id,
        "subject": sample.subject,
        "split": sample.split,
        "row_index": sample.row_index,
        "sample_name": sample.sample_name,
        "row": json_text(sample.row),
        "dataset_path": source.path,
        "dataset_revision": source.revision,
        "dataset_version": version,
    }


def sample_of(row: SampleRow) -> Sample:
    """The sample of a row of `samples`."""
    found = fields_in(row, Sample)
    found["row"] = quick_json(row["row"])
    return Sample(**found)


def prompt_row(eval_name: str, model: str, prompt: RenderedPrompt, num_fewshot: int, version: str) -> PromptRow:
    """A prompt as a row of `prompts`; `version` covers all prompts of the eval and the model."""
    request = prompt.request
    return {
        "eval": eval_name,
        "model": model,
        "sample_id": prompt.sample_id,
        "source_id": prompt.source_id,
        "subject": prompt.subject,
        "sample_name": prompt.sample_name,
        "request_id": request.request_id,
        "response_type": prompt.response_type.value,
        "messages": _messages_json(prompt.messages),
        "prompt": request.prompt,
        "has_special_tokens": request.has_special_tokens,
        "choices": None if request.choices is None else list(request.choices),
        "gold": list(prompt.ground_truths),
        "gold_is_list": prompt.truth_is_list,
        "gold_index": list(prompt.gold_indices),
        "generation": request.generation.text if request.generation else None,
        "unconditioned_prompt": request.unconditioned_prompt,
        "use_logits": request.use_logits,
        "images": list(request.images) or None,
        "sent_messages": None if request.messages is None else _messages_json(request.messages),
        "tools": list(request.tools) or None,
        "context": json.dumps([part.model_dump(mode="json") for part in prompt.context]) if prompt.context else None,
        "num_fewshot": num_fewshot,
        "fewshot_ids": list(prompt.fewshot_ids),
        "fewshot_set": prompt.fewshot_set,
        "is_system_merged": prompt.is_system_merged,
        "error": prompt.error,
        "prompt_version": version,
        "variant": prompt.variant,
    }


def prompt_of(row: PromptRow) -> RenderedPrompt:
    """The prompt of a row of `prompts`."""
    return RenderedPrompt(
        sample_id=row["sample_id"],
        source_id=row["source_id"],
        subject=row["subject"],
        sample_name=row.get("sample_name"),
        response_type=ResponseType(row["response_type"]),
        messages=_messages_of(row["messages"]),
        request=request_of(row),
        ground_truths=tuple(row["gold"]),
        truth_is_list=row["gold_is_list"],
        gold_indices=tuple(row["gold_index"]),
        fewshot_ids=tuple(row["fewshot_ids"]),
        fewshot_set=row["fewshot_set"],
        is_system_merged=bool(row.get("is_system_merged")),
        variant=row.get("variant"),
        context=tuple(MetricContext(**part) for part in json.loads(row["context"] or "[]")),
        error=row["error"],
    )


def request_of(row: PromptRow) -> Request:
    """The request of a row of `prompts`."""
    return Request(
        request_id=row["request_id"],
        prompt=row["prompt"],
        has_special_tokens=row["has_special_tokens"],
        choices=None if row["choices"] is None else tuple(row["choices"]),
        generation=_settings_of(row["generation"]) if row["generation"] else None,
        perplexity=row["response_type"] == ResponseType.PERPLEXITY.value,
        unconditioned_prompt=row["unconditioned_prompt"],
        use_logits=row["use_logits"],
        images=tuple(row["images"] or ()),
        messages=_messages_of(sent) if (sent := row.get("sent_messages")) else None,
        tools=tuple(row.get("tools") or ()),
    )


def _messages_json(messages: Sequence[Message]) -> str:
    return json_text([message_fields(message) for message in messages])


def _messages_of(text: str) -> tuple[Message, ...]:
    return tuple(map(message_of, quick_json(text)))


def message_fields(message: Message) -> dict[str, object]:
    """A message as JSON has it."""
    found: dict[str, object] = {"role": message.role, "content": message.content}
    if isinstance(message, Turn):
        if message.tool_calls:
            found["tool_calls"] = [vars(call) for call in message.tool_calls]
        if message.tool_call_id is not None:
            found["tool_call_id"] = message.tool_call_id
    return found


def message_of(found: Mapping[str, Any]) -> Message:
    """The message of what `message_fields` gives."""
    role, content = Role(found["role"]), found["content"]
    if "tool_calls" not in found and "tool_call_id" not in found:
        return Message(role, content)
    calls = tuple(ToolCall(**call) for call in found.get("tool_calls", ()))
    return Turn(role, content, calls, found.get("tool_call_id"))


@lru_cache(maxsize=256)
def _settings_of(text: str) -> GenerationSettings:
    stored = json.loads(text)
    grammar = Grammar(**stored["grammar"]) if stored["grammar"] else None
    return GenerationSettings(**{**stored, "stop_sequences": tuple(stored["stop_sequences"]), "grammar": grammar})


def response_row(request_id: str, response: ModelResponse, model_version: str) -> AnswerRow:
    """A response as a row of the response cache. With eval, model, sample and the split texts, it becomes a row of `responses`."""
    report = response.report
    return {
        "request_id": request_id,
        # A server can answer with half of a character, which no file can hold. The stored text is the scored text.
        "text": [storable(text) for text in response.text],
        "text_is_escaped": not all(map(is_storable, response.text)),
        "input": response.input if response.truncated_tokens_count and isinstance(response.input, str) else None,
        "choice_logprobs": list(response.choice_logprobs),
        "choice_token_logprobs": [list(values) for values in response.token_logprobs],
        "choice_is_greedy": list(response.argmax_logits_eq_gold),
        "unconditioned_logprobs": None if response.unconditioned_logprobs is None else list(response.unconditioned_logprobs),
        "logits": None if response.logits is None else [list(values) for values in response.logits],
        "input_token_ids": list(response.input_tokens),
        "output_token_ids": [list(tokens) for tokens in response.output_tokens],
        "prompt_tokens": report.prompt_tokens if report else len(response.input_tokens),
        "output_tokens": report.output_tokens if report else sum(len(tokens) for tokens in response.output_tokens),
        "truncated_tokens": response.truncated_tokens_count,
        "padded_tokens": response.padded_tokens_count,
        "finish_reason": list(response.finish_reason),
        "latency_s": response.latency_s,
        "server_reasoning": [text and storable(text) for text in response.reasonings] or None,
        "tool_calls": [list(calls) for calls in response.tool_calls] or None,
        "cached_tokens": report.cached_tokens if report else None,
        "reasoning_tokens": report.reasoning_tokens if report else None,
        "cost": report.cost if report else None,
        "attempts": report.attempts if report else None,
        "served_model": report.model if report else None,
        "server_fingerprint": report.fingerprint if report else None,
        "model_version": model_version,
        "error": response.error,
    }


def answer_row(request_id: str, response: ModelResponse, model_version: str) -> AnswerRow:
    """An answer that was just given as a row of the response cache, with its time, its workers and their seconds.

    The version of the stage `model_outputs` covers `response_row`, but not the time, the workers and their seconds.
    """
    return {
        **response_row(request_id, response, model_version),
        "worker": response.worker,
        "worker_s": response.worker_s,
        "gpu_s": response.gpu_s,
        "answered_at": datetime.now(UTC) if response.report else None,
        "server_finish_reason": (list(response.report.finish_reasons) or None) if response.report else None,
    }


def response_of(row: ResponseRow) -> ModelResponse:
    """The response of a row of `responses`. A perplexity has one log-probability, for the whole text."""
    return ModelResponse(
        input=row["input"],
        input_tokens=row["input_token_ids"],
        text=row["text"],
        text_post_processed=row["text_post_processed"],
        reasonings=row["reasoning"],
        tool_calls=row.get("tool_calls") or (),
        output_tokens=row["output_token_ids"],
        logprobs=row["choice_logprobs"],
        token_logprobs=row["choice_token_logprobs"],
        argmax_logits_eq_gold=row["choice_is_greedy"],
        logits=row["logits"],
        unconditioned_logprobs=row["unconditioned_logprobs"],
        truncated_tokens_count=row["truncated_tokens"],
        padded_tokens_count=row["padded_tokens"],
        finish_reason=row["finish_reason"],
        latency_s=row["latency_s"],
        error=row["error"],
        retryable=row["retryable"],
        conversation=conversation_of(episode) if (episode := row.get("episode")) else (),
    )


def conversation_of(episode: str) -> tuple[Message, ...]:
    """The conversation of the last request of an episode to its model, with the answer, from the column `episode`."""
    of_roles: dict[str, list[Message]] = {}
    for turn in json.loads(episode)["turns"]:
        messages = of_roles.setdefault(turn["role"], [])
        messages[turn["kept"] :] = map(message_of, turn["new_messages"])
        if turn["answer"] is not None:
            messages.append(message_of(turn["answer"]))
    return tuple(of_roles.get(SUBJECT, ()))


def score_row(eval_name: str, model: str, prompt: RenderedPrompt, cluster: str, score: Score) -> ScoreRow:
    """A score of a prompt as a row of `scores`; `cluster` names the samples that belong together."""
    return {
        "eval": eval_name,
        "model": model,
        "sample_id": prompt.sample_id,
        "source_id": prompt.source_id,
        "cluster": cluster,
        "subject": prompt.subject,
        "sample_name": prompt.sample_name,
        "metric": score.metric,
        "value": score.value,
        "text_values": list(score.text_values) if isinstance(score, RepeatedScore) else None,
        "item": score.item if isinstance(score, ItemScore) else None,
        "error": score.error,
        "explanation": _explanation(score),
        "variant": prompt.variant,
    }


def _explanation(score: Score) -> str | None:
    """The explanation as JSON that every reader accepts. Many readers refuse half a character, even as an escape."""
    if not score.explanation:
        return None
    return json_text({kind: _storable(texts) for kind, texts in score.explanation.items()})


def to_table(rows: Sequence[Mapping[str, object]], schema: pa.Schema) -> pa.Table:
    """Rows as an Arrow table. A lone surrogate, which UTF-8 cannot hold, becomes an escape such as `\\ud83d`."""
    try:
        return pa.Table.from_pylist(list(rows), schema=schema)
    except UnicodeEncodeError:
        return pa.Table.from_pylist([{name: _storable(value) for name, value in row.items()} for row in rows], schema=schema)


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return storable(value)
    return [_storable(item) for item in value] if isinstance(value, list | tuple) else value


def with_constants(rows: pa.Table, **constants: str) -> pa.Table:
    """Rows with other values of some columns, each the same in all rows."""
    for name, value in constants.items():
        place, field = rows.schema.get_field_index(name), rows.schema.field(name)
        rows = rows.set_column(place, field, pa.repeat(pa.scalar(value, field.type), rows.num_rows))
    return rows
