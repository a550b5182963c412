"""Samples that cannot be sent to a model. Each has an error of its own and does not affect the others."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from eval_dagster.errors import DataError, SampleError
from eval_dagster.records import Request, ResponseType, Sample, TaskSample
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.tasks.base import BaseTask
from eval_dagster.tasks.samples import place_of, unreadable_reason
from eval_dagster.texts.visible_text import is_storable, one_line
from eval_dagster.versions.hashes import stable_hash

_BEFORE, _AFTER = 20, 10
"""Characters before and after the fault that a message shows."""


def unreadable_prompt(task: BaseTask[Any], sample: Sample) -> RenderedPrompt | None:
    """The prompt with an error for a row that could not be read; None for a readable row."""
    reason = unreadable_reason(sample.row)
    if reason is None:
        return None
    return _unasked(task.RESPONSE_TYPE, sample, stable_hash(["unreadable", sample.content_id]), f"RowError: {reason}")


def unaskable_prompt(task: BaseTask[Any], sample: Sample, made: TaskSample, index: int, error: SampleError) -> RenderedPrompt:
    """The prompt with an error for a question that cannot be asked; `index` is its position among those about the row."""
    prompt = _unasked(
        made.response_type or task.RESPONSE_TYPE, sample, stable_hash(["unaskable", sample.content_id, index]), f"RowError: {error}"
    )
    return replace(
        prompt,
        sample_id=question_id(sample, index),
        sample_name=made.sample_name or sample.sample_name,
        messages=tuple(made.messages),
    )


def failed_prompt(task: BaseTask[Any], sample: Sample, error: DataError) -> RenderedPrompt:
    """The prompt with an error for a row on which the task's own code fails. Another error is another prompt, so that answers name it."""
    prompt = _unasked(task.RESPONSE_TYPE, sample, stable_hash(["failed", sample.content_id, str(error)]), f"RowError: {error}")
    return replace(prompt, is_retryable=True)


def question_id(sample: Sample, index: int) -> str:
    """The sample id of a question about a row: the row's, from the second question on with the question's position."""
    return f"{sample.sample_id}.{index}" if index else sample.sample_id


def _unasked(response_type: ResponseType, sample: Sample, request_id: str, error: str) -> RenderedPrompt:
    return RenderedPrompt(
        sample_id=sample.sample_id,
        source_id=sample.sample_id,
        subject=sample.subject,
        sample_name=sample.sample_name,
        response_type=response_type,
        messages=(),
        request=Request(request_id=request_id, prompt=""),
        ground_truths=(),
        error=error,
    )


def checked(prompt: RenderedPrompt, sample: Sample) -> RenderedPrompt:
    """The prompt, with an error if one of its texts holds half of a character, which no tokenizer reads and no file stores."""
    wrong = next((text for text in _texts(prompt) if not is_storable(text)), None)
    if wrong is None:
        return prompt
    place = next(index for index, letter in enumerate(wrong) if "\ud800" <= letter <= "\udfff")
    around = one_line(wrong[max(0, place - _BEFORE) : place + _AFTER])
    return replace(
        prompt,
        context=(),
        error=f"RowError: {place_of(sample)}: its prompt, choices or gold answer hold half of a character, or a byte that is no UTF-8: "
        f"…{around}…; correct the row, and save files in UTF-8",
    )


def _texts(prompt: RenderedPrompt) -> Iterator[str]:
    request = prompt.request
    yield request.prompt
    yield from (message.content for message in prompt.messages)
    yield from request.choices or ()
    yield from prompt.ground_truths
    yield from (request.generation.stop_sequences if request.generation else ())
    yield request.unconditioned_prompt or ""
