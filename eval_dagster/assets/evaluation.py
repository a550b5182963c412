"""The assets of the stages: dataset snapshots by eval; prompts, outputs, scores and metrics by eval and model. And `leaderboard`.

The latter are one Dagster step. So a model is loaded once for all partitions of a run, and a partition that fails at one stage does not
stop the others at the next stage. Any subset of the assets can be materialized: what it needs of those before is made in the same step.
"""

from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import Any

import dagster as dg
from pydantic import Field

from eval_dagster import pipeline
from eval_dagster.assets.asset_datasets import read_assets
from eval_dagster.assets.instance.killed_runs import at_work
from eval_dagster.assets.materializations import Planned, StepEvent, report
from eval_dagster.assets.names import LEADERBOARD, Names
from eval_dagster.assets.observing import looked_at
from eval_dagster.assets.partitions import add_partitions, removed_failures
from eval_dagster.assets.previews import leaderboard_rows, markdown_table
from eval_dagster.assets.provenance import SOURCES, partitions_of
from eval_dagster.assets.resources import ProjectFile, library_log, reporter_for
from eval_dagster.assets.tags import SUITE_TAG
from eval_dagster.assets.trust_checks import ASSETS, summaries
from eval_dagster.config.schema import Config, DagsterConfig
from eval_dagster.dagster_internals.definitions import (
    RUN_KEY_TAG,
    RawMetadataValue,
)
from eval_dagster.gate.early_stop import EarlyStop
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.files import catalog_path
from eval_dagster.lake.tables.schemas import COMMON, RECORDS, TABLES, column_texts
from eval_dagster.pages.report.histories import learning_curve_markdown
from eval_dagster.progress.reporting import tell_making
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, partition_key
from eval_dagster.texts.visible_text import visible
from eval_dagster.versions.hashes import stable_hash

STAGE_ASSETS = tuple(STAGES)[1:]
_KINDS = {"transformers": ("pytorch", "huggingface"), "vllm": ("vllm",), "openai": ("openai",), "scripted": ("python",)}
"""Kinds that Dagster's pages show for a backend. A backend of a user has its own name."""
_MOST_KINDS = 3
_MOST_CURVES = 10
_TABLES = {
    "dataset_snapshot": "samples",
    "rendered_prompts": "prompts",
    "model_outputs": "responses",
    "sample_scores": "scores",
    "task_metrics": "metrics",
}
"""The table of the files of each stage."""
_STEP = "evaluate"
"""The step of the four assets."""
_FAILED = (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED)


class Choice(dg.Config):
    """The part of a job's evals and models that a run evaluates."""

    evals: list[str] = Field(default=[], description="Names of evals; empty: all that the job is for.")
    models: list[str] = Field(default=[], description="Names of models; empty: all that the job is for.")


def chosen(names: Names, *, evals: Sequence[str] = (), models: Sequence[str] = (), of_assets: bool = False) -> dict[str, object]:
    """The config of a run that evaluates a part of its job's evals and models. `of_assets`: of the step of the assets, not of the op."""
    op = names.named(_STEP) if of_assets else names.evaluation_op
    return {"ops": {op: {"config": {"evals": list(evals), "models": list(models)}}}}


def is_whole(run: dg.DagsterRun) -> bool:
    """Whether a run evaluates all evals and models of its job."""
    config: Any = run.run_config
    choices = [op.get("config", {}) for op in config.get("ops", {}).values()]
    return not any(choice.get("evals") or choice.get("models") for choice in choices)


def snapshot_assets(project: Project) -> dg.AssetsDefinition:
    """Define `dataset_snapshot`, partitioned by eval."""
    names, file = Names.of(project), ProjectFile.of(project)
    spec = _spec(
        project,
        "dataset_snapshot",
        group="data",
        kinds={"huggingface", "parquet", "duckdb"},
        description="The rows of an eval's dataset as they were read, each named by the hash of its content. Query it as `samples`.",
    )

    @dg.multi_asset(
        name=names.named("dataset_snapshot"),
        specs=[spec],
        partitions_def=partitions_of("dataset_snapshot", project),
        backfill_policy=dg.BackfillPolicy.single_run(),
        can_subset=True,
    )
    def dataset_snapshot(context: dg.AssetExecutionContext) -> Iterator[StepEvent]:
        opened, step = file.open(context.instance), context.op_execution_context
        outcomes = pipeline.snapshot_evals(opened, list(context.partition_keys), run_id=context.run.run_id, reporter=reporter_for(context))
        with at_work(step, opened.home), library_log(context.log):
            read_assets(step, opened, [name for name in context.partition_keys if name in opened.config.evals])
            yield from report(step, outcomes, context.partition_keys, project=opened)

    return dataset_snapshot


