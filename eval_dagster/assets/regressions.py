"""The asset `regressions`: each suite against its baseline, with a check for each suite that fails if a result got worse."""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime

import dagster as dg

from eval_dagster.assets.evaluation import code_references, column_schema
from eval_dagster.assets.failed_nights import tell_untold
from eval_dagster.assets.instance.killed_runs import at_work
from eval_dagster.assets.names import REGRESSIONS, Names, gate_check
from eval_dagster.assets.notifications import tell
from eval_dagster.assets.previews import table_metadata
from eval_dagster.assets.provenance import SOURCES, SourceVersions, input_tags, judgement_version, partitions_of
from eval_dagster.assets.resources import ProjectFile, reporter_for
from eval_dagster.assets.runs.suite_evaluations import find_evaluation, night_of, parsed
from eval_dagster.assets.tags import SINCE_TAG, SUITE_TAG
from eval_dagster.config.values import identifier
from eval_dagster.dagster_internals.definitions import RawMetadataValue
from eval_dagster.errors import EvalDagsterError, LakeUnreachableError, LockLostError, UsageError, described
from eval_dagster.gate.confirmation import judge_and_confirm
from eval_dagster.gate.judgement import unjudged
from eval_dagster.gate.records import GateResult
from eval_dagster.gate.results import current_result, result_of_run, write_result
from eval_dagster.gate.wording import verdict_line
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.notifications.delivery import send_left
from eval_dagster.pages.report.histories import headline_markdown
from eval_dagster.pages.report.writing import Report, report
from eval_dagster.progress.reporting import use_reporter
from eval_dagster.project import Project
from eval_dagster.records.aggregate_judgements import AggregateRegression
from eval_dagster.records.judgements import Regression, Verdict
from eval_dagster.stores.locks import Hold
from eval_dagster.texts.visible_text import visible
from eval_dagster.users_code import doing, limited
from eval_dagster.versions.hashes import stable_hash

log = logging.getLogger("eval_dagster.gate")
_COLUMNS = (
    *("suite", "eval", "model", "metric", "verdict", "baseline_value", "value", "difference", "ci_low", "ci_high", "p_adjusted"),
    *(
        "n_common",
        "min_detectable",
        "margin",
        "margin_p_value",
        "is_proven",
        "n_errors",
        "confirmation",
        "n_fresh",
        "fresh_difference",
        "fresh_p_value",
        "cause",
        "baseline",
        "anchor",
        "drift",
        "reason",
    ),
)
_AGGREGATE_COLUMNS = (
    *("suite", "aggregate", "model", "verdict", "baseline_value", "value", "difference", "ci_low", "ci_high", "p_adjusted", "n_common"),
    *("min_detectable", "drift", "drift_p_adjusted", "definition", "reason"),
)
_MOST_PICTURES = 8
"""Most pictures of a suite: each event keeps them in Dagster's database. The report has all of them."""


@contextmanager
def gate_turn(project: Project, suite: str) -> Iterator[Hold]:
    """Wait until no other run judges the suite, and keep others waiting within the block."""
    name = f"gate {project.place} {suite}"
    is_done = False
    try:
        with project.locks.hold(name, file=f"locks/gate-{stable_hash(suite)}") as hold:
            yield hold
            is_done = True
    except LockLostError as error:
        if not is_done:
            raise
        log.warning("another run may have judged the suite %s at the same time: %s", suite, error)


def judged_before(instance: dg.DagsterInstance, project: Project, run: dg.DagsterRun) -> GateResult | None:
    """The judgement of the same evaluation by an earlier run; None if there is none, or if a person has executed the run again."""
    suite, since = run.tags.get(SUITE_TAG), run.tags.get(SINCE_TAG)
    if suite is None or since is None or run.parent_run_id is not None:
        return None
    same = instance.get_runs(dg.RunsFilter(job_name=run.job_name, tags={SUITE_TAG: suite, SINCE_TAG: since}))
    results = (result_of_run(project.lake, suite, other.run_id) for other in same if other.run_id != run.run_id)
    return next((result for result in results if result is not None), None)


