"""Plans samples: the falls that a suite can see, and the samples that it takes to see more, from its own history."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice, product
from typing import Literal

from eval_dagster.errors import EvalDagsterError
from eval_dagster.gate.error_rates import asked_samples
from eval_dagster.gate.looks import is_part
from eval_dagster.gate.proof import default_margin
from eval_dagster.gate.standings import level_of
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.files import Lake
from eval_dagster.project import Project
from eval_dagster.results.comparison import compare_metric
from eval_dagster.results.materializations import Materialization, history, overall, with_rows
from eval_dagster.statistics.paired import Comparison
from eval_dagster.statistics.sample_sizes import (
    power_of_proof,
    samples_to_prove,
    samples_to_prove_mean,
    samples_to_see,
    samples_to_see_mean,
)

MOST_PAIRS = 8
"""Pairs of states from which the flips of an eval are measured, the newest first."""
_FEW_PAIRS = 3
"""Pairs of states from which a night takes its flips, before it asks."""
_SHOWN_DAYS = 1
_CEILING = 0.98
_STEP = 1.02
"""Ratio of two falls that are as good as equal."""
_SMALLEST, _LARGEST = 0.001, 0.5
"""The falls between which limits under a budget are searched, as shares of the range."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """The falls that one eval of a suite sees on one model. Null if it is not known."""

    eval: str
    model: str
    metric: str | None = None
    samples: int = 0
    """Samples of the last result."""
    most: int | None = None
    """Samples that there are, if the eval has no limit."""
    value: float | None = None
    pairs: int = 0
    """Pairs of states from which the flips were measured."""
    flips: float | None = None
    """Share of the samples that differ between two states; null for scores that are not 0 or 1."""
    deviation: float | None = None
    """Standard deviation of a sample's difference between two states."""
    width: float | None = None
    """The largest minus the least value of a sample."""
    spread: float = 1.0
    """Samples that count as one, because samples of a cluster are alike."""
    sees: float | None = None
    """The smallest fall that its last comparison would have seen with the probability 0.8."""
    to_see: int | None = None
    """Samples that it takes to see the fall that was asked for."""
    margin: float | None = None
    to_prove: int | None = None
    """Samples that it takes to prove that a score has not fallen by the margin, with the probability 0.8."""
    proves: float | None = None
    """The probability of a proof with the samples that there are, if nothing changes. Null for scores that are not 0 or 1."""
    seconds: float | None = None
    """Seconds of workers for each sample."""
    cost: float | None = None
    """Cost of each sample, in US dollars."""
    reason: str | None = None
    """Why nothing can be planned."""

    @property
    def is_at_ceiling(self) -> bool:
        """Whether nearly all samples are right, so that a better model cannot show it."""
        return self.flips is not None and self.value is not None and self.value >= _CEILING

    def samples_for(self, fall: float, level: float) -> int | None:
        """The samples that it takes to see a fall, as a share of the range. None if that is not known or too many."""
        if self.flips is not None:
            found = samples_to_see(fall, flips=self.flips, level=level)
        elif self.deviation and self.width is not None:
            found = samples_to_see_mean(fall * self.width, deviation=self.deviation, level=level)
        else:
            return None
        return None if found is None else math.ceil(found * self.spread)


def plan_samples(project: Project, suite: str, fall: float) -> tuple[list[Planned], float]:
    """Plan the samples that it takes to see a fall, for each eval and model of a suite.

    Flips are measured between successive states of a result with different scores. A change of the model, the prompt or the data counts
    too, so that they are an upper bound of the flips of quiet nights.

    Args:
        project: The project.
        suite: Name of the suite.
        fall: The fall, as a share of the metric's range; 0.02 are two points.

    Returns:
        A row for each eval and model, and the two-sided level at which a night judges each of them.

    Raises:
        UsageError: The suite is unknown.
    """
    settings = project.suite(suite)
    evals, models = project.select(suite=suite)
    now = datetime.now(UTC)
    level = level_of(
        settings.gate.alpha, tested_at=now - timedelta(days=_SHOWN_DAYS), now=now, cron=settings.cron, timezone=settings.timezone
    ) / (len(evals) * len(models))
    rows: list[Planned] = []
    for eval_name, model in product(evals, models):
        if not project.is_pair(eval_name, model):
            continue
        try:
            rows.append(_planned(project, suite, eval_name, model, fall=fall, level=level))
        except EvalDagsterError as error:
            rows.append(Planned(eval=eval_name, model=model, reason=str(error)))
    return rows, level


