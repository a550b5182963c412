"""Reads log-probabilities of tokens, in the two forms that servers give them, and refuses those that no model can have."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eval_dagster.models.served.calls.answer_records import Choice, LogprobContent, LogprobEntry, LogprobLists, MalformedError
from eval_dagster.models.served.calls.answers import BadAnswerError, cut

_PREFIX = "token_id:"
"""vLLM writes the id of a token after it, if a call asks for `return_tokens_as_token_ids`."""
_LEAST, _MOST = -1_000.0, 0.01
"""Bounds of a log-probability. Below them is a mark, such as -9999 for a token that is not among the likely ones. A rounding error may lie
a little above 0."""
_MANY = 5
"""Tokens that do not all have the same log-probability."""
_CERTAIN = -0.1
"""Two tokens at one place cannot both have a log-probability above this."""
_CLOSE = 0.05
"""Two numbers of one answer for the same log-probability differ less than this."""
_NO_CHARACTER = "\ufffd"
"""Several tokens that are parts of characters are written like this."""


@dataclass(frozen=True, kw_only=True)
class TokenLogprob:
    """A token, its log-probability, and the most probable tokens at its place."""

    token: str
    token_id: int | None
    """Null if the server does not tell."""
    logprob: float | None
    """Natural logarithm; null for the first token of a text."""
    best: Sequence["TokenLogprob"] = ()

    @property
    def is_best(self) -> bool:
        """Whether no token is more probable."""
        return self.logprob is not None and self.logprob >= self.highest

    @property
    def highest(self) -> float:
        """The log-probability of the most probable token; minus infinity if none is given."""
        return max((each.logprob for each in self.best if each.logprob is not None), default=-math.inf)


def read_token_logprobs(choice: Choice) -> list[TokenLogprob]:
    """The tokens of a choice with their log-probabilities.

    Raises:
        BadAnswerError: It has none, or some that cannot be: above 0, different ones for the same token, or tokens of which some have ids
            and others have not.
    """
    found = choice.logprobs
    if not isinstance(found, dict) or not isinstance(found.get("content", found.get("tokens")), list):
        raise BadAnswerError("the answer has no log-probabilities of tokens", kind="NoLogprobsError")
    try:
        if isinstance(found.get("content"), list):
            entries = LogprobContent.of(found).content
        else:
            lists = LogprobLists.of(found)
            best: Sequence[Any] = lists.top_logprobs or [None] * len(lists.tokens)
            if not len(lists.tokens) == len(lists.token_logprobs) == len(best):
                raise MalformedError(f"lists of {len(lists.tokens)}, {len(lists.token_logprobs)} and {len(best)} values")
            entries = []
            for token, logprob, others in zip(lists.tokens, lists.token_logprobs, best, strict=True):
                top = [LogprobEntry(token=name, logprob=value) for name, value in (others or {}).items()]
                entries.append(LogprobEntry(token=token, logprob=logprob, top_logprobs=top))
        tokens = [_token(each) for each in entries]
    except ValueError as error:
        raise BadAnswerError(f"the log-probabilities have another form than expected ({error}): {cut(str(found))}") from None
    if len({each.token_id is None for each in tokens}) > 1:
        named = sum(each.token_id is not None for each in tokens)
        raise BadAnswerError(f"the server names the ids of {named} of {len(tokens)} tokens; expected all or none")
    for each in tokens:
        _require_possible(each)
    values = [each.logprob for each in tokens if each.logprob is not None]
    if len(values) >= _MANY and len(set(values)) == 1:  # no model gives one number to all tokens of a text
        raise BadAnswerError(f"the server gave all {len(values)} tokens {values[0]:g} as their log-probability")
    return tokens


def _token(found: LogprobEntry) -> TokenLogprob:
    token_id = found.id
    if token_id is None and found.token.startswith(_PREFIX):
        token_id = int(found.token.removeprefix(_PREFIX))
    best = tuple(_token(each) for each in found.top_logprobs or ())
    return TokenLogprob(token=found.token, token_id=token_id, logprob=found.logprob, best=best)


def _require_possible(found: TokenLogprob) -> None:
    """Raise `BadAnswerError` for numbers that contradict each other, or that no model has."""
    too_high = next((each for each in (found, *found.best) if each.logprob is not None and each.logprob > _MOST), None)
    if too_high is not None:
        raise BadAnswerError(f"the server gave the token {too_high.token!r} with {too_high.logprob:g}, which is no log-probability")
    if found.logprob is None:
        return
    if found.logprob < _LEAST:
        raise BadAnswerError(f"the server gave the token {found.token!r} with {found.logprob:g}, a mark in place of its log-probability")
    same = [each for each in found.best if (each.token_id, each.token) == (found.token_id, found.token) and each.logprob is not None]
    is_listed = len(same) == 1 and (found.token_id is not None or _NO_CHARACTER not in found.token)
    if is_listed and abs((same[0].logprob or 0.0) - found.logprob) > _CLOSE:
        raise BadAnswerError(f"the server gave the token {found.token!r} with {found.logprob:g} and with {same[0].logprob:g}")
    certain = {(each.token_id, each.token) for each in (found, *found.best) if each.logprob is not None and each.logprob > _CERTAIN}
    if len(certain) > 1 and not any(_NO_CHARACTER in token for _, token in certain):
        raise BadAnswerError(f"the server gave {len(certain)} tokens at the place of {found.token!r} as certain: {cut(str(found.best))}")
    if found.best and found.logprob > found.highest + _CLOSE:
        raise BadAnswerError(
            f"the server gave the token {found.token!r} with {found.logprob:g}, and {found.highest:g} for the most probable one"
        )
