"""The assets that depend on eval and model: prompts, outputs, scores, metrics.

They are one Dagster step: a model is loaded once for all partitions of a run, and a partition that fails at one stage does not keep
the others from the next stage, which steps of their own would do. Any subset of them can be materialized.
"""

from collections.abc import Iterator
from types import ModuleType

import dagster as dg

from assets.events import report
from assets.library_log import library_log
from assets.liveness import alive
from assets.partitions import eval_model_partitions, split_keys
from assets.resources import ProjectResource, reporter_for
from eval_dagster import pipeline
from eval_dagster.config import Config
from eval_dagster.stages import metrics, outputs, prompts, scores
from eval_dagster.versions import code_version

STAGE_ASSETS = ("rendered_prompts", "model_outputs", "sample_scores", "task_metrics")


def evaluation_assets(config: Config) -> dg.AssetsDefinition:
    """Define the four assets, partitioned by eval and model."""

    @dg.multi_asset(
        name="evaluate",
        specs=_specs(),
        partitions_def=eval_model_partitions(config),
        backfill_policy=dg.BackfillPolicy.single_run(),
        can_subset=True,
    )
    def evaluate(context: dg.AssetExecutionContext, project: ProjectResource) -> Iterator[dg.AssetMaterialization]:
        opened = project.open(context)
        outcomes = pipeline.evaluate(
            opened,
            split_keys(context.partition_keys),
            stages={key.to_user_string() for key in context.selected_asset_keys},
            run_id=context.run.run_id,
            reporter=reporter_for(context),
        )
        with alive(opened.home, context.run.run_id), library_log(context.log):
            yield from report(context, outcomes, lake=opened.lake)

    return evaluate


def _specs() -> list[dg.AssetSpec]:
    by_eval = dg.AssetDep("dataset_snapshot", partition_mapping=dg.MultiToSingleDimensionPartitionMapping("eval"))
    return [
        _spec(
            "rendered_prompts",
            prompts,
            by_eval,
            group="data",
            kinds={"parquet", "duckdb"},
            description="Exactly what a model is sent for each sample: prompt, choices, few-shot examples. Query it as `prompts`.",
        ),
        _spec(
            "model_outputs",
            outputs,
            "rendered_prompts",
            group="inference",
            kinds={"pytorch", "huggingface", "parquet"},
            description="A model's answers; only requests without one under this model version are sent. Query it as `responses`.",
        ),
        _spec(
            "sample_scores",
            scores,
            "model_outputs",
            group="results",
            kinds={"parquet", "duckdb"},
            description="Every metric of every sample; calls no model. Query it as `scores`.",
        ),
        _spec(
            "task_metrics",
            metrics,
            "sample_scores",
            group="results",
            kinds={"duckdb", "mlflow"},
            description="Each metric with standard error and 95 % interval, overall and by subject. Query it as `metrics`.",
        ),
    ]


def _spec(name: str, code: ModuleType, dep: str | dg.AssetDep, *, group: str, kinds: set[str], description: str) -> dg.AssetSpec:
    return dg.AssetSpec(
        name, deps=[dep], description=description, group_name=group, kinds=kinds, code_version=code_version(code), skippable=True
    )
