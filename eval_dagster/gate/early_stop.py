"""Stops the evals of a suite as soon as their verdicts are known (`gate: {stop: early}`).

Before the first answer of a night, a plan says at how many samples each eval is looked at, and by which levels. At each look the answers so
far are scored and compared with the same samples of the baseline, by the tests of `statistics.sequential`.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property

from eval_dagster.errors import LakeUnreachableError
from eval_dagster.gate.looks import counts_at, design_of, is_part, known_values, prompt_order, record
from eval_dagster.gate.partition import Partition as JudgedPartition
from eval_dagster.gate.planning import flips_of
from eval_dagster.gate.pooling import Pooling
from eval_dagster.gate.proof import MANY, SHARE, SHARE_OF_MANY
from eval_dagster.gate.scored_again import Rescorer
from eval_dagster.gate.standings import Baseline, Standings, night_level
from eval_dagster.lake.files import LakeFile
from eval_dagster.lake.format.parquet_files import read_table
from eval_dagster.lake.tables.columns import PromptRow, ResponseRow
from eval_dagster.project import Project
from eval_dagster.records.judgements import NightPlan
from eval_dagster.results.materializations import Materialization, metric_versions, overall
from eval_dagster.stages.looks import Ending
from eval_dagster.stages.partition import Partition
from eval_dagster.stages.rescoring import answers_vary
from eval_dagster.stages.scored_answers import ScoredAnswers
from eval_dagster.stages.scores import headline
from eval_dagster.stages.scores import metric_versions as versions_of_metrics
from eval_dagster.statistics.sequential import Counts, Design, look_sizes

log = logging.getLogger(__name__)
_TESTS = 2
"""Tests of an eval and a model: against the baseline, and against the anchor."""


@dataclass(frozen=True)
class EarlyStop:
    """The gate of a suite that may stop evals early, as the stage of the answers uses it."""

    project: Project
    suite: str
    run_id: str
    _now: datetime = field(default_factory=lambda: datetime.now(UTC))

    @classmethod
    def of(cls, project: Project, suite: str | None, run_id: str) -> "EarlyStop | None":
        """The gate of a suite. None if it asks all samples."""
        return cls(project, suite, run_id) if suite is not None and project.suite(suite).gate.stop == "early" else None

    def looks_at(self, partition: Partition, prompts: LakeFile) -> "ScoredLooks | None":
        """Plan how an eval is asked, and store the plan. None if all its samples are asked at once."""
        try:
            plan, states = self._plan(partition, prompts)
            known = self._standings.night_plans.setdefault(plan.key, plan)
            if known is plan:
                record(self.project.lake, plan)
            plan = known
            if plan.reason is not None or not states:
                return None
            gate = self.project.suite(self.suite).gate
            return ScoredLooks(
                partition=partition,
                prompts=prompts,
                plan=plan,
                before=[known_values(each, str(plan.metric)) for each in states],
                stops_at_falls=not (gate.confirm and answers_vary(self.project, partition.model)),
                smallest_difference=gate.smallest_difference,
                max_error_rate=gate.max_error_rate,
            )
        except LakeUnreachableError:
            raise
        except Exception as error:  # the gate reports it; without a baseline that can be read nothing can stop
            log.warning("%s is asked in full, since its looks cannot be planned: %s", partition, error)
            return None

    @cached_property
    def _standings(self) -> Standings:
        return Standings(self.project.lake, self.suite)

    @cached_property
    def _rescorer(self) -> Rescorer:
        return Rescorer(self.project)

    def _plan(self, partition: Partition, prompts: LakeFile) -> tuple[NightPlan, list[Materialization]]:
        """The plan of an eval and a model, with the states that it is compared with: the baseline, and the anchor if it is another one."""
        project, settings = self.project, self.project.suite(self.suite)
        gate, eval_name, model = settings.gate, partition.eval_name, partition.model
        baseline = Baseline.parse(settings.baseline, list(project.config.models))
        level = night_level(settings, self._standings, baseline, self._now)
        pooling = Pooling(project, self.suite, self._standings)
        judged = JudgedPartition(project, self.suite, gate, level, eval_name, model, baseline, self._standings, self._rescorer, pooling)
        plan = NightPlan(
            suite=self.suite,
            eval=eval_name,
            model=model,
            run_id=self.run_id,
            planned_at=self._now,
            prompt_version=prompts.info.version,
            model_version=project.handle(model).version(),
        )
        metric = headline(partition.task)
        before, anchor, anchor_at = judged.states(metric.NAME)
        if before is None:
            known_late = "`baseline: previous` names a state only once the result is there, so that no look can compare"
            return replace(plan, reason=known_late if baseline.previous else "there is no judged result to compare it with"), []
        plan = replace(plan, metric=metric.NAME, baseline_materialized_at=before.materialized_at, anchor_materialized_at=anchor_at)
        now = versions_of_metrics(partition.task).get(metric.NAME)
        is_anchored = anchor_at is None or (anchor is not None and metric_versions(anchor).get(metric.NAME) == now)
        sources = read_table(prompts.path, ["source_id"])["source_id"]
        count, margin = len(sources), None
        if gate.critical == "all" or eval_name in gate.critical:
            own = gate.margin.get(eval_name) if isinstance(gate.margin, dict) else gate.margin
            margin = own if own is not None else SHARE if count < MANY else SHARE_OF_MANY
        reason = self._why_whole(judged, before, metric.NAME, is_share=metric.IS_PROPORTION)
        if reason is None and len(sources.unique()) < count:
            reason = "rows of the dataset give several prompts, which are scored together"
        sizes = look_sizes(count, margin or SHARE)
        if reason is None and len(sizes) < 2:
            reason = f"{count} samples are too few to look at a part of them"
        if reason is not None:
            return replace(plan, reason=reason), []
        flips = flips_of(judged.points, metric.NAME, project, eval_name, level)
        evals, models = project.select(suite=self.suite)
        design = Design.of(count, margin=margin or SHARE, fall_level=level / 2 / (_TESTS * len(evals) * len(models)), flips=flips)
        return (
            replace(
                plan,
                looks=design.looks,
                margin=margin if is_anchored else None,
                fall_level=design.fall_level,
                proof_power=design.proof_power,
                flips=flips,
            ),
            [before] if anchor is None or not is_anchored else [before, anchor],
        )

    def _why_whole(self, judged: JudgedPartition, before: Materialization, metric: str, *, is_share: bool) -> str | None:
        """Why all samples are asked. None if the eval may stop early."""
        gate = judged.gate
        row = overall(before).get(metric)
        since_full = 0
        for point in reversed(judged.points):
            if not is_part(point):
                break
            since_full += 1
        if gate.metrics == "all" or set(judged.standings.metrics(judged.key)) - {metric}:
            return "the suite is judged by several metrics"
        if not is_share or row is None or row["aggregation"] != "micro":
            return f"{metric} is not the share of right answers among all samples"
        if judged.is_held(metric):
            return "it is red, and a part of the samples would not show whether it still is"
        if is_part(before):
            return "the state that it is compared with was stopped early"
        if since_full + 1 >= gate.full_every:
            return f"one of {gate.full_every} results is asked in full (full_every)"
        if metric_versions(before).get(metric) != versions_of_metrics(self.project.task(judged.eval_name)).get(metric):
            return "the code of the metric has changed"
        scores = before.scores_of(metric)
        if len(scores["cluster"].unique()) < len(scores):
            return "its samples come in clusters"
        return None


@dataclass(kw_only=True)
class ScoredLooks:
    """The looks at the answers of one eval and model."""

    partition: Partition
    prompts: LakeFile
    plan: NightPlan
    before: Sequence[Mapping[str, float]]
    """The value of each sample in the baseline, and in the anchor if it is another state."""
    stops_at_falls: bool
    """Whether a fall stops it. A fall that fresh answers have to confirm does not, since they may refute it."""
    smallest_difference: float
    max_error_rate: float
    _looks: int = 0
    _is_broken: bool = False

    @property
    def n_parts(self) -> int:
        """Parts, of which the last is asked without a look."""
        return len(self.plan.looks)

    @property
    def rest(self) -> str:
        """Empty: all samples are in some part."""
        return ""

    @property
    def most(self) -> None:
        """None: it is no estimate."""
        return None

    def part(self, number: int) -> list[str]:
        """The samples that are asked before a look, from 0."""
        starts = (0, *self.plan.looks)
        return self._order[starts[number] : starts[number + 1]]

    @cached_property
    def _order(self) -> list[str]:
        return prompt_order(self.prompts.path)

    @cached_property
    def _answers(self) -> ScoredAnswers:
        return ScoredAnswers(partition=self.partition, prompts=self.prompts, metric=str(self.plan.metric))

    def take(self, prompt: PromptRow, response: ResponseRow) -> None:
        """Take an answer."""
        self._answers.take(prompt, response)

    def look(self) -> Ending | None:
        """Score the answers so far. An ending if the result is worse than the baseline, or proven not to be worse."""
        self._looks += 1
        if not self._is_broken:
            try:
                self._answers.score()
                return self._ending()
            except Exception as error:  # the stage of the scores reports it
                self._is_broken = True
                log.warning("%s is asked in full, since its answers cannot be scored at a look: %s", self.partition, error)
        return None

    def _ending(self) -> Ending | None:
        looks, rises = self.plan.looks[: self._looks], headline(self.partition.task).HIGHER_IS_BETTER
        counts = [counts_at(looks, self._order, self._answers.values, each, higher_is_better=rises) for each in self.before]
        design, last = design_of(self.plan), [of_state[-1] for of_state in counts]
        if any(each.lost > self.max_error_rate * each.n for each in last):
            return None  # the errors make it red, whatever the other samples say
        where = f"look {self._looks} of {len(self.plan.looks)}"
        fall = _fall(last[0])
        if self.stops_at_falls and design.fall(counts[0]).is_fallen and fall > 0 and fall >= self.smallest_difference:
            return Ending(reason=f"worse than its baseline at {where}", ends_all=True)
        if self.plan.margin is not None and all(design.proof_p_value(each) <= design.proof_levels[self._looks - 1] for each in last):
            return Ending(reason=f"not worse (proven) at {where}")
        return None


def _fall(counts: Counts) -> float:
    return (counts.down - counts.up) / max(1, counts.n - counts.lost)
