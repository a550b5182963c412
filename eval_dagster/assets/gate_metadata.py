"""Metadata of a gate: the results that got worse, their figures, pictures of their history, and the report."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import dagster as dg

from eval_dagster.assets.previews import table_metadata
from eval_dagster.config.values import identifier
from eval_dagster.gate.records import GateResult, Regression
from eval_dagster.project import Project
from eval_dagster.report.histories import headline_markdown
from eval_dagster.report.wording import verdict_line
from eval_dagster.report.writing import Report, page_of
from eval_dagster.statistics.verdicts import Verdict
from eval_dagster.visible_text import visible

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


def result_metadata(results: Sequence[GateResult]) -> dict[str, Any]:
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


def all_rows(results: Sequence[GateResult]) -> dict[str, Any]:
    """Every comparison, as a table."""
    rows = [_shown(row) for result in results for row in result.regressions]
    return {"all_results": table_metadata(rows)} if rows else {}


def report_metadata(project: Project, results: Sequence[GateResult], reports: Mapping[str, Report]) -> dict[str, Any]:
    """The page of each suite's report, its run in MLflow, and its page of `view` where that can be reached."""
    nights = {result.suite: project.addresses.night(result.suite, result.judged_at.isoformat()) for result in results}
    metadata: dict[str, Any] = {f"night_{identifier(suite)}": dg.MetadataValue.url(url) for suite, url in nights.items() if url}
    for result in results:
        if result.suite not in reports and (page := page_of(project, result)).exists():  # judged by an earlier run
            metadata[f"report_{identifier(result.suite)}"] = dg.MetadataValue.path(str(page))
    for suite, report in reports.items():
        if report.page:
            metadata[f"report_{identifier(suite)}"] = dg.MetadataValue.path(str(report.page))
        if report.mlflow_link:
            metadata[f"report_{identifier(suite)}_in_mlflow"] = dg.MetadataValue.url(report.mlflow_link)
    return metadata


def history_metadata(project: Project, result: GateResult) -> dict[str, Any]:
    """Pictures of the headline scores that changed, with their error bands."""
    changed = (row for row in result.regressions if row.is_red or row.verdict is Verdict.IMPROVED)
    partitions = list(dict.fromkeys((row.eval, row.model) for row in changed))[:_MOST_PICTURES]
    pictures = {(eval_name, model): headline_markdown(project.lake, eval_name, model) for eval_name, model in partitions}
    return {
        f"history {eval_name}|{model}": dg.MetadataValue.md(picture)
        for (eval_name, model), picture in pictures.items()
        if picture is not None
    }


def _shown(row: Regression) -> dict[str, Any]:
    values = {**asdict(row), "verdict": row.verdict.value}
    return {name: values[name] for name in _COLUMNS}
