"""What the results of a suite are compared with, as `baseline` of a suite names it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from eval_dagster.errors import LakeError
from eval_dagster.gate.points import PREVIOUS, Point, PointName, parse_time
from eval_dagster.gate.records import NO_EARLIER_RESULT
from eval_dagster.lake.files import Lake


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """A model, or each result's own, and when."""

    text: str
    """As it stands in evals.yaml."""
    model: str | None
    """None: that of the result."""
    until: datetime | None
    previous: bool

    @classmethod
    def parse(cls, text: str, models: Sequence[str]) -> "Baseline":
        """Read `previous`, a day or a time, a model's name, or `name@` one of these.

        Args:
            text: What the suite says.
            models: Names that there are.

        Raises:
            UsageError: It is none of these.
        """
        if text == PREVIOUS:
            return cls(text=text, model=None, until=None, previous=True)
        if text in models or "@" in text:
            name = PointName.parse(text, models)
            return cls(text=text, model=name.model, until=name.until, previous=name.previous)
        return cls(text=text, model=None, until=parse_time(text, what=text), previous=False)

    def is_current(self, model: str) -> bool:
        """Whether it is the current result of this model, which would be compared with itself."""
        return self.model == model and self.until is None and not self.previous

    def find(self, lake: Lake, eval_name: str, model: str) -> Point:
        """The point that a result of this model is compared with.

        Raises:
            LakeError: There is none, or it is damaged.
        """
        of_model = self.model or model
        if self.until is not None and self.until.astimezone(UTC).date() > datetime.now(UTC).date():
            raise LakeError(f"the baseline {self.text!r} lies in the future, so every result would be compared with itself")
        found = PointName(model=of_model, until=self.until, previous=self.previous).find(lake, eval_name)
        if found is not None:
            return found
        if self.previous:
            raise LakeError(NO_EARLIER_RESULT)
        when = "" if self.until is None else f" of {self.until.astimezone(UTC):%Y-%m-%d %H:%M} UTC or before"
        raise LakeError(f"the baseline {self.text!r}: {of_model} has no result of {eval_name}{when}")
