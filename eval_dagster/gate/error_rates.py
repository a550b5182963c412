"""The share of samples that are errors: among those that the baseline or the anchor could evaluate, and among all."""

from collections.abc import Iterator
from dataclasses import dataclass

from eval_dagster.gate.materializations import Point


@dataclass(frozen=True, kw_only=True)
class ErrorRate:
    """Errors among samples."""

    errors: int
    samples: int
    what: str
    """The samples in words."""

    @property
    def share(self) -> float:
        """The share of errors; 0 without samples."""
        return self.errors / self.samples if self.samples else 0.0


def error_rate(
    current: Point, baseline: Point | None, metric: str, *, most: float, anchor: Point | None = None, accepted: Point | None = None
) -> ErrorRate:
    """Count the errors of a metric. Of three counts, the first with a share above `most`; the first of all if there is none.

    The counts are among the samples that were asked now and that the baseline could evaluate, among those that the anchor could evaluate,
    and among all, without the samples that are errors in a state that a person accepted. Raises `LakeError` if scores were deleted.
    """
    rates = list(_rates(current, baseline, metric, anchor, accepted))
    return next((rate for rate in rates if rate.share > most), rates[0])


def _rates(current: Point, baseline: Point | None, metric: str, anchor: Point | None, accepted: Point | None) -> Iterator[ErrorRate]:
    asked, errors = asked_samples(current, metric)
    for before, what in ((baseline, "samples that the baseline could evaluate"), (anchor, "samples that the anchor could evaluate")):
        asked_before, errors_before = asked_samples(before, metric) if before else (set(), set())
        if common := asked & (asked_before - errors_before):
            yield ErrorRate(errors=len(errors & common), samples=len(common), what=what)
    known = asked_samples(accepted, metric)[1] if accepted else set()
    yield ErrorRate(errors=len(errors - known), samples=len(asked - known), what="samples")


def asked_samples(point: Point, metric: str) -> tuple[set[str], set[str]]:
    """The samples of a metric, and those of them that are errors.

    An error has the name of the metric. A value has that name, or that name with a slash and the name of a part.
    """
    name = metric.partition("/")[0]
    rows = [row for each, by_sample in point.scores_by_metric.items() if each.partition("/")[0] == name for row in by_sample.values()]
    return {row["sample_id"] for row in rows}, {row["sample_id"] for row in rows if row["error"] is not None}
