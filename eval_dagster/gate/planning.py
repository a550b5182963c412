"""Plans samples and texts: the falls that a suite can see, and what it takes to see more, from its own history."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice, product
from typing import Literal

import numpy as np

from eval_dagster.errors import EvalDagsterError
from eval_dagster.gate.error_rates import asked_samples
from eval_dagster.gate.looks import is_part
from eval_dagster.gate.pooling import Pooling
from eval_dagster.gate.proof import default_margin
from eval_dagster.gate.standings import Standings, level_of
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.files import Lake
from eval_dagster.project import Project
from eval_dagster.results.comparison import compare_metric
from eval_dagster.results.materializations import Materialization, history, overall, with_rows
from eval_dagster.statistics.capacity import Work, fit
from eval_dagster.statistics.paired import Comparison
from eval_dagster.statistics.sample_sizes import (
    power_of_both_proofs,
    power_of_both_proofs_of_mean,
    samples_to_prove,
    samples_to_prove_mean,
    samples_to_see,
    samples_to_see_mean,
    variance_of_difference,
    variance_of_loss,
)

MOST_PAIRS = 8
"""Pairs of states from which the flips of an eval are measured, the newest first."""
_FEW_PAIRS = 3
"""Pairs of states from which a night takes its flips, before it asks."""
_SHOWN_DAYS = 1
_CEILING = 0.98
_NOISE = 0.1
_MOST_TEXTS = 32
_SAVING = 0.9
"""Several texts are proposed if they cost at most this part of what single ones cost, or if there are too few samples."""
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
    texts: int = 1
    """Texts of each prompt now: `num_samples` of the eval."""
    is_share: bool = False
    """Whether the metric is a share of right answers."""
    chance: float | None = None
    """The variance of a sample's difference by the draws of both states with one text each. Null if it is not known."""
    pooled: float = 1.0
    """States that are together the baseline of the next proof, each set of scores by its share."""
    seconds: float | None = None
    """Seconds of workers for each sample."""
    cost: float | None = None
    """Cost of each sample, in US dollars."""
    part_of_prompt: float | None = None
    """The part of `seconds`, or else of `cost`, that the prompt takes, whatever the number of its texts. Null if it is not known."""
    cheapest: "Asked | None" = None
    """The samples and texts that see the fall for the lowest price, if that is not one text of each prompt."""
    reason: str | None = None
    """Why nothing can be planned."""

    @property
    def is_at_ceiling(self) -> bool:
        """Whether nearly all samples are right, so that a better model cannot show it."""
        return self.flips is not None and self.value is not None and self.value >= _CEILING

    @property
    def lasting(self) -> float | None:
        """The variance of a sample's difference that is no chance of draws: V_data. Null if it is not known."""
        if self.chance is None:
            return None
        whole = self.flips if self.flips is not None else (self.deviation or 0.0) ** 2
        return max(0.0, whole - self.chance / self.texts)

    @property
    def is_noise(self) -> bool:
        """Whether the draws alone explain the differences between states: but for a tenth of their variance, or for its standard error.

        The error is at most sqrt(v / n) of n differences between -1 and 1 with the variance v.
        """
        if not self.chance or self.lasting is None or not self.width:
            return False
        whole = self.lasting + self.chance / self.texts
        return self.lasting <= max(_NOISE * whole, self.width * math.sqrt(whole / (self.samples * max(1, self.pairs))))

    @property
    def most_texts(self) -> int:
        """The most texts of a prompt that are worth a thought."""
        return _MOST_TEXTS if self.chance else self.texts

    def price(self, texts: int, unit: Literal["seconds", "cost"]) -> float | None:
        """Seconds of workers, or dollars, for a sample with so many texts. Null if it is not known."""
        now = self.seconds if unit == "seconds" else self.cost
        if now is None or texts == self.texts:
            return now
        return None if self.part_of_prompt is None else now * (self.part_of_prompt + (1 - self.part_of_prompt) * texts / self.texts)

    def most_price(self, texts: int, unit: Literal["seconds", "cost"]) -> float:
        """The same, or what it is at most: if the prompt takes nothing. 0 if nothing is known."""
        known, now = self.price(texts, unit), self.seconds if unit == "seconds" else self.cost
        return (now or 0.0) * texts / self.texts if known is None else known

    def samples_for(self, fall: float, level: float, texts: int | None = None) -> int | None:
        """The samples that it takes to see a fall, as a share of the range, with so many texts of each prompt or as many as now.

        None if that is not known or too many.
        """
        if texts not in (None, self.texts):
            if self.chance is None or self.lasting is None or not self.width:
                return None
            loss = variance_of_loss(fall, right=self.value or 0.0, chance=self.chance) if self.is_share else 0.0
            variance = variance_of_difference(self.lasting, self.chance, texts=texts or 1)
            found = samples_to_see_mean(fall * self.width, deviation=math.sqrt(variance), level=level, loss=loss)
        elif self.flips is not None:
            found = samples_to_see(fall, flips=self.flips, level=level)
        elif self.deviation and self.width is not None:
            found = samples_to_see_mean(fall * self.width, deviation=self.deviation, level=level)
        else:
            return None
        return None if found is None else math.ceil(found * self.spread)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The samples of an eval that are asked in a night."""

    samples: int
    texts: int
    """Texts of each prompt."""


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
    last = next((point for point in reversed(points) if not is_part(point)), None)
    if last is None:
        return replace(row, reason="its results stopped early or are estimates, and it takes one of all samples")
    metric = next((name for name, each in overall(last).items() if each["is_headline"]), None)
    if metric is None:
        return replace(row, reason="it has no headline metric")
    asked = len(asked_samples(last, metric)[0])
    most = asked if project.eval(eval_name).limit is None else None
    seconds, cost = _price(project.lake, last)
    row = replace(row, metric=metric, samples=asked, most=most, value=overall(last)[metric]["value"], seconds=seconds, cost=cost)
    pairs = [each for each in _compared(points, metric, project, eval_name, level) if each.found.n_common]
    if not pairs:
        return replace(row, reason="it has one state so far, and flips are measured between two with different scores; evaluate it again")
    found = [each.found for each in pairs]
    newest, n = found[0], sum(each.n_common for each in found)
    metrics, gate = project.task(eval_name).METRICS, project.suite(suite).gate
    is_share = any(each.IS_PROPORTION and metric.partition("/")[0] == each.NAME for each in metrics)
    own = gate.margin.get(eval_name) if isinstance(gate.margin, dict) else gate.margin
    margin = default_margin(newest, is_share=is_share, n_samples=asked) if own is None else own
    row = replace(row, pairs=len(found), sees=newest.min_detectable, margin=margin, is_share=is_share, texts=_texts(last, metric))
    row = replace(row, pooled=Pooling(project, suite, Standings(project.lake, suite)).size(points, metric))
    if newest.are_shares:
        flips = sum((each.n_higher or 0) + (each.n_lower or 0) for each in found) / n
        row = replace(row, flips=flips, spread=max(1.0, *(_design(each) for each in found)), width=1.0)
    else:
        deviation = math.sqrt(sum((each.stderr or 0.0) ** 2 * each.n_common**2 for each in found) / n)
        row = replace(row, deviation=deviation, width=newest.width)
        if newest.width is None or not deviation:
            reason = "its metric has no range" if newest.width is None else "its scores do not vary between two states"
            return replace(row, reason=reason)
    row = replace(row, chance=_chance(pairs, metric, row.texts), part_of_prompt=_part_of_prompt(project.lake, eval_name, model))
    row = _with_proof(replace(row, to_see=row.samples_for(fall, level)))
    cheapest = cheapest_asked([row], fall, level, "seconds" if seconds is not None else "cost")
    return replace(row, cheapest=cheapest if cheapest is not None and cheapest.texts > max(1, row.texts) else None)


def _with_proof(row: Planned) -> Planned:
    """The row with the samples that prove that nothing fell by the margin, against as many pooled states as there are.

    The baseline and the anchor are two states from the second night without a change on, and the proof is against both.
    """
    if row.margin is None or row.width is None:
        return row
    is_pooled, size = row.pooled > 1 and row.chance is not None, max(1, int(row.samples / row.spread))
    if row.flips is not None and not is_pooled:
        to_prove = samples_to_prove(row.margin, flips=row.flips)
        proves = power_of_both_proofs(size, margin=row.margin, flips=row.flips)
    else:
        variance, states = (row.deviation or 0.0) ** 2, 1.0
        if is_pooled:
            variance = variance_of_difference(row.lasting or 0.0, row.chance or 0.0, texts=row.texts, states=row.pooled)
            states = row.pooled
        deviation = math.sqrt(variance)
        to_prove = samples_to_prove_mean(row.margin, deviation=deviation, width=row.width, states=states)
        proves = power_of_both_proofs_of_mean(size, margin=row.margin, deviation=deviation, width=row.width, states=states)
    return replace(row, to_prove=None if to_prove is None else math.ceil(to_prove * row.spread), proves=proves)


def cheapest_asked(rows: Sequence[Planned], fall: float, level: float, unit: Literal["seconds", "cost"]) -> Asked | None:
    """The samples and texts of an eval that see a fall on all its models for the lowest price. None if no number of samples sees it.

    As long as there are enough samples, the best number of texts is near sqrt(c_s V_pred / (c_r V_data)), with the prices c_s of a prompt
    and c_r of a text. Without prices, several texts are taken only if there are too few samples.
    """
    texts_now = max(row.texts for row in rows)
    found: dict[int, tuple[int, float | None]] = {}
    for texts in sorted({texts_now, *range(1, min(row.most_texts for row in rows) + 1)}):
        needed = [row.samples_for(fall, level, texts) for row in rows]
        prices = [row.price(texts, unit) for row in rows]
        if None not in needed:
            samples = max(each for each in needed if each is not None)
            known = [each for each in prices if each is not None]
            found[texts] = samples, samples * sum(known) if len(known) == len(prices) else None
    most = min((row.most for row in rows if row.most is not None), default=None)
    enough = {texts: each for texts, each in found.items() if most is None or each[0] <= most}
    if not found:
        return None
    if not enough:  # what sees most of all
        now = texts_now if texts_now in found else min(found)
        return Asked(samples=found[now][0], texts=now)
    first = texts_now if texts_now in enough else min(enough)
    priced = {texts: price for texts, (_, price) in enough.items() if price is not None}
    if first in priced and priced:
        best = min(priced, key=lambda texts: priced[texts])
        first = best if priced[best] <= _SAVING * priced[first] else first
    return Asked(samples=enough[first][0], texts=first)


def flips_of(points: Sequence[Materialization], metric: str, project: Project, eval_name: str, level: float) -> float | None:
    """The share of the samples that flip between successive states with different scores. None if no two such states are known."""
    known = [point for point in with_rows(points) if point.has_scores]
    pairs = islice(_compared(known, metric, project, eval_name, level), _FEW_PAIRS) if known else ()
    found = [each.found for each in pairs if each.found.n_common]
    n = sum(each.n_common for each in found)
    return sum((each.n_higher or 0) + (each.n_lower or 0) for each in found) / n if n else None


def limits_within(
    rows: Sequence[Planned], *, level: float, budget: float, unit: Literal["seconds", "cost"]
) -> tuple[float, dict[str, Asked]] | None:
    """The smallest fall that evals can see together under a budget for a night, and the samples and texts of each eval.

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

    of_eval = {name: [row for row in priced if row.eval == name] for name in dict.fromkeys(row.eval for row in priced)}

    def limits(fall: float) -> dict[str, Asked] | None:
        found: dict[str, Asked] = {}
        for name, own in of_eval.items():
            asked = cheapest_asked(own, fall, level, unit)
            if asked is None:
                return None
            most = max(row.most or asked.samples for row in own)
            found[name] = replace(asked, samples=min(asked.samples, most))
        return found if sum(found[row.eval].samples * row.most_price(found[row.eval].texts, unit) for row in priced) <= budget else None

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


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """Two successive states with different scores."""

    later: Materialization
    earlier: Materialization
    found: Comparison


