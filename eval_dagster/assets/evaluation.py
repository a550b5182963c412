"""The assets of the stages: dataset snapshots by eval; prompts, outputs, scores and metrics by eval and model. And `leaderboard`.

The latter are one Dagster step. So a model is loaded once for all partitions of a run, and a partition that fails at one stage does not
stop the others at the next stage. Any subset of the assets can be materialized: what it needs of those before is made in the same step.
"""

from collections.abc import Collection, Iterator

import dagster as dg

from eval_dagster import pipeline
from eval_dagster.assets.instance.killed_runs import at_work
from eval_dagster.assets.materializations import Planned, report
from eval_dagster.assets.previews import leaderboard_rows, markdown_table
from eval_dagster.assets.provenance import SOURCES, by_eval, by_eval_and_model
from eval_dagster.assets.resources import ProjectResource, library_log, reporter_for
from eval_dagster.config.schema import Config
from eval_dagster.dagster_internals.definitions import RawMetadataValue
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.files import catalog_path
from eval_dagster.progress.reporting import tell_making
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, partition_key
from eval_dagster.texts.visible_text import visible
from eval_dagster.versions.hashes import stable_hash

STAGE_ASSETS = tuple(STAGES)[1:]
_KINDS = {"transformers": ("pytorch", "huggingface"), "vllm": ("vllm",), "openai": ("openai",), "scripted": ("python",)}
"""Kinds that Dagster's pages show for a backend. A backend of a user has its own name."""
_MOST_KINDS = 3


def snapshot_assets(config: Config) -> dg.AssetsDefinition:
    """Define `dataset_snapshot`, partitioned by eval."""
    spec = _spec(
        "dataset_snapshot",
        group="data",
        kinds={"huggingface", "parquet", "duckdb"},
        description="The rows of an eval's dataset as they were read, each named by the hash of its content. Query it as `samples`.",
    )

    @dg.multi_asset(
        name="dataset_snapshot",
        specs=[spec],
        partitions_def=by_eval(config),
        backfill_policy=dg.BackfillPolicy.single_run(),
        can_subset=True,
    )
    def dataset_snapshot(
        context: dg.AssetExecutionContext, project: ProjectResource
    ) -> Iterator[dg.AssetMaterialization | dg.AssetObservation]:
        opened, step = project.open(context.instance), context.op_execution_context
        outcomes = pipeline.snapshot_evals(opened, list(context.partition_keys), run_id=context.run.run_id, reporter=reporter_for(context))
        with at_work(step, opened.home), library_log(context.log):
            yield from report(step, outcomes, context.partition_keys, config=opened.config)

    return dataset_snapshot


def evaluation_assets(config: Config) -> dg.AssetsDefinition:
    """Define the four assets, partitioned by eval and model."""

    @dg.multi_asset(
        name="evaluate",
        specs=_specs(config),
        partitions_def=by_eval_and_model(config),
        backfill_policy=dg.BackfillPolicy.single_run(),
        can_subset=True,
    )
    def evaluate(context: dg.AssetExecutionContext, project: ProjectResource) -> Iterator[dg.AssetMaterialization | dg.AssetObservation]:
        stages = {key.to_user_string() for key in context.selected_asset_keys}
        partitions = [(eval_name, model) for eval_name, model in (key.split("|") for key in context.partition_keys)]
        yield from _evaluate(context.op_execution_context, project.open(context.instance), partitions, stages)

    return evaluate


def evaluate_all_stages(
    context: dg.OpExecutionContext, project: Project, partitions: Collection[tuple[str, str]]
) -> Iterator[dg.AssetMaterialization | dg.AssetObservation]:
    """Evaluate (eval, model) partitions from dataset to metrics, in a step that does not belong to the assets.

    Dagster shows a partition in progress from when it is made on, and as failed if it is not materialized. Current ones have no event.
    """
    planned = Planned(context)
    with tell_making(planned):
        yield from _evaluate(context, project, partitions, STAGE_ASSETS, planned)


def _evaluate(
    context: dg.OpExecutionContext,
    project: Project,
    partitions: Collection[tuple[str, str]],
    stages: Collection[str],
    planned: Planned | None = None,
) -> Iterator[dg.AssetMaterialization | dg.AssetObservation]:
    outcomes = pipeline.evaluate(project, partitions, stages=stages, run_id=context.run.run_id, reporter=reporter_for(context))
    with at_work(context, project.home), library_log(context.log):
        keys = [partition_key(*each) for each in partitions]
        yield from report(context, outcomes, keys, config=project.config, lake=project.lake, planned=planned)


def _specs(config: Config) -> list[dg.AssetSpec]:
    of_eval = dg.AssetDep("dataset_snapshot", partition_mapping=dg.MultiToSingleDimensionPartitionMapping("eval"))
    return [
        _spec(
            "rendered_prompts",
            of_eval,
            group="data",
            kinds={"parquet", "duckdb"},
            description="Exactly what a model is sent for each sample: prompt, choices, few-shot examples. Query it as `prompts`.",
        ),
        _spec(
            "model_outputs",
            "rendered_prompts",
            group="inference",
            kinds=_kinds_of_models(config),
            description="A model's answers; only requests without one under this model version are sent. Query it as `responses`.",
        ),
        _spec(
            "sample_scores",
            "model_outputs",
            group="results",
            kinds={"parquet", "duckdb"},
            description="Every metric of every sample; calls no model. Query it as `scores`.",
        ),
        _spec(
            "task_metrics",
            "sample_scores",
            group="results",
            kinds={"duckdb", "mlflow"},
            description="Each metric with standard error and 95 % interval, overall and by subject. Query it as `metrics`.",
        ),
    ]


def _kinds_of_models(config: Config) -> set[str]:
    """The kinds of the models' backends: at most three, as Dagster allows."""
    kinds = dict.fromkeys(kind for model in config.models.values() for kind in _KINDS.get(model.backend, (model.backend,)))
    return set(list(kinds)[:_MOST_KINDS]) or {"parquet"}


def _spec(name: str, *deps: str | dg.AssetDep, group: str, kinds: set[str], description: str) -> dg.AssetSpec:
    # No code version: Dagster would call all partitions unsynced. The sources have the versions of code for each.
    return dg.AssetSpec(name, deps=[*deps, SOURCES[name]], description=description, group_name=group, kinds=kinds, skippable=True)


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
    metadata: dict[str, RawMetadataValue] = {
        "dagster/row_count": len(rows),
        "summary": dg.MetadataValue.md(markdown_table(leaderboard_rows(rows)) if rows else "There is no result yet."),
        "catalog": dg.MetadataValue.path(str(catalog_path(opened.lake))),
        **{f"warning_{number}": damage for number, damage in enumerate(damages, 1)},
    }
    return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(stable_hash(rows)))
