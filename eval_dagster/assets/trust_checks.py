"""Asset checks that say whether a result can be trusted: three for each eval and model, and a summary of all for each of their assets.

A step evaluates the checks of what it made, from the findings that the metrics keep (`results.trust`). A partition that could not
be checked has no evaluation. Dagster's lists show the last evaluation of a check alone, which may be of any partition: so the summaries
have no partitions, and come last.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence

import dagster as dg

from eval_dagster.assets.names import Names
from eval_dagster.assets.previews import table_metadata
from eval_dagster.assets.provenance import partitions_of
from eval_dagster.assets.resources import ProjectFile
from eval_dagster.dagster_internals.definitions import AssetCheckEvaluationTargetMaterializationData as Target
from eval_dagster.dagster_internals.definitions import RawMetadataValue
from eval_dagster.lake.catalog.catalog import read_rows, refresh
from eval_dagster.project import Project
from eval_dagster.records import Finding, Status
from eval_dagster.results.trust import About, Trust, about, cell_findings
from eval_dagster.stages.partition import STAGES, sound_current
from eval_dagster.texts.figures import counted
from eval_dagster.texts.visible_text import visible

ASSETS: Mapping[About, str] = {About.PROMPTS: "rendered_prompts", About.OUTPUTS: "model_outputs", About.SCORES: "task_metrics"}
"""The asset that the checks of a group are about."""
_MEANINGS: Mapping[About, str] = {
    About.PROMPTS: "No sign in rows and prompts that the score measures something else: duplicates, examples that tell the answer, answers "
    "in the prompt, gold answers that no choice has.",
    About.OUTPUTS: "The answers are whole: none cut off, empty, refused, in a loop or an error, beyond what chance explains.",
    About.SCORES: "The metrics read the answers: an answer was found in the text, not always at one place, in the format of the last "
    "result.",
}
_MOST_SAMPLES = 5
_MOST_RECORDS = 200
"""Most materializations that are read in one query, with their metadata."""
_MOST_NAMED = 20
"""Most partitions that a summary names."""


def check_name(group: About) -> str:
    """The name of the check of each partition."""
    return f"sound_{group.value}"


def summary_name(group: About) -> str:
    """The name of the check of all partitions together."""
    return f"all_{group.value}_sound"


def trust_checks(project: Project) -> list[dg.AssetChecksDefinition]:
    """Define the checks. A person can evaluate them again, for chosen partitions, and each summary."""
    names, file = Names.of(project), ProjectFile.of(project)
    groups = {names.key(asset): group for group, asset in ASSETS.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.PreviewWarning)  # partitions of checks
        specs = [
            dg.AssetCheckSpec(
                check_name(group), asset=key, description=_MEANINGS[group], partitions_def=partitions_of(ASSETS[group], project)
            )
            for key, group in groups.items()
        ]

    @dg.multi_asset_check(name=names.named("trust_of_results"), specs=specs, can_subset=True)
    def trust_of_results(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckEvaluation]:
        opened = file.open(context.instance)
        chosen = [groups[key.asset_key] for key in context.selected_asset_check_keys]
        partitions = context.op_execution_context.partition_keys
        targets = {group: newest_materializations(context.instance, opened, group, partitions) for group in chosen}
        for partition in partitions:
            yield from evaluations(opened, partition, {group: of_group.get(partition) for group, of_group in targets.items()})

    def summary(group: About) -> dg.AssetChecksDefinition:
        @dg.asset_check(
            asset=names.key(ASSETS[group]),
            name=summary_name(group),
            description=f"In all current results: {_MEANINGS[group][0].lower()}{_MEANINGS[group][1:]}",
        )
        def check() -> dg.AssetCheckResult:
            found = _summary(file.open(), group)
            return dg.AssetCheckResult(
                passed=found.passed, severity=found.severity, description=found.description, metadata=dict(found.metadata)
            )

        return check

    return [trust_of_results, *(summary(group) for group in groups.values())]


def evaluations(project: Project, partition: str, groups: Mapping[About, Target | None]) -> Iterator[dg.AssetCheckEvaluation]:
    """The evaluations of the checks of a partition. None of what could not be checked, or is older than the asset's newest version.

    `groups` are the checks, each with the newest materialization that it is about (`newest_materializations`).
    """
    eval_name, _, model = partition.partition("|")
    metrics = sound_current(project.lake, STAGES["task_metrics"], eval_name, model)
    found = cell_findings(project.lake, eval_name, model)
    if metrics is None or found is None:
        return
    for group, target in groups.items():
        asset, findings = ASSETS[group], found[group]
        made = sound_current(project.lake, STAGES[asset], eval_name, model)
        is_same = made is not None and (asset == "task_metrics" or metrics.info.inputs.get(asset) == made.info.version)
        if not is_same or findings.trust is Trust.CANNOT_TELL:
            continue
        signs = findings.with_status(Status.FOUND)
        yield _evaluation(
            project,
            group,
            passed=findings.trust is Trust.PASSED,
            description="; ".join(each.seen for each in signs) or f"nothing found by {counted(len(findings.findings), 'check')}",
            metadata=_cell_metadata(project, eval_name, model, findings.findings),
            partition=partition,
            target=target,
        )


def newest_materializations(instance: dg.DagsterInstance, project: Project, group: About, partitions: Sequence[str]) -> dict[str, Target]:
    """The newest materialization of each partition that has one, of the asset that a group is about.

    Without it, Dagster's pages show no evaluation of a materialized partition.
    """
    key, storage = Names.of(project).key(ASSETS[group]), instance.event_log_storage
    found: dict[str, Target] = {}
    for start in range(0, len(partitions), _MOST_RECORDS):
        some = partitions[start : start + _MOST_RECORDS]
        ids = storage.get_latest_storage_id_by_partition(key, dg.DagsterEventType.ASSET_MATERIALIZATION, set(some))
        records = (
            instance.fetch_materializations(dg.AssetRecordsFilter(key, storage_ids=list(ids.values())), limit=len(some)) if ids else None
        )
        for each in records.records if records else ():
            if each.partition_key is not None:
                found[each.partition_key] = Target(storage_id=each.storage_id, run_id=each.run_id, timestamp=each.timestamp)
    return found


def is_summary_planned(context: dg.OpExecutionContext, project: Project, group: About) -> bool:
    """Whether Dagster has planned the summary of a group in the run of a step."""
    check = dg.AssetCheckKey(Names.of(project).key(ASSETS[group]), summary_name(group))
    newest = context.instance.event_log_storage.get_asset_check_execution_history(check, limit=1)
    return bool(newest) and newest[0].run_id == context.run_id


def summaries(project: Project, groups: Sequence[About]) -> Iterator[dg.AssetCheckEvaluation]:
    """The evaluations of the summaries, from the published catalog."""
    for group in groups:
        yield _summary(project, group)


def _summary(project: Project, group: About) -> dg.AssetCheckEvaluation:
    refresh(project.lake)
    rows = read_rows(project.lake, "select eval, model, check_name, status, seen from eval_findings")
    results = {(row["eval"], row["model"]) for row in read_rows(project.lake, "select eval, model from leaderboard")}
    own = [row for row in rows if (row["eval"], row["model"]) in results and about(row["check_name"]) is group]
    signs = [row for row in own if row["status"] == Status.FOUND]
    wrong = sorted({f"{row['eval']}|{row['model']}" for row in signs})
    looked = {(row["eval"], row["model"]) for row in own if row["status"] != Status.NOT_CHECKED}
    unknown = len(results) - len(looked)
    said = [
        f"{len(wrong)} of {counted(len(results), 'result')} cannot be trusted" if wrong else f"{counted(len(looked), 'result')} sound",
        *([f"{unknown} could not be checked"] if unknown else []),
    ]
    table = [{name: row[name] for name in ("eval", "model", "check_name", "seen")} for row in signs]
    return _evaluation(
        project,
        group,
        passed=bool(looked) and not wrong,
        description=", ".join(said) + (f": {', '.join(wrong[:_MOST_NAMED])}{', …' if len(wrong) > _MOST_NAMED else ''}" if wrong else ""),
        metadata={"findings": table_metadata(table)} if table else {},
    )


def _evaluation(
    project: Project,
    group: About,
    *,
    passed: bool,
    description: str,
    metadata: Mapping[str, RawMetadataValue],
    partition: str | None = None,
    target: Target | None = None,
) -> dg.AssetCheckEvaluation:
    severity = dg.AssetCheckSeverity.ERROR if project.config.dagster.untrusted == "error" else dg.AssetCheckSeverity.WARN
    return dg.AssetCheckEvaluation(
        asset_key=Names.of(project).key(ASSETS[group]),
        check_name=check_name(group) if partition else summary_name(group),
        passed=passed,
        severity=severity,
        description=visible(description),
        metadata=metadata,
        partition=partition,
        target_materialization_data=target,
    )


def _cell_metadata(project: Project, eval_name: str, model: str, findings: Sequence[Finding]) -> dict[str, RawMetadataValue]:
    """Each check with what it found, the signs first; samples, and their pages if they can be reached."""
    order = [Status.FOUND, Status.NOTE, Status.CLEAN, Status.NOT_CHECKED]
    # Text, since Dagster does not break the lines of a table on the narrow page of a partition.
    metadata: dict[str, RawMetadataValue] = {
        each.check.value: visible(_words(each)) for each in sorted(findings, key=lambda each: order.index(each.status))
    }
    samples = list(dict.fromkeys(sample for each in findings if each.status is Status.FOUND for sample in each.sample_ids))[:_MOST_SAMPLES]
    for number, sample in enumerate(samples, 1):
        page = project.addresses.sample(eval_name, model, sample)
        metadata[f"sample_{number}"] = dg.MetadataValue.url(page) if page else sample
    return metadata


def _words(finding: Finding) -> str:
    if finding.status in (Status.FOUND, Status.NOTE):
        return f"{finding.status.value}: {'; '.join(filter(None, (finding.seen, finding.effect, finding.advice)))}"
    if finding.status is Status.CLEAN:
        return "clean" if finding.n_of is None else f"clean: {counted(finding.n_of, 'sample')} looked at"
    return f"{finding.status.value}: {finding.seen}"