def result_metadata(results: Sequence[GateResult]) -> dict[str, RawMetadataValue]:
    """A line for each suite, the number of results by verdict, and tables of the red results, of gaps, and of aggregates."""
    rows = [row for result in results for row in result.regressions]
    regressed, gaps = [row for row in rows if row.is_red], [row for row in rows if row.is_gap]
    aggregates = [row for result in results for row in result.aggregates]
    drifting, verdicts = [row for row in rows if row.is_drifting], Counter(row.verdict for row in rows)
    return {
        "summary": visible("\n".join(f"{result.suite}: {verdict_line(result)}" for result in results)) or "evals.yaml has no suite",
        "outcome": "\n".join(f"{result.suite}: {result.outcome.value}" for result in results),
        **({"regressed": table_metadata([_shown(row) for row in regressed])} if regressed else {}),
        **({"not_judged": table_metadata([_shown(row) for row in gaps])} if gaps else {}),
        **{f"n_{verdict.name.lower()}": verdicts[verdict] for verdict in Verdict},
        **({"drift": "\n".join(f"{row.eval}|{row.model}: {row.drifts}" for row in drifting)} if drifting else {}),
        "n_drifting": len(drifting),
        "n_proven_not_worse": sum(bool(row.is_proven) for row in rows),
        **({"aggregates": table_metadata([_shown_aggregate(row) for row in aggregates])} if aggregates else {}),
        **({"n_aggregates_regressed": sum(row.is_red for row in aggregates)} if aggregates else {}),
        "judged_at": "\n".join(f"{result.suite}: {result.judged_at.isoformat(timespec='seconds')}" for result in results),
    }


def all_rows(results: Sequence[GateResult]) -> dict[str, dg.TableMetadataValue]:
    """Every comparison, as a table."""
    rows = [_shown(row) for result in results for row in result.regressions]
    return {"all_results": table_metadata(rows)} if rows else {}


def report_metadata(project: Project, result: GateResult, written: Report) -> dict[str, RawMetadataValue]:
    """The page of the suite's report, its run in MLflow, and its page of `view` if that can be reached."""
    name = identifier(result.suite)
    url = project.addresses.night(result.suite, result.judged_at.isoformat())
    return {
        **({f"night_{name}": dg.MetadataValue.url(url)} if url else {}),
        **({f"report_{name}": dg.MetadataValue.path(str(written.page))} if written.page else {}),
        **({f"report_{name}_in_mlflow": dg.MetadataValue.url(written.mlflow_link)} if written.mlflow_link else {}),
    }


def history_metadata(project: Project, result: GateResult) -> dict[str, dg.MarkdownMetadataValue]:
    """Pictures of the headline scores that changed, with their error bands."""
    changed = (row for row in result.regressions if row.is_red or row.verdict is Verdict.IMPROVED)
    partitions = list(dict.fromkeys((row.eval, row.model) for row in changed))[:_MOST_PICTURES]
    pictures = {(eval_name, model): headline_markdown(project.lake, eval_name, model) for eval_name, model in partitions}
    return {
        f"history {eval_name}|{model}": dg.MetadataValue.md(picture)
        for (eval_name, model), picture in pictures.items()
        if picture is not None
    }


def _shown(row: Regression) -> dict[str, object]:
    return {name: row.verdict.value if name == "verdict" else getattr(row, name) for name in _COLUMNS}


def _shown_aggregate(row: AggregateRegression) -> dict[str, object]:
    return {name: row.verdict.value if name == "verdict" else getattr(row, name) for name in _AGGREGATE_COLUMNS}


