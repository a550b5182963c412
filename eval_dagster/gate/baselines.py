"""The baseline of a suite, as named in evals.yaml."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from eval_dagster.config.values import LAST_PASSED, PREVIOUS
from eval_dagster.errors import LakeError
from eval_dagster.gate.records import minute
from eval_dagster.lake.files import Lake
from eval_dagster.results.materializations import Materialization, MaterializationName, parse_time


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """The model and the time to compare results with."""

    text: str
    """The text in evals.yaml."""
    model: str | None = None
    """Null: the model of the result."""
    until: datetime | None = None
    previous: bool = False
    last_passed: bool = False

    @classmethod
    def parse(cls, text: str, models: Sequence[str]) -> "Baseline":
        """Read `last_passed`, `previous`, a day or a time, the name of one of the models, or `name@` one of these.

        Raises:
            UsageError: The text has another form.
        """
        if text in (LAST_PASSED, PREVIOUS):
            return cls(text=text, previous=text == PREVIOUS, last_passed=text == LAST_PASSED)
        if text in models or "@" in text:
            name = MaterializationName.parse(text, models)
            return cls(text=text, model=name.model, until=name.until, previous=name.previous)
        return cls(text=text, until=parse_time(text, what=text))

    def is_current(self, model: str) -> bool:
        """Whether the baseline is this model's current result, which would be compared with itself."""
        return self.model == model and self.until is None and not self.previous

    def find(self, lake: Lake, eval_name: str, model: str) -> Materialization | None:
        """The point to compare a result of this model with. For `last_passed`, which depends on judgements, use standings.

        Returns None for `previous` without an earlier state.

        Raises:
            LakeError: The baseline that the suite names does not exist, or is damaged.
        """
        if self.previous and self.model is None:
            return MaterializationName(model=model, previous=True).find(lake, eval_name)
        if self.until is not None and self.until.astimezone(UTC).date() > datetime.now(UTC).date():
            raise LakeError(f"the baseline {self.text!r} lies in the future, so every result would be compared with itself")
        name = MaterializationName(model=self.model or model, until=self.until, previous=self.previous)
        found = name.find(lake, eval_name)
        if found is not None:
            return found
        when = f" of {minute(self.until)} or before" if self.until is not None else " before its last change" if self.previous else ""
        raise LakeError(f"the baseline {self.text!r}: {name.model} has no result of {eval_name}{when}")
