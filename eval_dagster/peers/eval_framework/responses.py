"""The views of responses and of their rows: `Completion` and `Loglikelihood` with the members that metrics of eval-framework use, and this
project's views for all other metrics.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from eval_dagster import records
from eval_dagster.errors import DataError
from eval_dagster.metrics.base import Error
from eval_dagster.peers.eval_framework.contexts import ContextClasses, GivenContext, LanguageMetricContext, recreated
from eval_dagster.peers.eval_framework.formatters import ConcatFormatter
from eval_dagster.peers.eval_framework.languages import code_of
from eval_dagster.records import Message, ModelResponse, ResponseType, Role, Sample, TaskSample
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.tasks.base import BaseTask
from eval_dagster.tasks.samples import TaskRow
from eval_dagster.versions.hashes import stable_hash

_SPECIAL = re.compile(r"<\|(\S+)\|>")
_MISSING: Any = object()


class ConcatCompression(NamedTuple):
    """Size of a prompt in the plain format with its answer or its choices."""

    num_bytes: int
    num_tokens: int

    @classmethod
    def calculate(
        cls,
        messages: Sequence[Message],
        count_tokens: Callable[[str], int],
        choices: list[str] | None = None,
        completion: str | None = None,
    ) -> Self | None:
        """Count the bytes and the tokens; None if one of the counts is 0 or a choice is missing.

        Raises:
            ValueError: Not exactly one of `choices` and `completion` is given.
        """
        if (choices is None) == (completion is None):
            raise ValueError("expected either choices or completion")
        if choices is not None and None in choices:
            return None
        prompt = ConcatFormatter().format(messages)
        texts = [prompt, *choices] if choices is not None else [f"{prompt}{completion}"]
        size = cls(num_bytes=sum(len(text.encode()) for text in texts), num_tokens=sum(map(count_tokens, texts)))
        return size if all(size) else None


class _Response:
    """Members of both kinds of responses. Their fields can be set, as in eval-framework."""

    ground_truth: Any

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        object.__delattr__(self, name)

    @property
    def ground_truth_list(self) -> list[Any]:
        """The gold answers as a list."""
        return self.ground_truth if isinstance(self.ground_truth, list) else [self.ground_truth]

    def model_copy(self, *, update: Mapping[str, object] | None = None, deep: bool = False) -> Self:  # noqa: ARG002 - the fields are not changed in place
        """A copy with other values of some fields."""
        made = object.__new__(type(self))
        vars(made).update({**vars(self), **(update or {})})
        return made

    def model_dump(self) -> dict[str, object]:
        """The fields and their values."""
        return dict(vars(self))


class Completion(_Response, records.Completion):
    """A generated text with its question and gold answer."""

    id: int
    subject: str
    error: Error | None

    def __init__(
        self,
        *,
        completion: str = _MISSING,
        raw_completion: str = _MISSING,
        id: int = 0,  # noqa: A002 - the name of the field
        subject: str = "",
        ground_truth: str | list[str] | None = None,
        prompt: str = "",
        prompt_sequence_positions: int | None = None,
        concat_compression: ConcatCompression | None = None,
        messages: list[Message] | None = None,
        raw_completion_sequence_positions: int | None = None,
        context: GivenContext = None,
        error: Error | None = None,
        completion_text: str = "",
        **others: Any,
    ) -> None:
        """Take the fields of eval-framework or of `eval_dagster.records.Completion`."""
        self.completion = completion_text if completion is _MISSING else completion
        self.raw_completion = others.pop("raw_text", self.completion) if raw_completion is _MISSING else raw_completion
        vars(self).update({"id": id, "subject": subject, "prompt": prompt, "context": context, "error": error, "messages": messages})
        self.ground_truth = ground_truth
        self.prompt_sequence_positions = prompt_sequence_positions
        self.raw_completion_sequence_positions = raw_completion_sequence_positions
        self.concat_compression = concat_compression
        truths = [] if ground_truth is None else self.ground_truth_list
        vars(self).update({"ground_truths": truths, "row": {}, **others})

    @property
    def completion_text(self) -> str:
        """The text without its reasoning, after the task's post-processing."""
        return self.completion

    @property
    def raw_text(self) -> str:
        """The text as generated."""
        return self.raw_completion

    def _texts(self, *roles: Role) -> list[str]:
        return [message.content for message in self.messages or () if message.role in roles]

    @property
    def system_user_instruction(self) -> str:
        """The messages of system and user with blank lines between them."""
        return "\n\n".join(self._texts(Role.SYSTEM, Role.USER))

    @property
    def user_instruction(self) -> str:
        """The user's messages with blank lines between them."""
        return "\n\n".join(self._texts(Role.USER))

    @property
    def first_user_instruction(self) -> str:
        """The user's first message; empty without one."""
        return next(iter(self._texts(Role.USER)), "")

    @property
    def all_but_first_user_instruction(self) -> str:
        """The user's messages after the first."""
        return "\n\n".join(self._texts(Role.USER)[1:])

    @property
    def last_user_instruction(self) -> str:
        """The user's last message; empty without one."""
        return next(reversed(self._texts(Role.USER)), "")

    @property
    def sanitized_completion(self) -> str:
        """The text with spaces within what could be a special token."""
        return _SPECIAL.sub(r"<| \1 |>", self.completion)

    def _language(self, text: str) -> str:
        return self.context.language if isinstance(self.context, LanguageMetricContext) else code_of(text)

    def get_completion_language(self) -> str:
        """The code of the text's language, such as `en`; empty for an unknown one."""
        return self._language(self.completion)

    def get_raw_completion_language(self) -> str:
        """The code of the language of the text as generated."""
        return self._language(self.raw_completion)

    def get_instruction_language(self) -> str:
        """The code of the language of the user's messages."""
        return self._language(self.user_instruction)