def _planned(project: Project, suite: str, eval_name: str, model: str, *, fall: float, level: float) -> Planned:
    row = Planned(eval=eval_name, model=model)
    points = [point for point in with_rows(history(project.lake, eval_name, model)) if point.has_scores]
    if not points:
        return replace(row, reason="it has no result yet")
    last = points[-1]
    metric = next((name for name, each in overall(last).items() if each["is_headline"]), None)
    if metric is None:
        return replace(row, reason="it has no headline metric")
    asked = len(asked_samples(last, metric)[0])
    most = asked if project.eval(eval_name).limit is None else None
    seconds, cost = _price(project.lake, last)
    row = replace(row, metric=metric, samples=asked, most=most, value=overall(last)[metric]["value"], seconds=seconds, cost=cost)
    found = [each for each in _compared(points, metric, project, eval_name, level) if each.n_common]
    if not found:
        return replace(row, reason="it has one state so far, and flips are measured between two with different scores; evaluate it again")
    newest, n = found[0], sum(each.n_common for each in found)
    metrics, gate = project.task(eval_name).METRICS, project.suite(suite).gate
    is_share = any(each.IS_PROPORTION and metric.partition("/")[0] == each.NAME for each in metrics)
    own = gate.margin.get(eval_name) if isinstance(gate.margin, dict) else gate.margin
    margin = default_margin(newest, is_share=is_share, n_samples=asked) if own is None else own
    row = replace(row, pairs=len(found), sees=newest.min_detectable, margin=margin)
    if newest.are_shares:
        flips = sum((each.n_higher or 0) + (each.n_lower or 0) for each in found) / n
        row = replace(row, flips=flips, spread=max(1.0, *(_design(each) for each in found)), width=1.0)
        to_prove = None if margin is None else samples_to_prove(margin, flips=flips)
        proves = None if margin is None else power_of_proof(max(1, int(asked / row.spread)), margin=margin, flips=flips)
    else:
        deviation = math.sqrt(sum((each.stderr or 0.0) ** 2 * each.n_common**2 for each in found) / n)
        row, proves = replace(row, deviation=deviation, width=newest.width), None
        if newest.width is None or not deviation:
            reason = "its metric has no range" if newest.width is None else "its scores do not vary between two states"
            return replace(row, reason=reason)
        to_prove = None if margin is None else samples_to_prove_mean(margin, deviation=deviation, width=newest.width)
    return replace(
        row,
        to_see=row.samples_for(fall, level),
        to_prove=None if to_prove is None else math.ceil(to_prove * row.spread),
        proves=proves,
    )


def flips_of(points: Sequence[Materialization], metric: str, project: Project, eval_name: str, level: float) -> float | None:
    """The share of the samples that flip between successive states with different scores. None if no two such states are known."""
    known = [point for point in with_rows(points) if point.has_scores]
    pairs = islice(_compared(known, metric, project, eval_name, level), _FEW_PAIRS) if known else ()
    found = [each for each in pairs if each.n_common]
    n = sum(each.n_common for each in found)
    return sum((each.n_higher or 0) + (each.n_lower or 0) for each in found) / n if n else None


def limits_within(
    rows: Sequence[Planned], *, level: float, budget: float, unit: Literal["seconds", "cost"]
) -> tuple[float, dict[str, int]] | None:
    """The smallest fall that evals can see together under a budget for a night, and the samples of each eval.

    An eval that has fewer samples than that takes is asked whole, and sees larger falls alone. If all have, the budget is not used up.

    Args:
        rows: The rows of `plan_samples`.
        level: Its level.
        budget: Seconds of workers, or US dollars.
        unit: The unit of the budget.

    Returns:
        None if no eval has a known price, or if the budget is too small for any fall.
    """
    priced = [row for row in rows if getattr(row, unit) is not None and row.samples_for(_LARGEST, level) is not None]

    def limits(fall: float) -> dict[str, int] | None:
        found: dict[str, int] = {}
        for row in priced:
            needed = row.samples_for(fall, level)
            if needed is None:
                return None
            found[row.eval] = max(found.get(row.eval, 0), needed)
        for row in priced:
            found[row.eval] = min(found[row.eval], row.most or found[row.eval])
        return found if sum(found[row.eval] * getattr(row, unit) for row in priced) <= budget else None

    low, high = _SMALLEST, _LARGEST
    if not priced or limits(high) is None:
        return None
    while high / low > _STEP:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if limits(middle) is not None else (middle, high)
    return high, limits(high) or {}


def _design(found: Comparison) -> float:
    """How many samples count as one: the variance of the mean with clusters divided by its variance without."""
    if not found.are_shares or found.n_clusters == found.n_common or not found.stderr:
        return 1.0
    up, down, n = found.n_higher or 0, found.n_lower or 0, found.n_common
    variance = (up + down) / n - ((up - down) / n) ** 2
    return max(1.0, found.stderr**2 * n / variance) if variance > 0 else 1.0


def _compared(points: Sequence[Materialization], metric: str, project: Project, eval_name: str, level: float) -> Iterator[Comparison]:
    """The comparisons of successive states with different scores, the newest first."""
    points = [point for point in points if not is_part(point)]
    if not points:
        return
    metrics, later, count = project.task(eval_name).METRICS, points[-1], 0
    for point in reversed(points[:-1]):
        if count >= MOST_PAIRS:
            return
        if point.scores_version == later.scores_version or metric not in overall(point):
            continue
        found = compare_metric(later, point, metric, metrics, alpha=level)
        if found is not None:
            count += 1
            yield found
        later = point


def _price(lake: Lake, point: Materialization) -> tuple[float | None, float | None]:
    """Seconds of workers and dollars for each sample of a result. Null if they are not known."""
    found = read_rows(
        lake,
        "select sum(worker_s) as seconds, sum(cost) as cost, count(distinct sample_id) as n from (select distinct on (request_id) * "
        "from responses where eval = $eval and model = $model)",
        {"eval": point.eval_name, "model": point.model},
    )
    n = found[0]["n"] if found else 0
    return (None, None) if not n else (_each(found[0]["seconds"], n), _each(found[0]["cost"], n))


def _each(total: float | None, n: int) -> float | None:
    return None if total is None else total / n