def _compared(points: Sequence[Materialization], metric: str, project: Project, eval_name: str, level: float) -> Iterator[_Pair]:
    """Successive states with different scores, the newest first."""
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
            yield _Pair(later=later, earlier=point, found=found)
        later = point


def _texts(point: Materialization, metric: str) -> int:
    """Texts of each prompt whose mean is the score. 1 if the score is no mean of them."""
    scores = point.scores_of(metric)
    rows = [(value, texts) for value, texts in zip(scores["value"].to_pylist(), scores["text_values"].to_pylist(), strict=True) if texts]
    is_mean = all(None in texts or value is None or math.isclose(value, sum(texts) / len(texts), abs_tol=1e-9) for value, texts in rows)
    return max((len(texts) for _, texts in rows), default=1) if is_mean else 1


def _chance(pairs: Sequence[_Pair], metric: str, texts: int) -> float | None:
    """The variance of a sample's difference between two states by their draws alone, with one text each. None if it is not known.

    It is known from several texts of each prompt, or from states of one version, which differ by their draws alone.
    """
    if texts > 1:
        sides: list[float] = []
        for point in {id(point): point for each in pairs for point in (each.later, each.earlier)}.values():
            values = [each for each in point.scores_of(metric)["text_values"].to_pylist() if each and len(each) > 1 and None not in each]
            sides += [float(np.mean([np.var(each, ddof=1) for each in values]))] if values else []
        return 2 * float(np.mean(sides)) if sides else None
    alike = [each.found for each in pairs if each.later.versions == each.earlier.versions]
    n = sum(each.n_common for each in alike)
    if not n:
        return None
    return (
        sum(
            float((each.n_higher or 0) + (each.n_lower or 0)) if each.are_shares else (each.stderr or 0.0) ** 2 * each.n_common**2
            for each in alike
        )
        / n
    )


