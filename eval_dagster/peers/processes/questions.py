"""Questions and answers as they are sent between this process and a worker."""

from collections.abc import Mapping, Sequence
from typing import Any

from eval_dagster.errors import DataError
from eval_dagster.records import Message, ResponseType, Role, TaskSample
from eval_dagster.tasks.base import Formatter
from eval_dagster.tasks.benchmark import Answer, ScoreError

_ERROR = "$error"
_RETRYABLE = "$retryable"
_SETTINGS = ("max_tokens", "stop_sequences", "num_samples", "temperature", "top_k", "top_p", "gold_indices", "ground_truth")


def question_of(sent: Mapping[str, Any], formatter: Formatter) -> TaskSample:
    """A question of a worker. If it has messages but no prompt, the formatter writes the prompt. Choices are sent as they are."""
    messages = [Message(Role(role), content) for role, content in sent.get("messages") or ()]
    prompt = sent.get("prompt")
    if prompt is None:
        prompt = formatter.format(messages)
    settings: dict[str, Any] = {name: sent[name] for name in _SETTINGS if sent.get(name) is not None}
    settings.setdefault("ground_truth", None)
    return TaskSample(
        messages=messages or [Message(Role.USER, prompt)],
        prompt=prompt,
        response_type=ResponseType(sent["response_type"]) if sent.get("response_type") else None,
        possible_completions=sent.get("choices"),
        context=sent.get("context") or {},
        **settings,
    )


def failure_of(sent: object) -> DataError | None:
    """The error that a worker sent in the place of the questions about a row, `{"$error": reason}`; None for questions."""
    return DataError(str(sent[_ERROR])) if isinstance(sent, Mapping) else None


def answers_sent(answers: Sequence[Answer]) -> list[dict[str, Any]]:
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


def values_of(sent: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a row. `{"$error": reason}` is a metric without a value; with `"$retryable": true` the next run may have it."""
    return {
        name: ScoreError(str(value[_ERROR]), bool(value.get(_RETRYABLE))) if isinstance(value, Mapping) and _ERROR in value else value
        for name, value in sent.items()
    }
