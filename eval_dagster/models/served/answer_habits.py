"""Answers that do not fit the server's other ones: with the id of another answer, or without a text where others have one."""

import json
from collections.abc import Mapping
from typing import Any

from eval_dagster.models.served.answers import FEW_ATTEMPTS, BadAnswerError, Reply, Text, cut

_FEWEST_REPEATED = 3
"""Answers with the id of another one, after which a server can be one whose ids do not tell its answers apart."""


class AnswerHabits:
    """Properties that the answers to a series of requests share."""

    def __init__(self) -> None:
        self._first_bodies: dict[int, int] = {}
        """The hash of the body that was first answered, by the hash of the answer's id."""
        self._repeated_ids = 0
        self._are_counted: set[bool] = set()
        """Whether the server counts the tokens of texts."""
        self._has_reasoning = False
        """Whether a text came with reasoning."""

    def require(self, reply: Reply, body: Mapping[str, Any]) -> None:
        """Require that an answer fits the others. `body` is that of its call.

        Raises:
            BadAnswerError: It has the id of the answer to another request, or it has no text, and others show that the server lost it.
        """
        if reply.answer_id is not None:
            self._require_new(reply.answer_id, body)
        if isinstance(reply.content, Text):
            self._require_text(reply, reply.content)

    def _require_new(self, answer_id: str, body: Mapping[str, Any]) -> None:
        """Require that an answer is not the one to another request, by its id.

        A server that repeats ids more often than it gives new ones has none. Until that is seen, a repeated id is a wrong answer.
        """
        asked = hash(json.dumps(body, sort_keys=True))
        first = self._first_bodies.setdefault(hash(answer_id), asked)
        if first != asked:
            self._repeated_ids += 1
            if self._repeated_ids <= _FEWEST_REPEATED or self._repeated_ids < len(self._first_bodies):
                raise BadAnswerError(f"the server gave the answer to another request again, {cut(answer_id)!r}")

    def _require_text(self, reply: Reply, found: Text) -> None:
        """Require that an answer without a text has reasoning, or a count of its tokens, as the server's other answers have or have not."""
        if found.text or found.tool_calls:
            self._are_counted.add(reply.output_tokens is not None)
            self._has_reasoning |= found.reasoning is not None
        elif found.finish_reason == "length":
            return
        elif found.reasoning is not None and not self._has_reasoning:
            raise BadAnswerError(
                "all of the answer is reasoning, and no other answer of the server has text and reasoning. Look at the server's parser of "
                f"reasoning; the reasoning: {cut(found.reasoning)!r}",
                most_attempts=FEW_ATTEMPTS,
            )
        elif found.reasoning is None and reply.output_tokens is None and self._are_counted != {False}:
            raise BadAnswerError(
                "the text is empty, and the server does not count its tokens, as it does for others", most_attempts=FEW_ATTEMPTS
            )
