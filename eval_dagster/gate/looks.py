"""The order in which a night that may stop early asks samples, its plan, and what its looks say.

The order is drawn at random once for all nights: samples of each subject by their hashes, all subjects in step. So each part is a random
sample of the eval, and a night that stops at the same look as another one has asked the same samples.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from eval_dagster.errors import LakeError
from eval_dagster.lake.files import Lake
from eval_dagster.lake.format.parquet_files import read_rows, read_table
from eval_dagster.lake.lineage import Inputs
from eval_dagster.lake.records import append, records_of
from eval_dagster.lake.tables.columns import MetricRow, ResponseRow, ScoreRow
from eval_dagster.lake.tables.rows import fields_in
from eval_dagster.records.judgements import NightPlan
from eval_dagster.results.materializations import Materialization
from eval_dagster.stages.looks import NOT_ASKED
from eval_dagster.statistics.paired import Comparison
from eval_dagster.statistics.sequential import Counts, Design
from eval_dagster.versions.hashes import stable_hash

TABLE = "night_plans"
_SEED = "samples of a night that may stop early"
_DIGITS = 12


def sample_order(samples: Sequence[tuple[str, str | None]]) -> list[str]:
    """The order in which samples are asked, by their ids and subjects. It does not depend on the order in which they are given."""
    by_subject: dict[str | None, list[tuple[str, str]]] = defaultdict(list)
    for name, subject in samples:
        by_subject[subject].append((stable_hash([_SEED, name]), name))
    placed: list[tuple[float, str, str]] = []
    for subject, members in by_subject.items():
        first = int(stable_hash([_SEED, subject])[:_DIGITS], 16) / 16**_DIGITS  # or small subjects would all be asked at one time
        placed += [((rank + first) / len(members), digest, name) for rank, (digest, name) in enumerate(sorted(members))]
    return [name for _, _, name in sorted(placed)]


def counts_at(
    looks: Sequence[int], order: Sequence[str], now: Mapping[str, float | None], before: Mapping[str, float], *, higher_is_better: bool
) -> list[Counts]:
    """The counts at each look, of a metric whose values are 0 and 1.

    Args:
        looks: Samples that were asked up to each look.
        order: All samples, in the order in which they are asked.
        now: The value of each asked sample; None for an error.
        before: The value of each sample in the earlier result, without its errors.
        higher_is_better: Whether 1 is the better value.

    Raises:
        ValueError: A value is neither 0 nor 1.
    """
    found: list[Counts] = []
    n = up = down = lost = start = 0
    for end in looks:
        for name in order[start:end]:
            if name not in before:
                continue
            value, earlier = now.get(name), before[name]
            if value not in (0, 1, None) or earlier not in (0, 1):
                raise ValueError(f"found the values {value} and {earlier} of the sample {name}; expected 0 or 1")
            n += 1
            lost += value is None
            if value is not None and value != earlier:
                is_rise = (value > earlier) == higher_is_better
                up, down = up + is_rise, down + (not is_rise)
        found.append(Counts(n=n, up=up, down=down, lost=lost))
        start = end
    return found


def record(lake: Lake, plan: NightPlan) -> None:
    """Store a plan, before the first answer."""
    append(lake, TABLE, [asdict(plan)], plan.run_id)


def read_plans(lake: Lake, suite: str) -> dict[tuple[object, ...], NightPlan]:
    """The plans of a suite by what they are for. The first one counts, since a plan is fixed before the first answer."""
    rows = records_of(lake, TABLE, where=pc.field("suite") == suite)
    plans = [NightPlan(**fields_in(row, NightPlan) | {"looks": tuple(row["looks"] or ())}) for row in rows]
    return {each.key: each for each in sorted(plans, key=lambda each: each.planned_at, reverse=True)}


def key_of_plan(suite: str, current: Materialization, baseline_at: datetime, anchor_at: datetime | None) -> tuple[object, ...]:
    """What the plan of a result is for, with its baseline and its anchor."""
    inputs = current.metrics.info.inputs
    plan = NightPlan(
        suite=suite,
        eval=current.eval_name,
        model=current.model,
        run_id="",
        planned_at=current.materialized_at,
        prompt_version=inputs["rendered_prompts"],
        model_version=inputs["model"],
        baseline_materialized_at=baseline_at,
        anchor_materialized_at=anchor_at,
    )
    return plan.key


def is_part(point: Materialization) -> bool:
    """Whether a result was stopped early, so that it has a part of its samples."""
    return bool(point.metrics.info.counts.get(NOT_ASKED))


def design_of(plan: NightPlan) -> Design:
    """The design of a plan that may stop early. A plan without a margin proves nothing."""
    if plan.fall_level is None or plan.proof_power is None:
        raise ValueError(f"the plan of {plan.eval}|{plan.model} asks all samples at once; expected one with looks")
    return Design(looks=plan.looks, margin=plan.margin or 1.0, fall_level=plan.fall_level, proof_power=plan.proof_power)


@dataclass(frozen=True, kw_only=True)
class LookedAt:
    """A result that was asked in looks, at its last one."""

    plan: NightPlan
    counts: Sequence[Counts]
    """Against the baseline, at each look."""

    @property
    def look(self) -> int:
        """The number of its last look, from 1."""
        return len(self.counts)

    @property
    def is_fallen(self) -> bool:
        """Whether a look found it worse than the baseline, at the level of its plan, and it is still worse."""
        last = self.counts[-1]
        return last.down > last.up and design_of(self.plan).fall(self.counts).is_fallen

    @property
    def proof_level(self) -> float:
        """The level at which a p-value is a proof."""
        return design_of(self.plan).proof_levels[self.look - 1]

    def on(self, found: Comparison) -> Comparison:
        """The comparison with the baseline, with the p-value and the interval of a test that is repeated at looks.

        A result that was stopped before its last look for another reason than a fall has the p-value 1: its own test has not ended. No look
        stops a result because it rose, so that one is tested at the last look alone, as if all had been asked at once.
        """
        design, last = design_of(self.plan), self.counts[-1]
        test, is_last = design.fall(self.counts), self.look == len(design.looks)
        if is_last and last.up >= last.down:
            return found
        p_value = min(1.0, 2 * test.p_value) if test.is_fallen or is_last else 1.0
        width = design.width_at(self.look - 1)
        low, high = (
            None if end is None or found.difference is None else min(1.0, max(-1.0, found.difference + width * (end - found.difference)))
            for end in (found.ci_low, found.ci_high)
        )
        return replace(found, p_value=p_value, test="sequential McNemar", ci_low=low, ci_high=high)


def asked_values(point: Materialization, metric: str) -> dict[str, float | None]:
    """The value of each sample that was asked; None for an error. Raises `LakeError` if the scores were deleted."""
    name = metric.partition("/")[0]
    errors = point.asked_table.filter((pc.field("metric") == name) & pc.field("error").is_valid())
    found: dict[str, float | None] = dict.fromkeys(errors["sample_id"].to_pylist())
    scores = point.scores_of(metric)
    return found | dict(zip(scores["sample_id"].to_pylist(), scores["value"].to_pylist(), strict=True))


def looked_at(plan: NightPlan, current: Materialization, baseline: Materialization, metric: str, *, higher_is_better: bool) -> LookedAt:
    """What the looks of a plan say about a result.

    Raises:
        LakeError: Scores or prompts were deleted.
        ValueError: A value is neither 0 nor 1.
    """
    order = prompt_order(current.path_of("prompts"))
    now = asked_values(current, metric)
    before = {name: value for name, value in asked_values(baseline, metric).items() if value is not None}
    n_asked = len(order) - int(current.metrics.info.counts.get(NOT_ASKED, 0))
    if n_asked not in plan.looks:
        raise ValueError(f"{n_asked} samples were asked; expected the number of a look: {', '.join(map(str, plan.looks))}")
    looks = [each for each in plan.looks if each <= n_asked]
    return LookedAt(plan=plan, counts=counts_at(looks, order, now, before, higher_is_better=higher_is_better))


def prompt_order(prompts: Path) -> list[str]:
    """The order in which the samples of a file of prompts are asked."""
    return sample_order([(row["sample_id"], row["subject"]) for row in read_rows(prompts, ["sample_id", "subject"])])


@dataclass(frozen=True, kw_only=True)
class AskedPart(Materialization):
    """An earlier result without the samples that a later one, which was stopped early, has not asked."""

    whole: Materialization
    left_out: pa.Array
    """The ids of the samples that were not asked."""

    @classmethod
    def like(cls, whole: Materialization, later: Materialization) -> Materialization:
        """The part of `whole` that `later` has asked; all of it if `later` was not stopped. Raises `LakeError` if its prompts are gone."""
        if not is_part(later):
            return whole
        prompts, asked = read_table(later.path_of("prompts"), ["sample_id"])["sample_id"], pc.unique(later.asked_table["sample_id"])
        left_out = pc.unique(prompts.filter(pc.invert(pc.is_in(prompts, value_set=asked))))
        return cls(lake=whole.lake, eval_name=whole.eval_name, model=whole.model, metrics=whole.metrics, whole=whole, left_out=left_out)

    @property
    def scores_version(self) -> str:
        """Hash of the scores of the whole result."""
        return self.whole.scores_version

    @property
    def has_scores(self) -> bool:
        """Whether the scores are still in the lake."""
        return self.whole.has_scores

    @property
    def scored_by(self) -> Mapping[str, str]:
        """Versions of the code that scored it."""
        return self.whole.scored_by

    @cached_property
    def metric_rows(self) -> Sequence[MetricRow]:
        """The rows of `metrics` of the whole result."""
        return self.whole.metric_rows

    @cached_property
    def scores(self) -> Sequence[ScoreRow]:
        """The rows of `scores` of the samples."""
        left_out = set(self.left_out.to_pylist())
        return [row for row in self.whole.scores if row["sample_id"] not in left_out]

    def score_tables(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Columns of its scores, a part of the rows at a time."""
        names = list(dict.fromkeys([*columns, "sample_id"]))
        for table in self.whole.score_tables(names):
            yield table.filter(pc.invert(pc.is_in(table["sample_id"], value_set=self.left_out))).select(list(columns))

    @cached_property
    def inputs(self) -> Inputs:
        """Its samples, with their rows and prompts."""
        found = replace(self.whole.inputs)
        with suppress(LakeError):  # deleted; who asks for them gets the reason
            sources = self.whole.inputs.sources
            vars(found)["sources"] = sources.filter(pc.invert(pc.is_in(sources["sample_id"], value_set=self.left_out)))
        return found

    @cached_property
    def responses(self) -> Mapping[str, ResponseRow]:
        """The responses of the whole result, by sample."""
        return self.whole.responses

    def response_tables(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Columns of the responses of the whole result."""
        return self.whole.response_tables(columns)

    def responses_of(self, samples: Collection[str]) -> Mapping[str, ResponseRow]:
        """The responses to some samples."""
        return self.whole.responses_of(samples)