def evaluation_assets(project: Project) -> dg.AssetsDefinition:
    """Define the four assets, partitioned by eval and model.

    A run that a suite's schedule starts evaluates all of the suite on a model, whatever partition it names (`automation.suite_schedule`).
    """
    names, file = Names.of(project), ProjectFile.of(project)

    @dg.multi_asset(
        name=names.named(_STEP),
        specs=_specs(project),
        partitions_def=partitions_of("task_metrics", project),
        backfill_policy=dg.BackfillPolicy.single_run(),
        can_subset=True,
    )
    def evaluate(context: dg.AssetExecutionContext, config: Choice) -> Iterator[StepEvent]:
        opened, step, run = file.open(context.instance), context.op_execution_context, context.run
        if SUITE_TAG in run.tags:
            yield from evaluate_choice(step, opened, config, suite=run.tags[SUITE_TAG], planned=context.partition_keys)
            return
        stages = {key.path[-1] for key in context.selected_asset_keys}
        partitions = [(eval_name, model) for eval_name, model in (key.split("|") for key in context.partition_keys)]
        yield from _evaluate(step, opened, partitions, stages)

    return evaluate


def evaluate_choice(
    context: dg.OpExecutionContext, project: Project, choice: Choice, *, suite: str | None, planned: Sequence[str] = ()
) -> Iterator[StepEvent]:
    """Evaluate the evals and models of a suite, or of the configuration, or the chosen part, from dataset to metrics, in one step.

    Dagster shows a partition in progress from when it is made on, and as failed if it is not materialized. Current ones have no event.
    `planned` are partitions that Dagster shows in progress from the start.
    """
    twin = _earlier_twin(context.instance, context.run)
    if twin is not None:
        context.log.info(f"the run {twin.run_id} evaluates the same night, so that this one evaluates nothing; are there two daemons?")
        return
    evals, models = project.select(suite=suite, evals=choice.evals, models=choice.models)
    partitions = [(eval_name, model) for model in models for eval_name in evals if project.is_pair(eval_name, model)]
    add_partitions(context.instance, project)
    plan = Planned(context, Names.of(project), {(stage, partition) for stage in STAGE_ASSETS for partition in planned})
    with tell_making(plan):
        yield from _evaluate(context, project, partitions, STAGE_ASSETS, plan, EarlyStop.of(project, suite, context.run.run_id))


def _evaluate(
    context: dg.OpExecutionContext,
    project: Project,
    partitions: Collection[tuple[str, str]],
    stages: Collection[str],
    planned: Planned | None = None,
    stopping: EarlyStop | None = None,
) -> Iterator[StepEvent]:
    removed = removed_failures(project, list(partitions), next(stage for stage in STAGE_ASSETS if stage in stages))
    gone = {(each.eval_name, each.model) for each in removed}
    known = [each for each in partitions if each not in gone]
    run_id, reporter = context.run.run_id, reporter_for(context)
    made = pipeline.evaluate(project, known, stages=stages, run_id=run_id, reporter=reporter, stopping=stopping) if known else ()
    outcomes = looked_at(context.instance, project, chain(removed, made))
    with at_work(context, project.home), library_log(context.log):
        read_assets(context, project, list(dict.fromkeys(name for name, _ in known)))
        keys = [partition_key(*each) for each in partitions]
        yield from report(context, outcomes, keys, project=project, planned=planned)


def _earlier_twin(instance: dg.DagsterInstance, run: dg.DagsterRun) -> dg.DagsterRun | None:
    """The first run of the same night and model, as a second daemon requests one.

    None if it has failed, or if a person has executed the run again.
    """
    key = run.tags.get(RUN_KEY_TAG)
    if key is None or run.parent_run_id is not None:
        return None
    records = instance.get_run_records(dg.RunsFilter(job_name=run.job_name, tags={RUN_KEY_TAG: key}), ascending=True)
    first = next((record.dagster_run for record in records if record.dagster_run.status not in _FAILED), run)
    return None if first.run_id == run.run_id else first


def _specs(project: Project) -> list[dg.AssetSpec]:
    names = Names.of(project)
    of_eval = dg.AssetDep(names.key("dataset_snapshot"), partition_mapping=dg.MultiToSingleDimensionPartitionMapping("eval"))
    return [
        _spec(
            project,
            "rendered_prompts",
            of_eval,
            group="data",
            kinds={"parquet", "duckdb"},
            description="Exactly what a model is sent for each sample: prompt, choices, few-shot examples. Query it as `prompts`.",
        ),
        _spec(
            project,
            "model_outputs",
            names.key("rendered_prompts"),
            group="inference",
            kinds=_kinds_of_models(project.config),
            description="A model's answers; only requests without one under this model version are sent. Query it as `responses`.",
        ),
        _spec(
            project,
            "sample_scores",
            names.key("model_outputs"),
            group="results",
            kinds={"parquet", "duckdb"},
            description="Every metric of every sample; calls no model. Query it as `scores`.",
        ),
        _spec(
            project,
            "task_metrics",
            names.key("sample_scores"),
            group="results",
            kinds={"duckdb", "mlflow"},
            description="Each metric with standard error and 95 % interval, overall and by subject. Query it as `metrics`.",
        ),
    ]


