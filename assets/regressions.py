"""The asset `regressions`, each suite against its baseline, with a check a suite that fails where something got worse."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

import dagster as dg

from assets.events import table_metadata
from assets.jobs import REGRESSIONS, SINCE_TAG, SUITE_TAG, gate_check_name
from assets.liveness import alive
from assets.resources import ProjectResource
from assets.telling import tell
from eval_dagster.config import SuiteConfig
from eval_dagster.errors import UsageError
from eval_dagster.gate.judging import judge
from eval_dagster.gate.records import GateResult, Regression
from eval_dagster.gate.results import current_result, write_result
from eval_dagster.lake.catalog import publish
from eval_dagster.paired_suites import Verdict
from eval_dagster.report.wording import verdict_line
from eval_dagster.versions import stable_hash

_COLUMNS = (
    *("suite", "eval", "model", "metric", "verdict", "baseline_value", "value", "difference", "ci_low", "ci_high", "p_adjusted"),
    *("n_common", "min_detectable", "cause", "baseline", "reason"),
)


@dg.asset(
    name=REGRESSIONS,
    deps=["task_metrics"],
    description="What got worse: each suite, or the one of the run's tag, against its baseline. Query it as `regressions`.",
    group_name="results",
    kinds={"duckdb", "sql"},
)
def regressions(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult[None]:
    """Judge, publish, and tell those whom the suite names."""
    opened = project.open(context)
    asked, tag = context.run.tags.get(SUITE_TAG), context.run.tags.get(SINCE_TAG)
    with alive(opened.home, context.run.run_id):
        results = [
            judge(opened, name, run_id=context.run.run_id, since=_time(tag)) for name in ([asked] if asked else opened.config.suites)
        ]
        for result in results:
            write_result(opened.lake, result)
        damages = publish(opened.lake)
        # Who clicks on the asset sees for himself; a run of one suite is a nightly one, or stands in somebody's script.
        notices = [words for result in results if asked for words in tell(context.instance, opened, result, since=tag, report=None)]
    for message in [*damages, *notices]:
        context.log.info(message)
    metadata = {
        **_metadata(results),
        **({"notices": "\n".join(notices)} if notices else {}),
        **{f"warning_{number}": damage for number, damage in enumerate(damages, 1)},
    }
    return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(_version(results)))


def gate_check(name: str, suite: SuiteConfig) -> dg.AssetChecksDefinition:
    """The check of a suite: whether its stored judgement has a regression. It judges nothing itself, and can be run again at any time."""

    @dg.asset_check(
        asset=REGRESSIONS,
        name=gate_check_name(name),
        blocking=True,
        description=f"Nothing in the suite {name} is worse than its baseline ({suite.baseline}), as far as its samples tell.",
    )
    def check(project: ProjectResource) -> dg.AssetCheckResult:
        result = current_result(project.open().lake, name)
        if result is None:
            return dg.AssetCheckResult(
                passed=False, severity=dg.AssetCheckSeverity.WARN, description="not judged yet: materialize the asset `regressions`"
            )
        regressed = result.with_verdict(Verdict.REGRESSED)
        return dg.AssetCheckResult(
            passed=not regressed,
            severity=dg.AssetCheckSeverity.ERROR if result.is_failed else dg.AssetCheckSeverity.WARN,
            description=verdict_line(result),
            metadata=_metadata([result]),
        )

    return check


def _metadata(results: Sequence[GateResult]) -> dict[str, Any]:
    rows = [row for result in results for row in result.regressions]
    regressed = [row for row in rows if row.verdict is Verdict.REGRESSED]
    verdicts = Counter(row.verdict for row in rows)
    return {
        "summary": "\n".join(f"{result.suite}: {verdict_line(result)}" for result in results) or "evals.yaml has no suite",
        **({"regressed": table_metadata([_shown(row) for row in regressed])} if regressed else {}),
        **({"all_results": table_metadata([_shown(row) for row in rows])} if rows else {}),
        **{f"n_{verdict.value.replace(' ', '_')}": verdicts[verdict] for verdict in Verdict},
        "judged_at": "\n".join(f"{result.suite}: {result.judged_at.isoformat(timespec='seconds')}" for result in results),
        "dagster/row_count": len(rows),
    }


def _shown(row: Regression) -> dict[str, Any]:
    values = {**asdict(row), "verdict": row.verdict.value}
    return {name: values[name] for name in _COLUMNS}


def _version(results: Sequence[GateResult]) -> str:
    """Hash of what was found, whenever it was."""
    return stable_hash([[str(value) for value in asdict(row).values()] for result in results for row in result.regressions])


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise UsageError(f"the run tag {SINCE_TAG} is {text!r}; expected a time with its zone such as 2026-01-31T02:00:00+00:00")
    return time