def _part_of_prompt(lake: Lake, eval_name: str, model: str) -> float | None:
    """The part of an eval's seconds or dollars that its prompts take, by rates that are fitted to all answers of the model."""
    found = read_rows(
        lake,
        "with answers as (select distinct on (eval, request_id) eval, prompt_tokens, output_tokens, worker_s, cost from responses "
        "where model = $model and error is null), parts as (select *, ntile(4) over (partition by eval order by output_tokens) as part "
        "from answers) select eval, count(*) as requests, sum(prompt_tokens)::double as tokens_read, "
        "sum(output_tokens)::double as tokens_written, sum(worker_s) as seconds, sum(cost) as cost from parts group by eval, part",
        {"model": model},
    )
    rows = [each for each in found if each["tokens_read"] is not None and each["tokens_written"]]
    unit = "seconds" if any(each["seconds"] for each in rows) else "cost"
    known = {
        (each["eval"], place): (
            Work(requests=each["requests"], tokens_read=each["tokens_read"], tokens_written=each["tokens_written"]),
            each[unit],
        )
        for place, each in enumerate(rows)
        if each[unit]
    }
    own = [work for (name, _), (work, _) in known.items() if name == eval_name]
    if not own or len(known) < 2:
        return None
    rates = fit(list(known.values()))
    whole = sum(rates.seconds(work) for work in own)
    return 1 - rates.written_s * sum(work.tokens_written for work in own) / whole if whole > 0 else None


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
