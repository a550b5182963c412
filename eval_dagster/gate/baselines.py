"""The baseline of a suite, as evals.yaml names it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from eval_dagster.config.values import LAST_PASSED, PREVIOUS
from eval_dagster.errors import LakeError
from eval_dagster.gate.materializations import Point, PointName, history, n_values, parse_time, point_at, previous_point
from eval_dagster.gate.records import minute
from eval_dagster.gate.standings import Standing
from eval_dagster.lake.files import Lake


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """The model and the time that results are compared with."""

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
            UsageError: It is none of these.
        """
        if text in (LAST_PASSED, PREVIOUS):
            return cls(text=text, previous=text == PREVIOUS, last_passed=text == LAST_PASSED)
        if text in models or "@" in text:
            name = PointName.parse(text, models)
            return cls(text=text, model=name.model, until=name.until, previous=name.previous)
        return cls(text=text, until=parse_time(text, what=text))

    def is_current(self, model: str) -> bool:
        """Whether it is the current result of this model, which would be compared with itself."""
        return self.model == model and self.until is None and not self.previous

    def find(self, lake: Lake, eval_name: str, model: str, standing: Standing) -> Point | None:
        """The point that a result of this model is compared with.

        When the suite judges the eval and the model for the first time, `last_passed` means the state before the last change. Returns
        None for a first result: there is no earlier state, or none that passed or has a value.

        Raises:
            LakeError: The baseline that the suite names does not exist, or is damaged.
        """
        if self.last_passed:
            return self._last_passed(lake, eval_name, model, standing)
        return self._previous(lake, eval_name, model) if self.previous and self.model is None else self._named(lake, eval_name, model)

    def _last_passed(self, lake: Lake, eval_name: str, model: str, standing: Standing) -> Point | None:
        points = history(lake, eval_name, model)
        if standing.baseline_at is None:
            before = None if standing.is_known else previous_point(points)
            return before if before is not None and n_values(before) else None
        found = point_at(points, standing.baseline_at)
        if found is None:
            raise LakeError(
                f"the last result of {eval_name}|{model} that passed, of {minute(standing.baseline_at)}, is damaged or no longer "
                "in the lake; look at the current one, and make it the baseline: "
                f"eval-dagster accept SUITE --eval {eval_name} --model {model} --why ..."
            )
        return found

    def _previous(self, lake: Lake, eval_name: str, model: str) -> Point | None:
        return PointName(model=model, previous=True).find(lake, eval_name)

    def _named(self, lake: Lake, eval_name: str, model: str) -> Point:
        if self.until is not None and self.until.astimezone(UTC).date() > datetime.now(UTC).date():
            raise LakeError(f"the baseline {self.text!r} lies in the future, so every result would be compared with itself")
        name = PointName(model=self.model or model, until=self.until, previous=self.previous)
        found = name.find(lake, eval_name)
        if found is not None:
            return found
        when = f" of {minute(self.until)} or before" if self.until is not None else " before its last change" if self.previous else ""
        raise LakeError(f"the baseline {self.text!r}: {name.model} has no result of {eval_name}{when}")
