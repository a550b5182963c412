"""Outcomes of stages as Dagster events, with the metadata that Dagster shows."""

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import dagster as dg
from dagster import MetadataValue

from eval_dagster.assets.asset_datasets import asset_key
from eval_dagster.assets.names import Names
from eval_dagster.assets.previews import metrics_of, preview_metadata, table_metadata
from eval_dagster.assets.provenance import Provenance, shown_again, version_tags
from eval_dagster.assets.trust_checks import ASSETS, evaluations, is_summary_planned, newest_materializations, summaries
from eval_dagster.dagster_internals.definitions import AssetMaterializationPlannedData, DagsterEvent, RawMetadataValue
from eval_dagster.datasets.assets import keys_in
from eval_dagster.errors import EvalDagsterError
from eval_dagster.lake.tables.columns import MetricFigures, MetricRow
from eval_dagster.pages.report.histories import headline_markdown
from eval_dagster.pipeline import Outcome
from eval_dagster.project import Project
from eval_dagster.results.trust import About
from eval_dagster.stages.findings import FINDINGS_NOTE
from eval_dagster.stages.partition import STAGES, StageFailure, StageResult, partition_key
from eval_dagster.texts.figures import counted
from eval_dagster.texts.visible_text import visible

StepEvent: TypeAlias = dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation
"""The events that a step logs."""
_ROWS = ("rows", "prompts", "requests", "scores", "metrics")
"""The name of the number of rows in each stage's counts."""
CURRENT = "current_partitions"
"""The metadata of an observation with the number of partitions that a step found current."""
_MOST_NAMES = 1000
"""Most partitions that an observation names."""


class Planned:
    """Logs the partitions that a step makes as planned, each before it is made, as Dagster does for all partitions of a run of assets."""

    def __init__(self, context: dg.OpExecutionContext, names: Names, by_dagster: Collection[tuple[str, str]] = ()) -> None:
        """`by_dagster` are the stages and partitions that Dagster has logged as planned at the start of the run."""
        self._context = context
        self._names = names
        self._by_dagster = by_dagster
        self._known = set(by_dagster)

    def is_by_dagster(self, stage: str, partition: str) -> bool:
        """Whether Dagster has planned a partition, which it shows as failed if the run fails."""
        return (stage, partition) in self._by_dagster

    def __call__(self, stage: str, eval_name: str, model: str | None) -> None:
        """Log a partition, unless it is logged."""
        context, partition = self._context, partition_key(eval_name, model)
        if (stage, partition) in self._known:
            return
        self._known.add((stage, partition))
        planned = AssetMaterializationPlannedData(self._names.key(stage), partition=partition)
        step = context.get_step_execution_context().step.key
        context.instance.report_dagster_event(
            DagsterEvent.build_asset_materialization_planned_event(context.job_name, step, planned), context.run_id, logging.DEBUG
        )


def report(
    context: dg.OpExecutionContext,
    outcomes: Iterable[Outcome],
    partitions: Collection[str],
    *,
    project: Project,
    planned: Planned | None = None,
) -> Iterator[StepEvent]:
    """Log a materialization for each partition as soon as it is made, and fail at the end if one failed.

    Partitions are logged one by one and not as the outcome of the step. So each has its own data version, and is current in Dagster even if
    another one fails or the run is killed. A partition that was current has no event if Dagster shows it so: an observation of each asset
    has their number. If the step fails and Dagster has planned them, they are logged all the same, since it would show them as failed.

    Args:
        context: That of the step.
        outcomes: The outcomes, stage by stage.
        partitions: The keys of all partitions of the step.
        project: The project of the partitions. Its histories of scores are shown with the metrics.
        planned: Logs what is made, if Dagster has not planned all partitions of the step.

    Raises:
        Failure: At least one partition failed.
    """
    failures: list[StageFailure] = []
    current: dict[str, list[str]] = defaultdict(list)
    warned: dict[str, list[str]] = defaultdict(list)
    made: dict[str, list[str]] = defaultdict(list)
    done = 0
    provenance, names = Provenance(context.instance, partitions, project), Names.of(project)
    for outcome in outcomes:
        if isinstance(outcome, StageFailure) and outcome.model and project.deletion(outcome.model):
            context.log.warning(visible(_failure_line(outcome)))
            yield _not_evaluated(outcome, names)
            continue
        if isinstance(outcome, StageFailure):
            failures.append(outcome)
            if planned is not None:
                for lost in _lost(outcome, partitions):
                    planned(*lost)
            (context.log.warning if outcome.is_limited else context.log.error)(visible(_failure_line(outcome)))
            continue
        done += 1
        if outcome.cached and provenance.is_shown(outcome):
            provenance.observe(outcome)
            current[outcome.stage].append(partition_key(outcome.eval_name, outcome.model))
            warned[outcome.stage] += map(visible, outcome.warnings)
            continue
        for warning in outcome.warnings:
            context.log.warning(visible(warning))
        made[outcome.stage].append(partition_key(outcome.eval_name, outcome.model))
        yield materialization(outcome, names, provenance.tags(outcome), _history(project, outcome))
    for stage, keys in current.items():
        asset = names.key(stage)
        if warned[stage]:  # in one event, since they are those of earlier runs
            context.log.warning("\n".join(warned[stage]))
        yield _current(asset, keys, warned[stage])
        if failures:
            for key in [key for key in keys if planned is None or planned.is_by_dagster(stage, key)]:
                if again := shown_again(context.instance, asset, key):
                    yield again
                    made[stage].append(key)  # Dagster shows no evaluation of an earlier materialization
    yield from _checked(context, project, made, is_failed=bool(failures))
    if failures:
        raise _failed_step(failures, done)


