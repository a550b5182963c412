"""The views of responses: eval-framework's for its metrics, this project's for all others."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eval_dagster import records
from eval_dagster.peers.eval_framework.contexts import recreated
from eval_dagster.peers.eval_framework.responses import Completion, Loglikelihood


@dataclass(frozen=True, kw_only=True)
class TaskCompletion(records.Completion):
    """A completion of a task in eval-framework's way."""

    foreign: Completion


@dataclass(frozen=True, kw_only=True)
class TaskLoglikelihood(records.Loglikelihood):
    """Log-likelihoods of a task in eval-framework's way."""

    foreign: Loglikelihood


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
