"""Responses as the sample functions of lighteval's metrics see them."""

from collections.abc import Sequence
from typing import Any

from eval_dagster.records import Completion, Loglikelihood, ModelResponse


class Response(ModelResponse):
    """A response whose texts or choices can be taken one at a time: `response[0]`. Token ids are not included."""

    def __getitem__(self, index: int) -> "Response":
        """The response with one text or choice."""
        names = ("text", "text_post_processed", "reasonings", "logprobs", "token_logprobs", "argmax_logits_eq_gold")
        held = {name: values for name in (*names, "unconditioned_logprobs") if (values := getattr(self, name))}
        taken: dict[str, Any] = {name: [values[index]] for name, values in held.items()}
        return Response(input=self.input, **taken)


def generated(views: Sequence[Completion]) -> Response:
    """All texts of one prompt."""
    texts: dict[str, Any] = {
        "text": [view.raw_text or view.completion_text for view in views],
        "text_post_processed": [view.completion_text for view in views],
        "reasonings": [view.reasoning for view in views],
    }
    return Response(input=views[0].prompt, **texts)


def scored(view: Loglikelihood) -> Response:
    """The log-probabilities of all choices."""
    return Response(
        input=view.prompt,
        logprobs=list(view.loglikelihoods),
        token_logprobs=[list(each) for each in view.token_loglikelihoods],
        argmax_logits_eq_gold=list(view.is_greedy),
        unconditioned_logprobs=None if view.unconditioned_loglikelihoods is None else list(view.unconditioned_loglikelihoods),
    )


def of_text(view: Loglikelihood) -> Response:
    """The log-probability of each token of a text."""
    tokens = [list(each) for each in view.token_loglikelihoods]
    return Response(input=view.prompt, logprobs=tokens[0] if tokens else list(view.loglikelihoods), token_logprobs=tokens)