def _checked(
    context: dg.OpExecutionContext, project: Project, made: Mapping[str, Sequence[str]], *, is_failed: bool
) -> Iterator[dg.AssetCheckEvaluation]:
    """The evaluations of the checks of what a step made, and the summaries if there are any. Results stand without them.

    Dagster runs no check of an asset whose step failed, and would show the summaries as failed too, which are of all results.
    """
    by_partition: dict[str, list[About]] = defaultdict(list)
    for group, asset in ASSETS.items():
        for key in made.get(asset, ()):
            by_partition[key].append(group)
    try:
        targets = {group: newest_materializations(context.instance, project, group, made.get(ASSETS[group], ())) for group in ASSETS}
        for key, groups in by_partition.items():
            yield from evaluations(project, key, {group: targets[group].get(key) for group in groups})
        if project.lake.mirror is None:  # of a shared lake, the refresh of the leaderboard has them
            groups = [each for each in ASSETS if made.get(ASSETS[each]) or (is_failed and is_summary_planned(context, project, each))]
            yield from summaries(project, groups)
    except (EvalDagsterError, OSError) as error:
        context.log.warning(visible(f"it is not known whether the results can be trusted: {error}"))


def _lost(failure: StageFailure, partitions: Collection[str]) -> Iterator[tuple[str, str, str | None]]:
    """The stage that failed and those after it, each with its eval and model: Dagster shows all of them as failed."""
    keys = [key.partition("|") for key in partitions]
    models = [failure.model] if failure.model else [model for name, _, model in keys if name == failure.eval_name and model]
    stages = list(STAGES)
    for stage in stages[stages.index(failure.stage) :]:
        for model in [None] if stage == "dataset_snapshot" else models:
            yield stage, failure.eval_name, model


def _current(key: dg.AssetKey, partitions: Sequence[str], warnings: Sequence[str]) -> dg.AssetObservation:
    """The observation of the partitions of an asset that a step found current."""
    return dg.AssetObservation(
        key,
        description=f"{counted(len(partitions), 'partition')} current: nothing changed since the last materialization",
        metadata={
            CURRENT: len(partitions),
            "partitions": "\n".join(partitions[:_MOST_NAMES]) + ("\n…" if len(partitions) > _MOST_NAMES else ""),
            **{f"warning_{number}": warning for number, warning in enumerate(warnings, 1)},
        },
    )


def _not_evaluated(failure: StageFailure, names: Names) -> dg.AssetObservation:
    """A partition of a deleted checkpoint. It does not fail, since nobody can evaluate it any more."""
    return dg.AssetObservation(
        names.key(failure.stage),
        partition=partition_key(failure.eval_name, failure.model),
        description=visible(f"not evaluated: {failure.message}"),
        metadata={"warning_1": visible(_failure_line(failure))},
    )


def _failed_step(failures: Sequence[StageFailure], done: int) -> dg.Failure:
    """The failure of a step, with a table of the partitions that failed, and one of those that a limit kept from being evaluated."""
    failed, limited = [each for each in failures if not each.is_limited], [each for each in failures if each.is_limited]
    said = [*([f"{len(failed)} partitions failed"] if failed else []), *([f"{len(limited)} not evaluated"] if limited else [])]
    tables = {"failures": [_failure_row(each) for each in failed], "not_evaluated": [_failure_row(each) for each in limited]}
    return dg.Failure(
        description=f"{', '.join(said)}, {done} stage results are current: " + visible("; ".join(map(_failure_line, failures))),
        metadata={name: table_metadata(rows) for name, rows in tables.items() if rows},
        allow_retries=False,
    )


def _failure_row(failure: StageFailure) -> dict[str, object]:
    left = {"requests_left": int(failure.counts["requests_left"])} if failure.is_limited else {}
    return {"stage": failure.stage, "partition": partition_key(failure.eval_name, failure.model), **left, "message": failure.message}


def _failure_line(failure: StageFailure) -> str:
    return f"{failure.stage} {partition_key(failure.eval_name, failure.model)}: {failure.message}"


def _history(project: Project, result: StageResult) -> dict[str, dg.MarkdownMetadataValue]:
    """The picture of a score's history, if there is one."""
    if result.stage != "task_metrics" or result.model is None:
        return {}
    picture = headline_markdown(project.lake, result.eval_name, result.model)
    return {"score_history": MetadataValue.md(picture)} if picture else {}


