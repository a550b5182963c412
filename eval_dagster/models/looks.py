"""Looks at a model that can change behind its name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eval_dagster.records import Request

Known = tuple[Request, Mapping[str, Any]]
"""A request, and the row of the response cache that holds its answer."""
FindKnown = Callable[[], Sequence[Known]]
"""Gives some requests of the run, chosen at random, whose answers are cached under the model's current version."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """What a run found when it looked at a model."""

    warnings: Sequence[str] = ()
    """What a person has to know, in one line each."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Text for the user interfaces."""
    cost: float = 0.0
    """US dollars; 0 without a price."""
    down: str | None = None
    """Why no request can be answered now. Cached answers stay valid."""
