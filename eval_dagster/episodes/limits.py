"""The limits of an episode: what its models and tools may spend before it ends with its last answer."""

from collections.abc import Mapping
from typing import Any, Literal

from eval_dagster.lake.tables.columns import Answer
from eval_dagster.records import SUBJECT, ToolCall
from eval_dagster.tasks.episodes import EpisodeTask, Reply

Limit = Literal["turns", "tokens", "cost", "seconds"]
LIMITS: tuple[Limit, ...] = ("turns", "tokens", "cost", "seconds")
"""The statuses of episodes that reached a limit."""


class LimitError(Exception):
    """An episode has reached a limit of its task."""

    def __init__(self, limit: Limit) -> None:
        super().__init__(limit)
        self.limit = limit


class Spent:
    """The amounts that an episode has spent, recorded or live."""

    def __init__(self, task: EpisodeTask[Any]) -> None:
        self._task = task
        self._is_limited = any(most is not None for most in (task.MAX_OUTPUT_TOKENS, task.MAX_COST, task.MAX_TOOL_SECONDS))
        self._turns, self._tokens, self._cost, self._seconds = 0, 0, 0.0, 0.0
        self._paid: set[tuple[str, str]] = set()

    def ask(self, role: str) -> None:
        """Count a request. Raises `LimitError` if there may be no more."""
        if role == SUBJECT:
            self._turns += 1
            if self._turns > self._task.MAX_TURNS:
                raise LimitError("turns")

    def answered(self, role: str, request_id: str, answer: Answer) -> None:
        """Count an answer, also one with an error: its tokens, and its cost whatever model gave it. Equal requests are paid once."""
        if (role, request_id) in self._paid:
            return
        self._paid.add((role, request_id))
        if role == SUBJECT:
            self._tokens += answer.get("output_tokens") or 0
        self._cost += answer.get("cost") or 0.0

    def called(self, details: Mapping[str, object]) -> None:
        """Count a call of a tool by its recorded details."""
        seconds = details.get("seconds")
        self._seconds += seconds if isinstance(seconds, float) else 0.0

    @property
    def tool_seconds_left(self) -> float | None:
        """The seconds that tools may still take; None without a limit."""
        most = self._task.MAX_TOOL_SECONDS
        return None if most is None else most - self._seconds

    def require_left(self) -> None:
        """Raise `LimitError` if an amount is spent. Recorded asks and calls do not need it, since they have happened."""
        if not self._is_limited:
            return
        task = self._task
        amounts: tuple[tuple[Limit, float, float | None], ...] = (
            ("tokens", self._tokens, task.MAX_OUTPUT_TOKENS),
            ("cost", self._cost, task.MAX_COST),
            ("seconds", self._seconds, task.MAX_TOOL_SECONDS),
        )
        for limit, spent, most in amounts:
            if most is not None and spent >= most:
                raise LimitError(limit)


def fields_of_reply(reply: Reply | None) -> dict[str, object] | None:
    """An answer as fields of JSON."""
    return None if reply is None else {**vars(reply), "tool_calls": [vars(call) for call in reply.tool_calls]}


def reply_of_fields(fields: object) -> Reply | None:
    """The answer of fields that `fields_of_reply` gave."""
    if not isinstance(fields, Mapping):
        return None
    return Reply(**{**fields, "tool_calls": tuple(ToolCall(**call) for call in fields["tool_calls"])})