def materialization(
    result: StageResult,
    names: Names,
    provenance: Mapping[str, str],
    pictures: Mapping[str, dg.MarkdownMetadataValue] = MappingProxyType({}),
) -> dg.AssetMaterialization:
    """The materialization of a result, with what Dagster shows of it."""
    info = result.file.info
    counts, when_made = _split_counts(result)
    upstream = [name for name in STAGES if name in info.inputs]
    metadata: dict[str, RawMetadataValue] = {
        **(_score_metadata(metrics_of(result)) if result.stage == "task_metrics" else {}),
        "cached": result.cached,
        "summary": _summary(result),
        **pictures,
        **{name: MetadataValue.url(link) for name, link in result.links.items()},
        **{name: MetadataValue.path(str(path)) for name, path in result.files.items()},
        **preview_metadata(result),
        **{name: _number(value) for name, value in counts.items()},
        **({} if result.cached else {name: visible(note) for name, note in info.notes.items() if name != FINDINGS_NOTE}),
        **({"when_made": MetadataValue.json(when_made)} if when_made else {}),
        **{f"warning_{number}": warning for number, warning in enumerate(map(visible, result.warnings), 1)},
        "version": info.version,
        "upstream_versions": MetadataValue.json(dict(info.inputs)),
        **{f"upstream_{name}": MetadataValue.asset(names.key(name)) for name in upstream},
        **{f"rows_of_{key}": MetadataValue.asset(asset_key(key)) for key in _row_assets(info.inputs.get("dataset", ""))},
        "file": MetadataValue.path(str(result.file.path)),
        "made_by_run": info.run_id,
    }
    metadata["dagster/uri"] = result.file.path.resolve().as_uri()
    metadata["dagster/row_count"] = int(next(counts[name] for name in _ROWS if name in counts))
    return dg.AssetMaterialization(
        asset_key=names.key(result.stage),
        partition=partition_key(result.eval_name, result.model),
        description=_summary(result),
        metadata=metadata,
        tags={**version_tags(info.version), **provenance},
    )


def _row_assets(dataset: str) -> list[str]:
    """The keys of the assets that have the rows of a dataset."""
    return list(dict.fromkeys(keys_in(dataset.partition("@")[0]).values()))


def _split_counts(result: StageResult) -> tuple[dict[str, float], dict[str, float | str]]:
    """A file's counts, separated from the cost of the earlier run that produced a cached file, which `made_by_run` names."""
    info = result.file.info
    counts = dict(info.counts)
    if not result.cached or "requests" not in counts:
        return counts, {}
    earlier = {name: counts.pop(name) for name in info.counts if name.startswith("run_")}
    nothing = {"requests_computed": 0, "requests_cached": counts["requests"], "tokens_asked": 0, "model_seconds": 0}
    nothing |= {name: 0 for name in counts if name.endswith("_computed")}
    return counts | nothing, {**{name: _number(value) for name, value in earlier.items()}, **info.notes}


def _summary(result: StageResult) -> str:
    counts = result.file.info.counts
    if result.cached:
        return "cached: nothing changed since it was made"
    if result.stage == "model_outputs":
        rate = f", {counts['run_tokens_per_s']:,.0f} tokens/s" if "run_tokens_per_s" in counts else ""
        cost = f", ${counts['cost_computed']:.4f}" if "cost_computed" in counts else ""
        computed, cached = counts["requests_computed"], counts["requests_cached"]
        if "turns" in counts:
            computed, cached = counts["turns_computed"], counts["turns"] - counts["turns_computed"]
        return f"{computed:.0f} requests computed, {cached:.0f} cached, {counts['errors']:.0f} errors{rate}{cost}"
    return ", ".join(f"{value:g} {name.replace('_', ' ')}" for name, value in counts.items() if value or name == "errors")


def _score_metadata(preview: Sequence[MetricRow]) -> dict[str, str | float]:
    """Each overall score as a number, which Dagster plots over time, and as text with its error bar."""
    rows = [row for row in preview if row["subject"] is None]
    macro = {row["metric"] for row in rows if row["aggregation"] == "macro" and row["is_headline"]}
    overall = [row for row in rows if (row["aggregation"] == "macro") == (row["metric"] in macro)]
    texts = [f"{row['metric']} {_score(row)}" for row in overall]
    numbers = {f"score_{row['metric']}".replace("/", "_"): row["value"] for row in overall if row["value"] is not None}
    noted = next((row for row in rows if row.get("estimate_note")), None)
    estimate: dict[str, str | float] = {} if noted is None else {"estimate": visible(str(noted["estimate_note"]))}
    if noted is not None and noted["estimate_factor"] is not None:
        estimate["estimate_factor"] = noted["estimate_factor"]
    return {"score": visible("; ".join(texts)), **estimate, **{visible(name): value for name, value in numbers.items()}}


def _score(row: MetricFigures) -> str:
    """A score with its error bar, and the number of errors."""
    if row["value"] is None:
        return f"no value ({row['n_errors']} errors)"
    stderr = "" if row["stderr"] is None else f" ± {row['stderr']:.3f}"
    errors = f", {row['n_errors']} errors" if row["n_errors"] else ""
    return f"{row['value']:.3f}{stderr} (n={row['n']}{errors})"


def _number(value: float) -> int | float:
    return int(value) if float(value).is_integer() else float(value)