class Loglikelihood(_Response, records.Loglikelihood):
    """The log-probabilities of choices by their texts, with the question and the gold answer.

    It may be made of a list of log-probabilities, which stays one. A metric gets it by the texts of its `choices`.
    """

    id: int
    subject: str
    error: Error | None

    def __init__(
        self,
        *,
        loglikelihoods: Mapping[str, float] | Sequence[float],
        id: int = 0,  # noqa: A002 - the name of the field
        subject: str = "",
        ground_truth: str | list[str] = "",
        prompt: str = "",
        prompt_sequence_positions: int | None = None,
        loglikelihoods_sequence_positions: Mapping[str, int] | None = None,
        concat_compression: ConcatCompression | None = None,
        error: Error | None = None,
        **others: Any,
    ) -> None:
        """Take the fields of eval-framework; others are fields of `eval_dagster.records.Loglikelihood`."""
        by_text = isinstance(loglikelihoods, Mapping)
        object.__setattr__(self, "loglikelihoods", dict(loglikelihoods) if isinstance(loglikelihoods, Mapping) else list(loglikelihoods))
        vars(self).update({"id": id, "subject": subject, "prompt": prompt, "error": error})
        self.ground_truth = ground_truth
        self.prompt_sequence_positions = prompt_sequence_positions
        self.loglikelihoods_sequence_positions = dict(loglikelihoods_sequence_positions or {})
        self.concat_compression = concat_compression
        vars(self).update({"choices": list(loglikelihoods) if by_text else [], "row": {}, **others})

    def by_text(self) -> Self:
        """The response with the log-probabilities by the texts of the choices.

        Raises:
            DataError: It has a list of them whose length is not the number of choices.
        """
        if isinstance(self.loglikelihoods, Mapping):
            return self
        values, choices = list(self.loglikelihoods), list(self.choices)
        if len(values) != len(choices):
            raise DataError(
                f"a Loglikelihood has {len(values)} loglikelihoods and {len(choices)} choices; a metric of eval-framework compares texts: "
                "give choices=[...] as well, or loglikelihoods as a mapping from each text"
            )
        return self.model_copy(update={"loglikelihoods": dict(zip(choices, values, strict=True))})


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
