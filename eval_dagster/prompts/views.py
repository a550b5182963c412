"""The views of metrics: a response joined with its prompt, the row and the correct answer."""

from collections.abc import Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from eval_dagster.errors import DataError
from eval_dagster.records import Completion, Loglikelihood, MetricContext, ModelResponse, ResponseType, Sample, TaskSample
from eval_dagster.records.copies import altered
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.tasks.base import BaseTask
from eval_dagster.tasks.benchmark import OrderedTask
from eval_dagster.tasks.samples import TaskRow

_CHANGEABLE = (list, dict, MetricContext)


@dataclass(frozen=True, kw_only=True)
class AnsweredPrompt:
    """A prompt with the task and the row that it was made of."""

    task: BaseTask[Any]
    sample: Sample
    prompt: RenderedPrompt

    @cached_property
    def row(self) -> TaskRow:
        """The row as the task's hooks see it."""
        return TaskRow(self.sample)

    @cached_property
    def choices(self) -> list[str]:
        """The texts that are scored; of a perplexity the prompt itself."""
        request = self.prompt.request
        return [request.prompt] if request.perplexity else list(request.choices or ())

    @cached_property
    def gold_indices(self) -> list[int]:
        """Positions of the correct ones among `choices`."""
        return [0] if self.prompt.request.perplexity else list(self.prompt.gold_indices)

    def views(self, response: ModelResponse) -> Sequence[Completion | Loglikelihood]:
        """The views that the metrics score: each generated text, or all choices together."""
        if isinstance(self.task, OrderedTask):
            return self.task.views(self.sample, self.prompt, response)
        if self.prompt.response_type is ResponseType.COMPLETION:
            prompt, messages = self.prompt, list(response.conversation or self.prompt.messages)
            texts = zip(response.text, response.final_text, response.reasonings, response.finish_reason, strict=True)
            return [
                Completion(
                    completion_text=self._post_processed(answer),
                    raw_text=text,
                    reasoning=reasoning,
                    ground_truths=list(prompt.ground_truths),
                    ground_truth=prompt.ground_truth,
                    finish_reason=reason,
                    prompt=prompt.request.prompt,
                    messages=messages,
                    context=self._context,
                    row=self.row,
                )
                for text, answer, reasoning, reason in texts
            ]
        return [
            Loglikelihood(
                loglikelihoods=response.choice_logprobs,
                choices=self.choices,
                gold_indices=self.gold_indices,
                token_loglikelihoods=response.token_logprobs,
                unconditioned_loglikelihoods=response.unconditioned_logprobs,
                is_greedy=response.argmax_logits_eq_gold,
                prompt=self.prompt.request.prompt,
                context=self._context,
                row=self.row,
            )
        ]

    def _post_processed(self, answer: str) -> str:
        """An answer after the task's post-processing, which has a row of its own: what it changes there, metrics do not see.

        Raises:
            DataError: It is not a text.
        """
        hook = self.task.post_process_generated_completion
        if getattr(hook, "__func__", None) is BaseTask.post_process_generated_completion:
            return answer
        sample = TaskSample(
            messages=list(self.prompt.messages),
            ground_truth=deepcopy(self.prompt.ground_truth),
            context=deepcopy(self._context),
            id=self.sample.row_index,
            subject=self.prompt.subject,
            row=TaskRow(self.sample),
        )
        found: object = hook(answer, sample)
        if not isinstance(found, str):
            raise DataError(f"the post-processing of task {self.task.NAME} gave {type(found).__name__}; expected a text")
        return found

    @property
    def _context(self) -> MetricContext | list[MetricContext] | None:
        """The context that the task gave: alone if it is one."""
        parts = list(self.prompt.context)
        return parts[0] if len(parts) == 1 else parts or None


def apart(view: Completion | Loglikelihood) -> Completion | Loglikelihood:
    """A view whose row, lists and context are its own, for one metric: what that changes, the next one does not see."""
    return altered(view, {name: _copied(value) for name, value in vars(view).items() if isinstance(value, _CHANGEABLE) and value})


def _copied(value: Any) -> Any:
    """A copy of a value of a row; texts and numbers are shared. `deepcopy` takes ten times as long."""
    if isinstance(value, list):
        return [_copied(item) if isinstance(item, _CHANGEABLE) else item for item in value]
    if not isinstance(value, dict):
        return deepcopy(value)
    copied = copy(value)
    for key, item in value.items():
        if isinstance(item, _CHANGEABLE):
            copied[key] = _copied(item)
    return copied
