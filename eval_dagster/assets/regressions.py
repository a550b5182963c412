"""The asset `regressions`: each suite against its baseline, with a check for each suite that fails if a result got worse."""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime

import dagster as dg

from eval_dagster.assets.failed_nights import tell_untold
from eval_dagster.assets.instance.killed_runs import at_work
from eval_dagster.assets.jobs import REGRESSIONS, gate_check_name
from eval_dagster.assets.notifications import tell
from eval_dagster.assets.previews import table_metadata
from eval_dagster.assets.resources import ProjectResource, reporter_for
from eval_dagster.assets.runs.suite_evaluations import find_evaluation, night_of, parsed
from eval_dagster.assets.tags import SINCE_TAG, SUITE_TAG
from eval_dagster.config.schema import Config, SuiteConfig
from eval_dagster.config.values import identifier
from eval_dagster.dagster_internals.definitions import RawMetadataValue
from eval_dagster.errors import EvalDagsterError, LakeError, LakeUnreachableError, LockLostError, UsageError, described
from eval_dagster.gate.confirmation import judge_and_confirm
from eval_dagster.gate.judgement import unjudged
from eval_dagster.gate.records import GateResult
from eval_dagster.gate.results import current_result, result_of_run, write_result
from eval_dagster.gate.wording import verdict_line
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.notifications.delivery import send_left
from eval_dagster.pages.report.histories import headline_markdown
from eval_dagster.pages.report.writing import Report, page_of, report
from eval_dagster.progress.reporting import use_reporter
from eval_dagster.project import Project
from eval_dagster.records.judgements import Regression, Verdict
from eval_dagster.stages.partition import partition_key
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
_MOST_PICTURES = 8
"""Most pictures of a suite: each event keeps them in Dagster's database. The report has all of them."""


@contextmanager
def gate_turn(project: Project, suite: str | None) -> Iterator[Hold]:
    """Wait until no other run judges the suite, or all suites if it is None, and keep others waiting within the block."""
    name = f"gate {project.place} {suite or ''}"
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
    """A line for each suite, the number of results by verdict, and tables of the red results and of those that were not judged."""
    rows = [row for result in results for row in result.regressions]
    regressed, gaps = [row for row in rows if row.is_red], [row for row in rows if row.is_gap]
    verdicts = Counter(row.verdict for row in rows)
    return {
        "summary": visible("\n".join(f"{result.suite}: {verdict_line(result)}" for result in results)) or "evals.yaml has no suite",
        "outcome": "\n".join(f"{result.suite}: {result.outcome.value}" for result in results),
        **({"regressed": table_metadata([_shown(row) for row in regressed])} if regressed else {}),
        **({"not_judged": table_metadata([_shown(row) for row in gaps])} if gaps else {}),
        **{f"n_{verdict.value.replace(' ', '_')}": verdicts[verdict] for verdict in Verdict},
        "judged_at": "\n".join(f"{result.suite}: {result.judged_at.isoformat(timespec='seconds')}" for result in results),
    }


def all_rows(results: Sequence[GateResult]) -> dict[str, dg.TableMetadataValue]:
    """Every comparison, as a table."""
    rows = [_shown(row) for result in results for row in result.regressions]
    return {"all_results": table_metadata(rows)} if rows else {}


def report_metadata(project: Project, results: Sequence[GateResult], reports: Mapping[str, Report]) -> dict[str, RawMetadataValue]:
    """The page of each suite's report, its run in MLflow, and its page of `view` if that can be reached."""
    nights = {result.suite: project.addresses.night(result.suite, result.judged_at.isoformat()) for result in results}
    metadata: dict[str, RawMetadataValue] = {
        f"night_{identifier(suite)}": dg.MetadataValue.url(url) for suite, url in nights.items() if url
    }
    for result in results:
        if result.suite not in reports and (page := page_of(project, result)).exists():  # judged by an earlier run
            metadata[f"report_{identifier(result.suite)}"] = dg.MetadataValue.path(str(page))
    for suite, written in reports.items():
        if written.page:
            metadata[f"report_{identifier(suite)}"] = dg.MetadataValue.path(str(written.page))
        if written.mlflow_link:
            metadata[f"report_{identifier(suite)}_in_mlflow"] = dg.MetadataValue.url(written.mlflow_link)
    return metadata


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


