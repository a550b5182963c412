"""The views of responses and of their rows: eval-framework's for its metrics, this project's for all others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eval_dagster import records
from eval_dagster.peers.eval_framework.contexts import ContextClasses, recreated
from eval_dagster.peers.eval_framework.formatters import ConcatFormatter
from eval_dagster.peers.eval_framework.responses import Completion, ConcatCompression, Loglikelihood
from eval_dagster.records import Message, ModelResponse, ResponseType, Role, Sample, TaskSample
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.tasks.base import BaseTask
from eval_dagster.tasks.samples import TaskRow
from eval_dagster.versions.hashes import stable_hash


@dataclass(frozen=True, kw_only=True)
class TaskCompletion(records.Completion):
    """A completion of a task in eval-framework's way."""

    foreign: Completion


@dataclass(frozen=True, kw_only=True)
class TaskLoglikelihood(records.Loglikelihood):
    """Log-likelihoods of a task in eval-framework's way."""

    foreign: Loglikelihood


class PlainRow(TaskRow):
    """A row whose nulls are None, without the field `subject` that every row of the lake has."""

    def __init__(self, sample: Sample) -> None:
        super().__init__(sample)
        own = {key: value for key, value in sample.row.items() if key != "subject"}
        if stable_hash(own) == sample.content_id:
            self.pop("subject", None)

    def __getitem__(self, key: str) -> Any:
        """Return a field's value."""
        return dict.__getitem__(self, key)


def foreign_view(response: Any) -> Any:
    """The view of a response for metrics of eval-framework. For a response of another task, it has the fields that this task knows."""
    if isinstance(response, TaskCompletion | TaskLoglikelihood):
        return response.foreign
    if isinstance(response, Completion | Loglikelihood):
        return response.by_text() if isinstance(response, Loglikelihood) else response
    given = response.context
    question = recreated(given if isinstance(given, list) else [given] if given else [])
    shared = {"subject": str(response.row.get("subject", "")), "prompt": response.prompt, "row": response.row}
    if isinstance(response, records.Completion):
        fields = {name: getattr(response, name) for name in ("reasoning", "finish_reason", "ground_truths")}
        truth = response.ground_truth if response.ground_truth is not None else list(response.ground_truths) or None
        return Completion(
            completion=response.completion_text,
            raw_completion=response.raw_text or response.completion_text,
            ground_truth=list(truth) if isinstance(truth, tuple) else truth,  # type: ignore[arg-type]
            messages=list(response.messages),
            context=question.context,
            **fields,
            **shared,
        )
    truths = [response.choices[position] for position in response.gold_indices]
    by_choice: Mapping[str, float] = dict(zip(response.choices, response.loglikelihoods, strict=True))
    return Loglikelihood(loglikelihoods=by_choice, ground_truth=truths, **shared)


def answered(
    task: BaseTask[Any], classes: ContextClasses, sample: Sample, prompt: RenderedPrompt, response: ModelResponse
) -> Sequence[records.Completion | records.Loglikelihood]:
    """The responses to score: each generated text, or all choices together. `classes` are the task's."""
    if prompt.response_type is ResponseType.COMPLETION:
        return _completions(task, classes, sample, prompt, response)
    return [_loglikelihood(classes, sample, prompt, response)]


def _loglikelihood(classes: ContextClasses, sample: Sample, prompt: RenderedPrompt, response: ModelResponse) -> TaskLoglikelihood:
    question = recreated(prompt.context, classes)
    choices, values = list(prompt.request.choices or ()), response.choice_logprobs
    sizes = [len(tokens) for tokens in response.output_tokens]
    foreign = Loglikelihood(
        id=question.id,
        subject=question.subject,
        ground_truth=prompt.ground_truth or "",
        prompt=prompt.request.prompt,
        prompt_sequence_positions=len(response.input_tokens) or None,
        loglikelihoods=dict(zip(choices, values, strict=True)),
        loglikelihoods_sequence_positions=dict(zip(choices, sizes, strict=False)),
        concat_compression=_size(prompt, choices, len(response.input_tokens) + sum(sizes)),
    )
    return TaskLoglikelihood(
        loglikelihoods=values,
        choices=choices,
        gold_indices=list(prompt.gold_indices),
        token_loglikelihoods=response.token_logprobs,
        is_greedy=response.argmax_logits_eq_gold,
        prompt=prompt.request.prompt,
        context=question.context,
        row=PlainRow(sample),
        foreign=foreign,
    )


def _completions(
    task: BaseTask[Any], classes: ContextClasses, sample: Sample, prompt: RenderedPrompt, response: ModelResponse
) -> list[TaskCompletion]:
    question = recreated(prompt.context, classes)
    messages, row = list(prompt.messages), PlainRow(sample)
    asked = TaskSample(
        id=question.id, subject=question.subject, messages=messages, ground_truth=prompt.ground_truth, context=question.context, row=row
    )  # as the task made it
    shared: dict[str, Any] = {"ground_truth": prompt.ground_truth, "prompt": prompt.request.prompt, "context": question.context, "row": row}
    found = []
    for place, (text, answer) in enumerate(zip(response.text, response.final_text, strict=True)):
        processed = task.post_process_generated_completion(answer, asked)
        own: dict[str, Any] = {
            "reasoning": response.reasonings[place] if response.reasonings else None,
            "finish_reason": response.finish_reason[place] if response.finish_reason else "stop",
            "ground_truths": list(prompt.ground_truths),
        }
        tokens = len(response.output_tokens[place]) if response.output_tokens else 0
        foreign = Completion(
            id=question.id,
            subject=question.subject,
            completion=processed,
            raw_completion=text,
            messages=_with_answer(messages, text),
            prompt_sequence_positions=len(response.input_tokens) or None,
            raw_completion_sequence_positions=tokens or None,
            concat_compression=_size(prompt, [text], len(response.input_tokens) + tokens),
            **own,
            **shared,
        )
        found.append(TaskCompletion(completion_text=processed, raw_text=text, messages=messages, foreign=foreign, **own, **shared))
    return found


def _with_answer(messages: Sequence[Message], answer: str) -> list[Message]:
    """The conversation with the answer as its last message, after the cue if the task has one."""
    if messages and messages[-1].role is Role.ASSISTANT:
        return [*messages[:-1], Message(Role.ASSISTANT, messages[-1].content + answer)]
    return [*messages, Message(Role.ASSISTANT, answer)]


def _size(prompt: RenderedPrompt, answers: Sequence[str], tokens: int) -> ConcatCompression | None:
    text = ConcatFormatter().format(prompt.messages)
    size = sum(len(part.encode()) for part in (text, *answers))
    return ConcatCompression(num_bytes=size, num_tokens=tokens) if size and tokens else None
