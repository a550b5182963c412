"""The asset `leaderboard`, which is refreshed when metrics change."""

from typing import Any

import dagster as dg

from eval_dagster.assets.instance.killed_runs import at_work
from eval_dagster.assets.previews import leaderboard_rows, markdown_table
from eval_dagster.assets.resources import ProjectResource
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.files import catalog_path
from eval_dagster.texts.visible_text import visible
from eval_dagster.versions.hashes import stable_hash

_REFRESH = (
    dg.AutomationCondition.any_deps_updated().since_last_handled()
    & ~dg.AutomationCondition.any_deps_in_progress()
    & ~dg.AutomationCondition.in_progress()
)


@dg.asset(
    deps=["task_metrics"],
    description="Each eval's headline metric by model, with error bars, and ranks among comparable results. Query it as `leaderboard`.",
    group_name="results",
    kinds={"duckdb", "sql"},
    automation_condition=_REFRESH.with_label("metrics_changed_and_none_in_progress"),
)
def leaderboard(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult[None]:
    """Publish the catalog and show its leaderboard."""
    opened = project.open(context.instance)
    with at_work(context.op_execution_context, opened.home):
        damages = list(map(visible, publish(opened.lake)))
        rows = read_rows(opened.lake, "select * from leaderboard")
    for damage in damages:
        context.log.warning(damage)
    metadata: dict[str, Any] = {
        "dagster/row_count": len(rows),
        "summary": dg.MetadataValue.md(markdown_table(leaderboard_rows(rows)) if rows else "There is no result yet."),
        "catalog": dg.MetadataValue.path(str(catalog_path(opened.lake))),
        **{f"warning_{number}": damage for number, damage in enumerate(damages, 1)},
    }
    return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(stable_hash(rows)))
