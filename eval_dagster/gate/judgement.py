"""Judges a suite: compares each result with its baseline, and with the anchor of its drift.

A result from before the last evaluation, which failed, is not judged.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from itertools import product

from eval_dagster.config.schema import SuiteConfig
from eval_dagster.errors import EvalDagsterError, TaskDefinitionError, UsageError
from eval_dagster.gate.aggregates import AggregateJudge, decide_aggregates, with_accepted_evals, with_held_states
from eval_dagster.gate.decision import Finding, decide_beside, has_test
from eval_dagster.gate.drift import with_drift
from eval_dagster.gate.partition import Partition
from eval_dagster.gate.pooling import Pooling
from eval_dagster.gate.proof import supporting_p_value
from eval_dagster.gate.records import NO_RESULT, GateResult, minute
from eval_dagster.gate.results import find_looks, known_looks
from eval_dagster.gate.scored_again import Rescorer
from eval_dagster.gate.standings import Baseline, Standings, night_level
from eval_dagster.lake.records import read_attempts
from eval_dagster.lake.tables.events import Attempt
from eval_dagster.project import Project
from eval_dagster.records.judgements import Look, Regression, Verdict
from eval_dagster.stages.partition import STAGES, partition_key
from eval_dagster.stages.rescoring import answers_vary
from eval_dagster.stages.scores import headline

_ORDER = list(STAGES)


class Attempts:
    """How each eval was last evaluated with each model."""

    def __init__(self, attempts: Sequence[Attempt], *, since: datetime | None = None) -> None:
        """Take attempts, the oldest first. With `since`, only attempts that ended at or after this time count."""
        self._since = since
        self._by_partition: dict[tuple[str, str], list[Attempt]] = defaultdict(list)
        for attempt in attempts:
            if since is None or attempt.finished_at >= since:
                self._by_partition[attempt.eval, attempt.model].append(attempt)

    def problem(self, eval_name: str, model: str) -> str | None:
        """The reason that the current result is not from the last evaluation. None if it is.

        A failure counts until the failed stage, or a later one, succeeds. So does a limit that kept requests from being sent.
        """
        attempts = self._by_partition[eval_name, model]
        failure: Attempt | None = None
        for attempt in attempts:
            if attempt.status != "ok":
                failure = attempt
            elif failure is not None and _ORDER.index(attempt.stage) >= _ORDER.index(failure.stage):
                failure = None
        if failure is not None:
            how = f"failed at {failure.stage}" if failure.status == "failed" else "was not evaluated"
            return f"{how} on {minute(failure.finished_at)}: {failure.message}"
        if self._since is not None and not any(attempt.stage == _ORDER[-1] for attempt in attempts):
            return f"was not evaluated in this run (since {minute(self._since)}): the last result, if there is one, is older"
        return None


def excused(result: GateResult | None, attempts: Sequence[Attempt]) -> set[str]:
    """The beginnings, before the colon, of the failure messages that a suite tolerates.

    They belong to accepted gaps and to gaps that `require` allows. A message begins with the stage, and the eval with or without a model.
    Without a judgement, none is tolerated.
    """
    rows = result.regressions if result else ()
    gaps = [row for row in rows if row.verdict is Verdict.ACCEPTED_GAP or (result and row.is_gap and row not in result.missing)]
    known = {(row.eval, row.model) for row in gaps}
    failed = [each for each in attempts if each.status == "failed"]
    counted = {each.eval for each in failed if (each.eval, each.model) not in known}
    found = [each for each in failed if (each.eval, each.model) in known]
    snapshots = {f"{each.stage} {each.eval}" for each in found if each.eval not in counted}
    return {f"{each.stage} {partition_key(each.eval, each.model)}" for each in found} | snapshots


def require_sensible_gate(project: Project, suite: str) -> None:
    """Raise `UsageError` if a metric of the suite cannot differ by more than `smallest_difference`, or by more than its margin.

    An unknown range is accepted.
    """
    gate = project.suite(suite).gate
    for eval_name in project.suite(suite).evals:
        try:
            task = project.task(eval_name)
        except EvalDagsterError:  # reported when the eval is evaluated
            continue
        for metric in task.METRICS if gate.metrics == "all" else [headline(task)]:
            # A rate can differ by 1, and a score from 0 by its best value.
            most = 1.0 if metric.IS_PROPORTION else metric.BEST if metric.HIGHER_IS_BETTER and metric.BEST else None
            margin = gate.margin.get(eval_name) if isinstance(gate.margin, dict) else gate.margin
            settings = {"smallest_difference": gate.smallest_difference, "margin": margin or 0.0}
            if most is not None and (wrong := next((name for name, value in settings.items() if value >= most), None)):
                raise UsageError(
                    f"suites.{suite}.gate.{wrong}: found {settings[wrong]:g}; expected a number below {most:g}, which "
                    f"is the most that {metric.NAME} of the eval {eval_name} can differ by (0.01 is one percentage point); evals of other "
                    "units belong into a suite of their own"
                )


def judge(project: Project, suite: str, *, run_id: str, since: datetime | None = None) -> GateResult:
    """Compare the results of a suite with their baselines.

    Every eval and model of the suite has a row, or a row for each metric. A result that was not judged has a reason and does not affect the
    others. The baseline model itself has a row only if it could not be evaluated. A checkpoint that was deleted before it could be
    evaluated has a warning instead of a row. Nothing is written, and no model is asked. Falls of
    models whose answers may differ stay unconfirmed until `confirmation.confirm` asks.

    Args:
        project: The project.
        suite: Name of the suite.
        run_id: Id of the run that judges.
        since: Only results evaluated at or after this time count. If not given, the last results count.

    Raises:
        UsageError: The suite is unknown, or a metric cannot differ by as much as its `smallest_difference`.
    """
    settings = project.suite(suite)
    require_sensible_gate(project, suite)
    evals, models = project.select(suite=suite)
    baseline = Baseline.parse(settings.baseline, list(project.config.models))
    known = known_looks(project.lake, suite)
    attempts = Attempts(read_attempts(project.lake, since=since), since=since)
    judged_at = datetime.fromisoformat(project.lake.next_time("regressions", suite))
    standings, rescorer = Standings(project.lake, suite), Rescorer(project)
    pooling = Pooling(project, suite, standings)
    level = night_level(settings, standings, baseline, judged_at)
    findings: list[Finding] = []
    partitions: dict[tuple[str, str], Partition] = {}
    looks: list[Look] = []
    warnings: list[str] = []
    aggregating = AggregateJudge(project, suite, standings, baseline, level)
    for key in product(evals, models):
        if not project.is_pair(*key):
            continue
        partition = Partition(project, suite, settings.gate, level, *key, baseline, standings, rescorer, pooling)
        # Nobody can evaluate a deleted checkpoint again: it is no gap of the suite. Its last result is judged as long as it is current.
        if (deleted := project.deletion(key[1])) and (attempts.problem(*key) or _lacks_result(partition)):
            warnings.append(f"{partition_key(*key)} was not evaluated: {deleted}")
            aggregating.skip(key)
            continue
        findings += aggregating.take(partition, _guarded(partition, attempts))
        partitions[key] = partition
        try:
            metrics = project.task(partition.eval_name).METRICS
            looks += list(find_looks(partition.points, metrics, alpha=settings.gate.alpha, known=known))
        except TaskDefinitionError:
            pass  # the verdict reports it
        except Exception as error:  # verdicts do not depend on looks
            name = f"{partition.eval_name}|{partition.model}"
            warnings.append(f"no change points of {name}: {type(error).__name__}: {error}")
    # Models that changed on their servers are named even if no result is red.
    changed = dict.fromkeys(each.row.model for each in findings if "endpoint" in (each.row.cause or "").split(", "))
    behind = "has another model behind its name than for the baseline (`eval-dagster sql endpoint_answers`)"
    warnings += [f"the server of {model} {behind}" for model in changed]
    rows: list[Regression] = []
    of_aggregates = aggregating.findings(models)
    decided, judged = decide_beside(findings, [test for each in of_aggregates for test in each.tests], level=level)
    aggregates = decide_aggregates(of_aggregates, judged, level)
    aggregates = [replace(row, red_since=row.red_since or judged_at) if row.is_red else row for row in aggregates]
    for row in decided:
        # Only unconfirmed rows examine the model, because libraries load slowly.
        is_fixed = row.confirmation == "unconfirmed" and not answers_vary(project, row.model)
        row = replace(row, confirmation=None, fall_level=None) if is_fixed else row
        rows.append(with_drift(row, partitions[row.eval, row.model], len(findings)))
    warnings += [f"{partition_key(row.eval, row.model)}: {row.drifts}" for row in rows if row.drifts]
    rows = standings.with_accepted_gaps(rows)
    return GateResult(
        suite=suite,
        judged_at=judged_at,
        run_id=run_id,
        alpha=settings.gate.alpha,
        level=level if any(has_test(each) for each in findings) or any(each.tests for each in of_aggregates) else 0.0,
        severity=settings.gate.severity,
        require=settings.gate.require,
        critical=settings.gate.critical,
        require_proof=settings.gate.require_proof,
        supporting_p_value=supporting_p_value(
            {name: [each.proof for each in findings if each.proof and _is_supporting(each, settings, name)] for name in settings.evals}
        ),
        regressions=with_held_states(rows, aggregates),
        aggregates=with_accepted_evals(aggregates, rows),
        changes=[change for each in findings for change in each.changes],
        looks=looks,
        warnings=tuple(warnings),
    )


def unjudged(project: Project, suite: str, *, run_id: str, reason: str) -> GateResult:
    """The judgement of a suite whose gate failed: no result could be compared, for this reason. Nothing is written."""
    settings = project.suite(suite)
    why = f"the gate failed: {reason}"
    return GateResult(
        suite=suite,
        judged_at=datetime.fromisoformat(project.lake.next_time("regressions", suite)),
        run_id=run_id,
        alpha=settings.gate.alpha,
        level=0.0,
        severity=settings.gate.severity,
        require=settings.gate.require,
        critical=settings.gate.critical,
        require_proof=settings.gate.require_proof,
        regressions=[
            Regression(suite=suite, eval=eval_name, model=model, verdict=Verdict.NOT_COMPARABLE, reason=why)
            for eval_name, model in product(*project.select(suite=suite))
            if project.is_pair(eval_name, model)
        ],
        changes=[],
    )


def _is_supporting(finding: Finding, settings: SuiteConfig, eval_name: str) -> bool:
    critical = settings.gate.critical
    return bool(finding.row.is_headline) and finding.row.eval == eval_name and critical != "all" and eval_name not in critical


def _lacks_result(partition: Partition) -> bool:
    """Whether there is no result at all. A damaged one counts, since its verdict reports it."""
    try:
        return partition.current() is None
    except EvalDagsterError:
        return False


def _guarded(partition: Partition, attempts: Attempts) -> list[Finding]:
    """The findings of a partition. An error becomes the reason that it is not judged."""
    current = None
    try:
        current = partition.current()
        if problem := attempts.problem(partition.eval_name, partition.model):
            return partition.unjudged(Verdict.NOT_EVALUATED, problem, current)
        if partition.baseline.is_current(partition.model):
            return []
        if current is None:
            return partition.unjudged(Verdict.NOT_EVALUATED, NO_RESULT, None)
        findings = partition.findings(current)
        return findings or partition.unjudged(Verdict.NOT_COMPARABLE, "the result has none of the metrics that are compared", current)
    except Exception as error:  # the boundary between one partition and the next
        reason = str(error) if isinstance(error, EvalDagsterError) else f"{type(error).__name__}: {error}"
        return partition.unjudged(Verdict.NOT_COMPARABLE, reason, current)
