"""The asset `dataset_snapshot`."""

from collections.abc import Iterator

import dagster as dg

from eval_dagster import pipeline
from eval_dagster.assets.killed_runs import at_work
from eval_dagster.assets.materializations import report
from eval_dagster.assets.partitions import eval_partitions
from eval_dagster.assets.provenance import stage_code_version
from eval_dagster.assets.resources import ProjectResource, reporter_for
from eval_dagster.assets.run_logging import library_log
from eval_dagster.config.schema import Config


def snapshot_assets(config: Config) -> dg.AssetsDefinition:
    """Define `dataset_snapshot`, partitioned by eval."""
    spec = dg.AssetSpec(
        "dataset_snapshot",
        description="The rows of an eval's dataset as they were read, each named by the hash of its content. Query it as `samples`.",
        group_name="data",
        kinds={"huggingface", "parquet", "duckdb"},
        code_version=stage_code_version("dataset_snapshot"),
        skippable=True,
    )

    @dg.multi_asset(
        name="dataset_snapshot",
        specs=[spec],
        partitions_def=eval_partitions(config),
        backfill_policy=dg.BackfillPolicy.single_run(),
        can_subset=True,
    )
    def dataset_snapshot(context: dg.AssetExecutionContext, project: ProjectResource) -> Iterator[dg.AssetMaterialization]:
        opened, step = project.open(), context.op_execution_context
        outcomes = pipeline.snapshot_evals(opened, list(context.partition_keys), run_id=context.run.run_id, reporter=reporter_for(context))
        with at_work(step, opened.home), library_log(context.log):
            yield from report(step, outcomes)

    return dataset_snapshot
