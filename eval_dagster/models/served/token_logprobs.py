"""Reads log-probabilities of tokens, in the two forms that servers give them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eval_dagster.models.served.answers import BadAnswerError

_PREFIX = "token_id:"
"""vLLM writes the id of a token after it, where a call asks for `return_tokens_as_token_ids`."""


@dataclass(frozen=True, kw_only=True)
class TokenLogprob:
    """A token, its log-probability, and the most probable tokens at its place."""

    token: str
    token_id: int | None
    """Null where the server does not tell."""
    logprob: float | None
    """Natural logarithm; null for the first token of a text."""
    best: Sequence["TokenLogprob"] = ()

    @property
    def is_best(self) -> bool:
        """Whether no token is more probable."""
        highest = max((each.logprob for each in self.best if each.logprob is not None), default=-math.inf)
        return self.logprob is not None and self.logprob >= highest


def read_token_logprobs(choice: Mapping[str, Any]) -> list[TokenLogprob]:
    """The tokens of a choice with their log-probabilities.

    Raises:
        BadAnswerError: It has none.
    """
    found = choice.get("logprobs")
    try:
        if isinstance(found, dict) and isinstance(found.get("content"), list):
            return [_token(each, each.get("top_logprobs") or ()) for each in found["content"]]
        if isinstance(found, dict) and isinstance(found.get("tokens"), list):
            best = found.get("top_logprobs") or [None] * len(found["tokens"])
            return [
                _token(
                    {"token": token, "logprob": logprob},
                    [{"token": name, "logprob": value} for name, value in (others or {}).items()],
                )
                for token, logprob, others in zip(found["tokens"], found["token_logprobs"], best, strict=True)
            ]
    except (TypeError, ValueError, KeyError, AttributeError):
        raise BadAnswerError(f"the log-probabilities have another form than expected: {str(found)[:300]}") from None
    raise BadAnswerError("the answer has no log-probabilities of tokens", kind="NoLogprobsError")


def _token(found: Mapping[str, Any], best: Sequence[Mapping[str, Any]]) -> TokenLogprob:
    token, logprob, token_id = str(found["token"]), found["logprob"], found.get("id")
    if token_id is None and token.startswith(_PREFIX):
        token_id = int(token.removeprefix(_PREFIX))
    return TokenLogprob(
        token=token,
        token_id=token_id,
        logprob=None if logprob is None else float(logprob),
        best=tuple(_token(each, ()) for each in best),
    )