def gate_asset(project: Project) -> dg.AssetsDefinition:
    """Define `regressions`, partitioned by suite. Its source says what a gate would judge: results in no suite make nothing stale."""
    names, file = Names.of(project), ProjectFile.of(project)
    source = names.key(SOURCES[REGRESSIONS])

    @dg.asset(
        key=names.key(REGRESSIONS),
        partitions_def=partitions_of(REGRESSIONS, project),
        deps=[dg.AssetDep(names.key("task_metrics"), partition_mapping=dg.SpecificPartitionsPartitionMapping([])), source],
        description="Compares a suite with its baseline. Query it as `regressions`.",
        group_name="results",
        metadata={"dagster/column_schema": column_schema("regressions"), "dagster/code_references": code_references(project)},
        kinds={"duckdb", "sql"},
    )
    def regressions(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
        """Judge, publish, write the report, and send notifications."""
        opened, suite = file.open(context.instance), context.partition_key
        # A job's tags name its suite. A person can choose another one, on the page of the job or of the asset.
        is_launched = context.run.tags.get(SUITE_TAG) == suite
        if not is_launched and SUITE_TAG in context.run.tags:
            context.log.warning(f"judging {suite}; this job has the check of {context.run.tags[SUITE_TAG]} alone")
        tag = context.run.tags.get(SINCE_TAG) if is_launched else None
        with at_work(context.op_execution_context, opened.home), gate_turn(opened, suite) as turn:
            evaluation = find_evaluation(context.instance, opened, suite, tag) if tag else None
            judged = judged_before(context.instance, opened, context.run) if is_launched else None
            # If a part was evaluated, the rest of the suite is judged by its last results.
            since = (evaluation.began if evaluation.is_whole else None) if evaluation else _time(tag)
            version = judgement_version(opened, suite)
            event = SourceVersions(context.instance, names, REGRESSIONS, [suite]).report(suite, version)
            error: Exception | None = None
            opened.tracker.begin()  # the report is logged at the end, and MLflow's import takes as long as a judgement
            with use_reporter(reporter_for(context)):
                result, error = (judged, None) if judged else _judge(opened, suite, context.run.run_id, since)
            damages = [] if judged else publish(opened.lake)
            if turn.regain():
                judged = judged or (judged_before(context.instance, opened, context.run) if is_launched else None)
            runs = [record.dagster_run for record in evaluation.records if record.dagster_run.is_finished] if evaluation else []
            written = report(opened, result, run_ids=[run.run_id for run in runs])
            # Notify for runs of the suite's jobs: these are nightly or scripted. A person who materializes the asset sees the result.
            is_told = is_launched and judged is None
            told = list(tell(context.instance, opened, result, runs, written, night=night_of(tag))) if is_told else []
            if is_launched:  # and what was left of earlier nights
                while words := tell_untold(context.instance, opened, suite, judged_only=True):
                    told += [words]
                told += [f"{each.title}: {each.words()}" for each in send_left(opened, suites=[suite], is_patient=bool(told))]
            pictures = history_metadata(opened, result)
        warnings = [visible(text) for text in [*damages, *result.warnings, *written.warnings]]
        for warning in warnings:
            context.log.warning(warning)
        if error is not None:
            context.log.error(f"the suite {suite} was not judged: {visible(str(error))}")
            raise error
        return dg.MaterializeResult(
            metadata={
                **result_metadata([result]),
                **all_rows([result]),
                **report_metadata(opened, result, written),
                **({"notices": visible("\n".join(told))} if told else {}),
                **{f"warning_{number}": warning for number, warning in enumerate(warnings, 1)},
                **pictures,
                "dagster/row_count": len(result.regressions),
            },
            data_version=dg.DataVersion(_version(result)),
            tags=input_tags(source, version, event),
        )

    return regressions


def suite_check(name: str, project: Project) -> dg.AssetChecksDefinition:
    """The check of a suite: whether its stored judgement is green. It does not judge, and can run again at any time."""
    suite, file = project.config.suites[name], ProjectFile.of(project)

    @dg.asset_check(
        asset=Names.of(project).key(REGRESSIONS),
        name=gate_check(name),
        blocking=True,
        description=f"All results that the suite {name} requires were judged, and none is significantly worse than its baseline "
        f"({suite.baseline}).",
    )
    def check() -> dg.AssetCheckResult:
        result = current_result(file.open().lake, name)
        if result is None:
            fails = dg.AssetCheckSeverity.ERROR if suite.gate.severity == "error" else dg.AssetCheckSeverity.WARN
            advice = f"not judged yet: materialize the partition {name} of the asset `regressions`"
            return dg.AssetCheckResult(passed=False, severity=fails, description=advice)
        return dg.AssetCheckResult(
            passed=result.is_green,
            severity=dg.AssetCheckSeverity.ERROR if result.is_failed else dg.AssetCheckSeverity.WARN,
            description=visible(verdict_line(result)),
            metadata=result_metadata([result]),
        )

    return check


def _judge(project: Project, suite: str, run_id: str, since: datetime | None) -> tuple[GateResult, Exception | None]:
    """The judgement of a suite, and the error if its gate failed. Falls of served models are confirmed.

    A suite whose gate fails is judged as incomplete, so that the judgement before does not stand for this one.
    """
    error: Exception | None = None
    try:
        with doing(f"the gate of the suite {suite}"), limited(project.config.code_timeout):
            result = judge_and_confirm(project, suite, run_id=run_id, since=since)
    except (LakeUnreachableError, LockLostError):
        raise
    except Exception as caught:  # of users' code, or of the gate itself
        error = caught
        reason = str(error) if isinstance(error, EvalDagsterError) else described(error)
        result = unjudged(project, suite, run_id=run_id, reason=reason)
    write_result(project.lake, result)
    return result, error


def _version(result: GateResult) -> str:
    """Hash of the results without their times."""
    rows = [asdict(row) for row in result.regressions] + [asdict(row) for row in result.aggregates]
    return stable_hash([[str(value) for value in row.values()] for row in rows])


def _time(text: str | None) -> datetime | None:
    time = parsed(text or "")
    if text is not None and time is None:
        raise UsageError(f"the run tag {SINCE_TAG} is {text!r}; expected a time with its zone such as 2026-01-31T02:00:00+00:00")
    return time
