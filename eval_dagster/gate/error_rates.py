"""Counts the errors of a result, among the samples that earlier results could evaluate."""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from eval_dagster.results.materializations import Materialization


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
    current: Materialization,
    baseline: Materialization | None,
    metric: str,
    *,
    most: float,
    anchor: Materialization | None = None,
    accepted: Materialization | None = None,
) -> ErrorRate:
    """Count the errors of a metric in three groups of samples. Returns the first group with a share above `most`, or else the first of all.

    The groups are the asked samples that the baseline could evaluate, the asked samples that the anchor could evaluate, and all samples.
    The last group leaves out samples with errors in a state that a person accepted. Raises `LakeError` if scores were deleted.
    """
    asked, errors = asked_samples(current, metric)
    rates: list[ErrorRate] = []
    for before, what in ((baseline, "samples that the baseline could evaluate"), (anchor, "samples that the anchor could evaluate")):
        asked_before, errors_before = asked_samples(before, metric) if before else (set(), set())
        if common := asked & (asked_before - errors_before):
            rates.append(ErrorRate(errors=len(errors & common), samples=len(common), what=what))
    known = asked_samples(accepted, metric)[1] if accepted else set()
    rates.append(ErrorRate(errors=len(errors - known), samples=len(asked - known), what="samples"))
    return next((rate for rate in rates if rate.share > most), rates[0])


def asked_samples(point: Materialization, metric: str) -> tuple[set[str], set[str]]:
    """The samples of a metric, and the samples among them with errors.

    An error has the name of the metric. A value has that name, or that name with a slash and the name of a part.
    """
    name, table = metric.partition("/")[0], point.asked_table
    names = [each for each in pc.unique(table["metric"]).to_pylist() if each.partition("/")[0] == name]
    of_metric = table.filter(pc.is_in(table["metric"], value_set=pa.array(names, pa.string())))
    failed = of_metric["sample_id"].filter(of_metric["error"].is_valid())
    return set(of_metric["sample_id"].to_pylist()), set(failed.to_pylist())


def n_lost(current: Materialization, before: Materialization, metric: str) -> int:
    """The number of samples that are errors in the current result and were none before. Raises `LakeError` if scores were deleted."""
    (asked, errors), (asked_before, errors_before) = asked_samples(current, metric), asked_samples(before, metric)
    return len(asked & errors & (asked_before - errors_before))
