"""Whether the answers of a model, which may be a user's, fit their requests."""

import math
from collections.abc import Container, Sequence

from eval_dagster.errors import ModelError
from eval_dagster.records import GenerationSettings, ModelResponse, Request


def fitting(request: Request, given: object) -> ModelResponse:
    """An answer if it fits its request, else an error in its place."""
    fault = misfit(request, given)
    if fault is not None:
        return ModelResponse(error=f"ModelError: the model gave {fault}", retryable=True)
    assert isinstance(given, ModelResponse)
    return given


def require_asked(request: Request, asked: Container[str]) -> None:
    """Raise `ModelError` for an answer to a request that is not among those that are asked, by id."""
    if request.request_id not in asked:
        raise ModelError(f"the model answered the request {request.request_id}, which it was not asked now; expected each once")


def misfit(request: Request, response: object) -> str | None:
    """The fault of an answer, which may come from a user's model. None if it fits its request."""
    if not isinstance(response, ModelResponse):
        return f"{type(response).__name__}; expected a ModelResponse"
    if response.error is not None:
        return None
    if request.choices is None and not request.perplexity:
        number, texts = (request.generation or GenerationSettings()).num_samples - request.first_text, response.text
        if len(texts) != number or not all(isinstance(text, str) for text in texts):
            return f"{len(texts)} texts; expected {number} texts of type str"
        return _miscounted(number, "texts", finish_reason=response.finish_reason)
    number = 1 if request.choices is None else len(request.choices)
    values, prior = response.choice_logprobs, response.unconditioned_logprobs
    if not all(map(math.isfinite, (*values, *(prior or ())))):
        return f"a log-probability that is no finite number: {[*values, *(prior or ())]}"
    if request.choices is None:
        return None if values else "no log-probability of the text; expected one for each token"
    return _miscounted(number, "choices", logprobs=values) or _miscounted(
        number,
        "choices",
        **{
            name: found
            for name, found in {
                "token_logprobs": response.token_logprobs,
                "argmax_logits_eq_gold": response.argmax_logits_eq_gold,
                "unconditioned_logprobs": prior,
            }.items()
            if found
        },
    )


def _miscounted(number: int, of: str, **lists: Sequence[object]) -> str | None:
    """The first list whose length differs from `number`, in words. None if all fit."""
    return next(
        (f"{len(each)} {name} for {number} {of}; expected one for each" for name, each in lists.items() if len(each) != number), None
    )
