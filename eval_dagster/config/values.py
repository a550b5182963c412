"""The kinds of values in evals.yaml."""

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

NAME = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Names of models, evals and suites, which become partition keys and names of folders."""


LAST_PASSED = "last_passed"
"""The baseline that is the newest state that the gate let pass, or that a person accepted."""
PREVIOUS = "previous"
"""The baseline that is the state before the last change."""


def _name(value: str) -> str:
    if not NAME.fullmatch(value):
        raise ValueError("expected at most 100 letters, digits, '.', '_' and '-', a letter or digit first, and no '..'")
    return value


def identifier(name: str) -> str:
    """A name as Dagster allows it for a job: letters, digits and underscores. Different names can give the same identifier."""
    return re.sub(r"[-.]", "_", name)


def _not_blank(value: str) -> str:
    if not value.strip():
        raise ValueError("expected text that is not blank")
    return value


def _not_empty(value: str) -> str:
    if not value:
        raise ValueError("expected text that is not empty")
    return value


Text = Annotated[str, AfterValidator(_not_blank)]
Mark = Annotated[str, AfterValidator(_not_empty)]
"""A text such as a stop sequence, which may be a line break."""
Name = Annotated[str, AfterValidator(_name)]
Integer = Annotated[int, Field(strict=True)]
"""Strict, because `limit: yes` would otherwise be read as 1."""
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
"""Strict, because `smallest_difference: yes` would otherwise be read as 1.0, and `.inf` would silence a gate."""
Seconds = Annotated[float, Field(strict=True, allow_inf_nan=False, le=1e9)]
"""Bounded, because clocks and timers cannot count on for longer than some hundred years."""
Switch = Annotated[bool, Field(strict=True)]
"""Strict, because `truncate: 1` and `truncate: "off"` would otherwise be read as true or false."""


class Section(BaseModel):
    """A mapping of `evals.yaml`: unknown keys are errors, values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)