def _kinds_of_models(config: Config) -> set[str]:
    """The kinds of the models' backends: at most three, as Dagster allows."""
    kinds = dict.fromkeys(kind for model in config.models.values() for kind in _KINDS.get(model.backend, (model.backend,)))
    return set(list(kinds)[:_MOST_KINDS]) or {"parquet"}


def _spec(project: Project, name: str, *deps: dg.AssetKey | dg.AssetDep, group: str, kinds: set[str], description: str) -> dg.AssetSpec:
    # No code version: Dagster would call all partitions unsynced. The sources have the versions of code for each.
    names = Names.of(project)
    return dg.AssetSpec(
        names.key(name),
        deps=[*deps, names.key(SOURCES[name])],
        description=description,
        group_name=group,
        kinds=kinds,
        metadata={"dagster/column_schema": column_schema(_TABLES[name]), "dagster/code_references": code_references(project)},
        skippable=True,
    )


def column_schema(table: str) -> dg.TableSchema:
    """The columns of a table of the lake, as Dagster shows them."""
    texts = {**COMMON, **column_texts(*RECORDS[table])}
    return dg.TableSchema([dg.TableColumn(field.name, str(field.type), description=texts.get(field.name)) for field in TABLES[table]])


def code_references(project: Project) -> dg.CodeReferencesMetadataValue:
    """The file of the configuration."""
    file = dg.LocalFileCodeReference(file_path=str(project.config_path), line_number=1, label=project.config_path.name)
    return dg.CodeReferencesMetadataValue(code_references=[file])


def spec_with_options(spec: dg.AssetSpec, options: DagsterConfig) -> dg.AssetSpec:
    """An asset with the group, owners, tags and kinds of evals.yaml."""
    return spec.replace_attributes(
        group_name=options.group or spec.group_name,
        owners=[*spec.owners, *options.owners],
        tags={**{name: value for name, value in spec.tags.items() if not name.startswith("dagster/kind/")}, **options.tags},
        kinds=set(options.kinds) or spec.kinds,
    )


_REFRESH = (
    dg.AutomationCondition.any_deps_updated().since_last_handled()
    & ~dg.AutomationCondition.any_deps_in_progress()
    & ~dg.AutomationCondition.in_progress()
)


def _curve(project: Project, run: str) -> str | None:
    """The mean learning curve of a training run, or of its first eval where a mean is missing."""
    evals = (None, *list(project.config.evals)[:_MOST_CURVES])
    return next((curve for name in evals if (curve := learning_curve_markdown(project.lake, run, name))), None)


def leaderboard_asset(project: Project) -> dg.AssetsDefinition:
    """Define `leaderboard`."""
    names, file = Names.of(project), ProjectFile.of(project)

    @dg.asset(
        key=names.key(LEADERBOARD),
        deps=[names.key("task_metrics")],
        description="Each eval's headline metric by model, with error bars, and ranks among comparable results. Query it as `leaderboard`.",
        group_name="results",
        kinds={"duckdb", "sql"},
        automation_condition=_REFRESH.with_label("metrics_changed_and_none_in_progress"),
    )
    def leaderboard(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
        """Publish the catalog and show its leaderboard."""
        opened = file.open(context.instance)
        with at_work(context.op_execution_context, opened.home):
            damages = list(map(visible, publish(opened.lake)))
            rows = read_rows(opened.lake, "select * from leaderboard")
            curves = {run: _curve(opened, run) for run in opened.training_runs}
            if opened.lake.mirror is not None:  # its steps have no catalog of all machines
                for each in summaries(opened, list(ASSETS)):
                    context.instance.report_runless_asset_event(each)
        for damage in damages:
            context.log.warning(damage)
        metadata: dict[str, RawMetadataValue] = {
            "dagster/row_count": len(rows),
            "summary": dg.MetadataValue.md(markdown_table(leaderboard_rows(rows)) if rows else "There is no result yet."),
            **{f"learning_curve {run}": dg.MetadataValue.md(curve) for run, curve in curves.items() if curve is not None},
            "catalog": dg.MetadataValue.path(str(catalog_path(opened.lake))),
            **{f"warning_{number}": damage for number, damage in enumerate(damages, 1)},
        }
        return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(stable_hash(rows)))

    return leaderboard
