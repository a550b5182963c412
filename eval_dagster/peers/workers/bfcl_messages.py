"""The messages between this package and the worker of BFCL, as JSON has them.

The worker names these types for the checker of types alone.
"""

from typing import Literal, NotRequired, TypedDict

Combination = Literal["micro", "macro", "non_live", "formats"]
"""How the scores of several categories become one: over all entries, as the mean of the categories, as the package's non-live score, or by
the differences between them."""


class CategoriesDescribed(TypedDict):
    """A category or a group."""

    subjects: list[str]
    """Its categories."""
    combination: Combination
    description: str
    has_systems: bool
    """Whether the model has tools that answer."""
    runs_calls: bool
    """Whether the package executes what a model wrote."""
    shares_entries: bool
    """Whether its categories have variants of the same entries."""
    version: object
    """It changes with everything that decides the results."""


class EntryRow(TypedDict):
    """An entry of a category as a row."""

    id: str
    category: str
    origin: str
    """The id that variants of an entry share."""
    steps: str
    """Most steps of a turn; 0 where the model is asked once."""
    turns: str
    """The messages of each turn as JSON: role and content."""
    tools: str
    """The definitions of all tools that the model has from a turn on, by the number of the turn, as JSON."""
    answer: str
    """The right answer as JSON; null if no call is right."""
    sessions: str
    """For a question about earlier sessions: their ids and turns as JSON."""


class MemorySent(TypedDict):
    """A session with a memory."""

    prompt: str
    """The system prompt, with what is in the memory at its begin."""
    result: str
    """The result of the last call."""
    kept: str
    """The memory with which the next session begins, as text."""


class VerdictSent(TypedDict):
    """A verdict of the checker."""

    valid: bool
    error_type: NotRequired[str]
    """The checker's name of what is wrong, for an answer that is not valid."""
    error: NotRequired[str]
    """The message of the checker."""
    fault: NotRequired[str]
    """The first wrong call."""
