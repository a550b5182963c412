"""Stage `rendered_prompts`: the exact prompts that a model gets for the samples of an eval."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

import pyarrow as pa

from eval_dagster.errors import DataError, LakeError, UsageError, WholeEvalError
from eval_dagster.lake.files import LakeFile
from eval_dagster.lake.format.parquet_files import FileInfo, TableParts, iter_tables, parquet_files, read_head, read_rows
from eval_dagster.lake.tables.columns import PromptRow
from eval_dagster.lake.tables.rows import prompt_row, with_constants
from eval_dagster.lake.tables.schemas import TABLES
from eval_dagster.progress.reporting import following
from eval_dagster.project import Project
from eval_dagster.prompts.formatters import formatter_for
from eval_dagster.prompts.lint import lint_rows
from eval_dagster.prompts.rendering import Rendering, checked, failed_prompt, fewshot_pool, render_sample, unreadable_prompt
from eval_dagster.prompts.row_sample import RowSample
from eval_dagster.records import Finding, Sample, Status
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.stages.findings import FINDINGS_NOTE, findings_note, stored_findings
from eval_dagster.stages.partition import STAGES, AskedPrompts, Partition, Plan, StageResult, require_execution
from eval_dagster.stages.snapshot import expected_samples, stored_samples
from eval_dagster.tasks.benchmark import AdapterTask, OrderedTask
from eval_dagster.tasks.samples import is_whole
from eval_dagster.tasks.variants import DEFAULT, variant_id, varied_task
from eval_dagster.versions.hashes import ListHash, code_version, definition_version, stable_hash

_STAGE = "rendered_prompts"
_FEW = 5
"""Least number of prompts of which one has to differ between variants."""
_PREVIEW = ("prompt", "choices", "gold", "subject", "sample_id")


def materialize_prompts(partition: Partition) -> StageResult:
    """Make the prompts of an eval for a model current.

    Raises:
        RequirementError: The eval has metrics that run code, and the project or the machine does not permit it.
        DataError: The task fails on every row, or the few-shot pool is too small.
        LakeError: The snapshot is missing or damaged.
    """
    project, eval_name = partition.project, partition.eval_name
    snapshot = partition.snapshot()
    rendering = rendering_of(project, eval_name, partition.model)
    plan = plan_prompts(partition, rendering, snapshot.info.version)
    current = plan.fresh
    if current is None:
        partition.making(_STAGE)
        require_execution(project, eval_name)

        def written(made: _Made) -> LakeFile:
            info = FileInfo(
                fingerprint=plan.fingerprint,
                version=made.asked.version,
                run_id=partition.run_id,
                materialized_at=partition.next_time(_STAGE),
                inputs={
                    "dataset_snapshot": snapshot.info.version,
                    # Names do not change answers or scores, but are in the rows of both.
                    **({"sample_names": made.asked.names} if made.asked.names else {}),
                    **snapshot.info.inputs,
                },
                counts=made.counts,
                made_of=plan.made_of,
                notes={FINDINGS_NOTE: findings_note(made.findings)},
            )
            return partition.write_table(_STAGE, made.rows, info)

        equal = _of_another_model(partition, plan.fingerprint)
        with suppress(LakeError):  # the other model's file is damaged
            current = None if equal is None else written(equal)
        current = current or written(_made(partition, rendering))
    warnings = [f"eval {eval_name}: {each}" for each in stored_findings(current) or () if each.status is Status.FOUND]
    if current.info.counts.get("repeated_names"):
        words = shared_names(_named(read_rows(current.path, ["sample_name", "source_id"])))
        warnings = [f"{partition}: {words}", *warnings]
    return partition.result(
        _STAGE, current, cached=plan.fresh is not None, read_preview=partial(read_head, current.path, 3, _PREVIEW), warnings=warnings
    )


@dataclass(frozen=True, kw_only=True)
class _Made:
    """The prompts of an eval for a model, as they are stored."""

    rows: TableParts
    asked: AskedPrompts
    counts: Mapping[str, float]
    findings: Sequence[Finding]


def _made(partition: Partition, rendering: Rendering) -> _Made:
    """Render all prompts. Few are held at once. Raises as `render_samples`."""
    project, eval_name, num_fewshot = partition.project, partition.eval_name, rendering.num_fewshot
    rows, looked_at, version, counts = partition.table(_STAGE), RowSample(num_fewshot=num_fewshot), _Version(), Counter[str]()
    source_of: dict[str, str] = {}
    repeated: set[str] = set()
    expected = expected_samples(project, eval_name) * (1 + len(rendering.others))
    rendered = render_eval(project, eval_name, rendering)
    for prompt in following(rendered, f"{_STAGE} {partition}", total=expected, unit="prompts"):
        version.add(prompt)
        row = prompt_row(eval_name, partition.model, prompt, num_fewshot, "")
        rows.add(row)
        counts.update(
            prompts=1,
            errors=int(prompt.error is not None),
            choices=len(row["choices"] or ()),
            characters=len(row["prompt"]),
            retryable_errors=int(prompt.is_retryable),
            merged_system_messages=int(prompt.is_system_merged),
        )
        if prompt.sample_name is not None and source_of.setdefault(prompt.sample_name, prompt.source_id) != prompt.source_id:
            repeated.add(prompt.sample_name)
        if prompt.variant in (None, DEFAULT):
            looked_at.add(prompt)
    asked, always = version.asked(), ("prompts", "errors", "choices")
    return _Made(
        rows=rows.rows(prompt_version=asked.version),
        asked=asked,
        counts={
            **{name: counts[name] for name in always},
            "mean_characters": round(counts["characters"] / counts["prompts"], 1),
            **{name: counts[name] for name in ("retryable_errors", "merged_system_messages") if counts[name]},
            **({"repeated_names": len(repeated)} if repeated else {}),
        },
        findings=lint_rows(looked_at, compares_texts=any(metric.COMPARES_TEXTS for metric in partition.task.METRICS)),
    )


def _of_another_model(partition: Partition, fingerprint: str) -> _Made | None:
    """The prompts that another model of the project has for the eval, if the same makes them: then they are equal, and not rendered again.

    Files on this machine are looked at alone, by their footers. Reading the rows raises `LakeError` if the file is damaged.
    """
    table, lake = STAGES[_STAGE], partition.project.lake
    for model in partition.project.config.models:
        for path in [] if model == partition.model else parquet_files(lake.folder(table, partition.eval_name, model))[-1:]:
            with suppress(LakeError):
                file = LakeFile(path=path, info=lake.info(path))
                findings = stored_findings(file)
                if file.info.fingerprint == fingerprint and findings is not None and not file.info.counts.get("retryable_errors"):
                    return _Made(
                        rows=TableParts(schema=TABLES[table], read=partial(_rows_for, partition.model, path)),
                        asked=AskedPrompts.of(file),
                        counts=file.info.counts,
                        findings=findings,
                    )
    return None


def _rows_for(model: str, path: Path) -> Iterator[pa.Table]:
    schema = TABLES[STAGES[_STAGE]]
    for part in iter_tables(path, schema.names):
        yield with_constants(part.select(schema.names).cast(schema), model=model)


def plan_prompts(partition: Partition, rendering: Rendering, snapshot_version: str) -> Plan:
    """Whether the current prompts belong to a snapshot of this version. Renders nothing."""
    project, eval_name = partition.project, partition.eval_name
    settings = {
        **{name: value for name, value in project.eval(eval_name).set_fields().items() if name != "subjects"},
        "num_fewshot": project.num_fewshot(eval_name),
    }
    task, code = definition_version(partition.task), code_version(render_eval, prompt_row, varied_task)
    formatter, generation = rendering.formatter.version(), rendering.generation.model_dump(mode="json")
    current = partition.current(_STAGE)
    again = []
    if current is not None and current.info.counts.get("retryable_errors"):
        again.append("errors")
    if current is not None and stored_findings(current) is None:
        again.append("findings")
    return Plan(
        fingerprint=stable_hash(
            {"samples": snapshot_version, "code": [task, code], "settings": settings, "formatter": formatter, "generation": generation}
        ),
        made_of={
            "data": snapshot_version,
            "task": task,
            "code": code,
            "limit": stable_hash(settings["limit"]),
            "settings": stable_hash({name: value for name, value in settings.items() if name != "limit"}),
            "model settings": stable_hash([formatter, generation]),
        },
        current=current,
        again=again,
    )


def rendering_of(project: Project, eval_name: str, model: str) -> Rendering:
    """How an eval is put to a model, in all its variants."""
    settings, config, num_fewshot = project.eval(eval_name), project.model(model), project.num_fewshot(eval_name)
    own = Rendering(
        task=project.task(eval_name)(num_fewshot=num_fewshot),
        num_fewshot=num_fewshot,
        formatter=formatter_for(config.prompt_format, project.handle(model), config.system_role),
        generation=config.generation,
        seed=settings.seed,
        sampling_seed=settings.sampling_seed,
        strategy=settings.fewshot_strategy,
        sets=settings.fewshot_sets,
        num_samples=settings.num_samples,
    )
    try:
        tasks = project.varied_tasks(eval_name)
    except UsageError as error:
        raise type(error)(f"eval {eval_name}: {error}") from error
    return replace(
        own,
        variant=DEFAULT if tasks else None,
        others=tuple(
            replace(own, variant=name, task=tasks[name](num_fewshot=num_fewshot), fewshot_seed=variant.fewshot_seed)
            for name, variant in settings.variants.items()
        ),
    )


def render_eval(project: Project, eval_name: str, rendering: Rendering, most: int | None = None) -> Iterator[RenderedPrompt]:
    """Render the current snapshot: up to `limit` samples of each subject, `most` in total, each in all variants, by default first.

    Raises as `render_samples`, also after the last prompt.
    """
    yield from render_samples(project, eval_name, rendering, stored_samples(project, eval_name), most)


def render_samples(
    project: Project, eval_name: str, rendering: Rendering, samples: Iterable[Sample], most: int | None = None
) -> Iterable[RenderedPrompt]:
    """Render the samples of a snapshot like `render_eval`. They are iterated several times.

    If the task fails on a row, its prompt has an error.

    Raises:
        DataError: No row can be asked, or all prompts of a variant are as by default.
    """
    if rendering.variant is None:
        return _rendered(project, eval_name, rendering, samples, most)
    own = list(_rendered(project, eval_name, rendering, samples, most))
    found = [replace(prompt, variant=DEFAULT) for prompt in own]
    for each in rendering.others:
        assert each.variant is not None
        prompts = list(_rendered(project, eval_name, each, samples, most))
        is_same = [prompt.messages for prompt in prompts] == [prompt.messages for prompt in own]
        if is_same and most is None and len(prompts) >= _FEW:  # few choices may be shuffled into the order that they had
            raise DataError(
                f"eval {eval_name}: variants.{each.variant} changes none of its {len(prompts)} prompts: {each.task.NAME} has no part that "
                "it sets, or it sets what is there; expected another prompt for some row: set something else, or remove the variant"
            )
        found += [replace(prompt, sample_id=variant_id(prompt.sample_id, each.variant), variant=each.variant) for prompt in prompts]
    return found


def _rendered(
    project: Project, eval_name: str, rendering: Rendering, samples: Iterable[Sample], most: int | None
) -> Iterator[RenderedPrompt]:
    task, limit = rendering.task, project.eval(eval_name).limit
    if isinstance(task, AdapterTask):
        samples = list(samples)
        task.prepare(samples, rendering.settings)
    pools: dict[str, list[Sample]] = defaultdict(list)
    if isinstance(task, OrderedTask):
        samples = list(samples)
        task.prepare(samples)
    elif rendering.num_fewshot and not isinstance(task, AdapterTask):
        for sample in samples:
            if sample.split == task.FEWSHOT_SPLIT and is_whole(sample.row):
                pools[sample.subject].append(sample)
    drawn_from = {subject: fewshot_pool(task, pool) for subject, pool in pools.items()}
    if not isinstance(task, AdapterTask | OrderedTask):
        # From all rows, so that a limit does not change any prompt.
        rendering = rendering.knowing(sample for sample in samples if sample.split == task.SAMPLE_SPLIT)
    evaluated = (sample for sample in samples if sample.split == task.SAMPLE_SPLIT and (limit is None or sample.row_index < limit))
    first_failure: DataError | None = None
    is_any, is_sound = False, False
    for sample in islice(evaluated, most):
        if unread := unreadable_prompt(task, sample):
            prompts = [unread]
        else:
            try:
                prompts = [checked(prompt, sample) for prompt in render_sample(rendering, sample, drawn_from.get(sample.subject))]
            except WholeEvalError as error:
                raise DataError(f"eval {eval_name}: {error}") from error
            except DataError as error:
                first_failure = first_failure or error
                prompts = [failed_prompt(task, sample, error)]
        for prompt in prompts:
            is_any, is_sound = True, is_sound or prompt.error is None
            yield prompt
    if first_failure is not None and not is_sound:
        raise DataError(f"eval {eval_name}: {first_failure}") from first_failure
    if not is_any:
        raise DataError(f"eval {eval_name}: its task asks nothing about any of the rows; expected at least one question")


class _Version:
    """The version of prompts that come one after the other."""

    def __init__(self) -> None:
        self._asked, self._names = ListHash(), ListHash()
        self._has_names = False

    def add(self, prompt: RenderedPrompt) -> None:
        """Add the next prompt."""
        gold = prompt.gold_indices, prompt.ground_truths, prompt.truth_is_list
        self._asked.add([prompt.sample_id, prompt.request.request_id, *gold, [part.model_dump() for part in prompt.context]])
        self._names.add(prompt.sample_name)
        self._has_names = self._has_names or bool(prompt.sample_name)

    def asked(self) -> AskedPrompts:
        """The prompts so far, as later stages know them."""
        return AskedPrompts(version=self._asked.value(), names=self._names.value() if self._has_names else "")


def prompt_rows(partition: Partition, prompts: Iterable[RenderedPrompt]) -> tuple[list[PromptRow], AskedPrompts]:
    """Prompts as rows of `prompts`, with their version."""
    prompts, version = list(prompts), _Version()
    for prompt in prompts:
        version.add(prompt)
    asked, num_fewshot = version.asked(), partition.project.num_fewshot(partition.eval_name)
    return [prompt_row(partition.eval_name, partition.model, prompt, num_fewshot, asked.version) for prompt in prompts], asked


def shared_names(named: Iterable[tuple[str | None, str]]) -> str | None:
    """The names shared by several rows of the dataset, in words. None if there are none.

    Args:
        named: Name and id of each row.
    """
    shared = _by_name(named)
    if not shared:
        return None
    name, ids = next(iter(shared.items()))
    names = "1 name belongs" if len(shared) == 1 else f"{len(shared)} names belong"
    return f"{names} to several samples each, {name!r} for instance to {', '.join(ids[:3])}; the ids tell them apart"


def _by_name(named: Iterable[tuple[str | None, str]]) -> dict[str, list[str]]:
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for name, source in named:
        if name is not None:
            found[name][source] = None
    return {name: list(ids) for name, ids in found.items() if len(ids) > 1}


def _named(rows: Iterable[PromptRow]) -> Iterator[tuple[str | None, str]]:
    return ((row["sample_name"], row["source_id"]) for row in rows)
