"""The order in which a night that may stop early asks samples, its plan, and what its looks say.

The order is drawn at random once for all nights: samples of each subject by their hashes, all subjects in step. So each part is a random
sample of the eval, and a night that stops at the same look as another one has asked the same samples.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path

import pyarrow.compute as pc

from eval_dagster.lake.files import Lake
from eval_dagster.lake.format.parquet_files import read_rows
from eval_dagster.lake.records import append, records_of
from eval_dagster.lake.tables.rows import fields_in
from eval_dagster.records.judgements import NightPlan, PlanKey
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
        now: The value of each asked sample; None, or absent, for an error.
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


def read_plans(lake: Lake, suite: str) -> dict[PlanKey, NightPlan]:
    """The plans of a suite. Of several with one key the first counts, since a plan is fixed before the first answer."""
    rows = records_of(lake, TABLE, where=pc.field("suite") == suite)
    plans = [NightPlan(**fields_in(row, NightPlan) | {"looks": tuple(row["looks"] or ())}) for row in rows]
    return {each.key: each for each in sorted(plans, key=lambda each: each.planned_at, reverse=True)}


def plan_key(current: Materialization, baseline_at: datetime, anchor_at: datetime | None) -> PlanKey:
    """The key of the plan by which a result was asked, with its baseline and its anchor."""
    inputs = current.metrics.info.inputs
    return PlanKey(
        eval=current.eval_name,
        model=current.model,
        prompt_version=inputs["rendered_prompts"],
        model_version=inputs["model"],
        baseline_at=baseline_at,
        anchor_at=anchor_at,
    )


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


def known_values(point: Materialization, metric: str) -> dict[str, float]:
    """The value of each sample, without errors. Raises `LakeError` if the scores were deleted."""
    scores = point.scores_of(metric)
    values = zip(scores["sample_id"].to_pylist(), scores["value"].to_pylist(), strict=True)
    return {name: value for name, value in values if value is not None}


def looked_at(plan: NightPlan, current: Materialization, baseline: Materialization, metric: str, *, higher_is_better: bool) -> LookedAt:
    """Repeat the looks of a plan at a result.

    Raises:
        LakeError: Scores or prompts were deleted.
        ValueError: A value is neither 0 nor 1.
    """
    order = prompt_order(current.path_of("prompts"))
    now, before = known_values(current, metric), known_values(baseline, metric)
    n_asked = len(order) - int(current.metrics.info.counts.get(NOT_ASKED, 0))
    if n_asked not in plan.looks:
        raise ValueError(f"{n_asked} samples were asked; expected the number of a look: {', '.join(map(str, plan.looks))}")
    looks = [each for each in plan.looks if each <= n_asked]
    return LookedAt(plan=plan, counts=counts_at(looks, order, now, before, higher_is_better=higher_is_better))


def prompt_order(prompts: Path) -> list[str]:
    """The order in which the samples of a file of prompts are asked."""
    return sample_order([(row["sample_id"], row["subject"]) for row in read_rows(prompts, ["sample_id", "subject"])])