def gate_asset(config: Config) -> dg.AssetsDefinition:
    """Define `regressions`. Results of evals and models in no suite do not make it stale."""
    cells = dict.fromkeys(
        partition_key(eval_name, model) for suite in config.suites.values() for eval_name in suite.evals for model in suite.models
    )
    judged = dg.SpecificPartitionsPartitionMapping(list(cells))

    @dg.asset(
        name=REGRESSIONS,
        deps=[dg.AssetDep("task_metrics", partition_mapping=judged)],
        description="Compares every suite, or the suite in the run's tag, with its baseline. Query it as `regressions`.",
        group_name="results",
        kinds={"duckdb", "sql"},
    )
    def regressions(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult[None]:
        """Judge, publish, write the report, and send notifications."""
        opened = project.open(context.instance)
        asked, tag = context.run.tags.get(SUITE_TAG), context.run.tags.get(SINCE_TAG)
        with at_work(context.op_execution_context, opened.home), gate_turn(opened, asked) as turn:
            evaluation = find_evaluation(context.instance, opened, asked, tag) if asked and tag else None
            judged = judged_before(context.instance, opened, context.run)
            # If a part was evaluated, the rest of the suite is judged by its last results.
            since = (evaluation.began if evaluation.is_whole else None) if evaluation else _time(tag)
            with use_reporter(reporter_for(context)):
                suites = [asked] if asked else list(opened.config.suites)
                results, errors = ([judged], {}) if judged else _judge(opened, suites, context.run.run_id, since)
            damages = [] if judged else publish(opened.lake)
            if turn.regain():
                judged = judged or judged_before(context.instance, opened, context.run)
            runs = [record.dagster_run for record in evaluation.records if record.dagster_run.is_finished] if evaluation else []
            reports = {result.suite: report(opened, result, run_ids=[run.run_id for run in runs]) for result in results}
            # Notify for runs of one suite only: these are nightly or scripted. A person who materializes the asset sees the result.
            is_told = asked is not None and judged is None
            told = [
                words
                for each in results
                if is_told
                for words in tell(context.instance, opened, each, runs, reports[each.suite], night=night_of(tag))
            ]
            if asked is not None:  # and what was left of earlier nights
                while words := tell_untold(context.instance, opened, asked, judged_only=True):
                    told += [words]
                told += [f"{each.title}: {each.words()}" for each in send_left(opened, suites=[asked], is_patient=bool(told))]
            pictures = {name: picture for result in results for name, picture in history_metadata(opened, result).items()}
        shown, damaged = _with_others(opened, results)
        warnings = [visible(text) for text in [*damages, *damaged, *_warnings(results), *_warnings(reports.values())]]
        for warning in warnings:
            context.log.warning(warning)
        for suite, error in errors.items():
            context.log.error(f"the suite {suite} was not judged: {visible(str(error))}")
        if errors:
            raise next(iter(errors.values()))
        return dg.MaterializeResult(
            metadata={
                **result_metadata(shown),
                **all_rows(shown),
                **report_metadata(opened, shown, reports),
                **({"notices": visible("\n".join(told))} if told else {}),
                **{f"warning_{number}": warning for number, warning in enumerate(warnings, 1)},
                **pictures,
                "dagster/row_count": sum(len(result.regressions) for result in shown),
            },
            data_version=dg.DataVersion(_version(shown)),
        )

    return regressions


def gate_check(name: str, suite: SuiteConfig) -> dg.AssetChecksDefinition:
    """The check of a suite: whether its stored judgement is green. It does not judge, and can run again at any time."""

    @dg.asset_check(
        asset=REGRESSIONS,
        name=gate_check_name(name),
        blocking=True,
        description=f"All results that the suite {name} requires were judged, and none is significantly worse than its baseline "
        f"({suite.baseline}).",
    )
    def check(project: ProjectResource) -> dg.AssetCheckResult:
        result = current_result(project.open().lake, name)
        if result is None:
            fails = dg.AssetCheckSeverity.ERROR if suite.gate.severity == "error" else dg.AssetCheckSeverity.WARN
            return dg.AssetCheckResult(passed=False, severity=fails, description="not judged yet: materialize the asset `regressions`")
        return dg.AssetCheckResult(
            passed=result.is_green,
            severity=dg.AssetCheckSeverity.ERROR if result.is_failed else dg.AssetCheckSeverity.WARN,
            description=visible(verdict_line(result)),
            metadata=result_metadata([result]),
        )

    return check


def _judge(project: Project, suites: Sequence[str], run_id: str, since: datetime | None) -> tuple[list[GateResult], dict[str, Exception]]:
    """The judgements of the suites, and the errors of those whose gate failed. Falls of served models are confirmed.

    A suite whose gate fails is judged as incomplete, so that the judgement before does not stand for this one.
    """
    results: list[GateResult] = []
    errors: dict[str, Exception] = {}
    for name in suites:  # one after the other, because fresh answers can take hours
        try:
            with doing(f"the gate of the suite {name}"), limited(project.config.code_timeout):
                results.append(judge_and_confirm(project, name, run_id=run_id, since=since))
        except (LakeUnreachableError, LockLostError):
            raise
        except Exception as error:  # the boundary between one suite and the next
            errors[name] = error
            reason = str(error) if isinstance(error, EvalDagsterError) else described(error)
            results.append(unjudged(project, name, run_id=run_id, reason=reason))
        write_result(project.lake, results[-1])
    return results, errors


def _with_others(project: Project, results: Sequence[GateResult]) -> tuple[list[GateResult], list[str]]:
    """The judgements, with the last ones of all other suites, in the order of evals.yaml; and messages on damaged ones."""
    found = {result.suite: result for result in results}
    damages: list[str] = []
    for name in project.config.suites:
        try:
            other = None if name in found else current_result(project.lake, name)
        except LakeError as error:
            damages.append(f"the last judgement of the suite {name} is not shown: {error}")
            continue
        if other is not None:
            found[name] = other
    return [found[name] for name in project.config.suites if name in found], damages


def _warnings(each: Iterable[GateResult | Report]) -> list[str]:
    return [warning for one in each for warning in one.warnings]


def _version(results: Sequence[GateResult]) -> str:
    """Hash of the results without their times."""
    return stable_hash([[str(value) for value in asdict(row).values()] for result in results for row in result.regressions])


def _time(text: str | None) -> datetime | None:
    time = parsed(text or "")
    if text is not None and time is None:
        raise UsageError(f"the run tag {SINCE_TAG} is {text!r}; expected a time with its zone such as 2026-01-31T02:00:00+00:00")
    return time
