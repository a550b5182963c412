"""Stage `rendered_prompts`: exactly what a model is sent for each sample of an eval."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from eval_dagster.errors import DataError
from eval_dagster.lake.files import LakeFile, read_head
from eval_dagster.project import Project
from eval_dagster.prompts.formatters import Formatter, formatter_for
from eval_dagster.prompts.rendering import RenderedPrompt, fewshot_pool, render_sample
from eval_dagster.prompts.unusable import checked, unreadable_prompt
from eval_dagster.records import GenerationSettings, Grammar, Request, ResponseType, Sample
from eval_dagster.stages.code_execution import require_execution
from eval_dagster.stages.partition import Partition
from eval_dagster.stages.results import StageResult
from eval_dagster.stages.snapshot import read_samples
from eval_dagster.tasks.samples import is_whole
from eval_dagster.versions import code_version, stable_hash

_STAGE, _SNAPSHOT = "rendered_prompts", "dataset_snapshot"
_PREVIEW = ("prompt", "choices", "gold", "subject", "sample_id")


def materialize_prompts(project: Project, eval_name: str, model: str, run_id: str) -> StageResult:
    """Make the prompts of an eval for a model current.

    Raises:
        RequirementError: The eval's metrics run code, and may or can not.
        DataError: A row lacks a field, a gold answer is not among the choices, or the few-shot pool is too small.
        LakeError: The snapshot is missing or damaged.
    """
    partition = Partition(project=project, eval_name=eval_name, model=model, run_id=run_id)
    snapshot = project.lake.require("samples", _SNAPSHOT, eval_name)
    formatter = formatter_for(project.model(model).prompt_format, project.handle(model))
    fingerprint = _fingerprint(project, eval_name, model, snapshot, formatter)
    current = partition.current(_STAGE)
    cached = current is not None and current.info.fingerprint == fingerprint
    if current is None or not cached:
        require_execution(project, eval_name)
        prompts = render_eval(project, eval_name, model, formatter)
        current = _write(partition, prompts, fingerprint, snapshot)
    return partition.result(_STAGE, current, cached=cached, preview=read_head(current.path, 3, _PREVIEW))


def render_eval(project: Project, eval_name: str, model: str, formatter: Formatter, most: int | None = None) -> list[RenderedPrompt]:
    """Render the samples of an eval that its limit admits (and of these at `most` so many) from the current snapshot."""
    settings, task_class = project.eval(eval_name), project.task(eval_name)
    num_fewshot = project.num_fewshot(eval_name)
    task = task_class(num_fewshot=num_fewshot)
    generation = project.model(model).generation
    _, samples = read_samples(project, eval_name)
    pools: dict[str, list[Sample]] = defaultdict(list)
    if num_fewshot:
        for sample in samples:
            if sample.split == task_class.FEWSHOT_SPLIT and is_whole(sample.row):
                pools[sample.subject].append(sample)
    drawn_from = {subject: fewshot_pool(task, pool) for subject, pool in pools.items()}
    rendered: list[RenderedPrompt] = []
    for sample in evaluated_samples(samples, task_class.SAMPLE_SPLIT, settings.limit)[:most]:
        if unread := unreadable_prompt(task, sample):
            rendered.append(unread)
            continue
        try:
            asked = render_sample(
                task,
                sample,
                drawn_from.get(sample.subject),
                formatter=formatter,
                num_fewshot=num_fewshot,
                seed=settings.seed,
                generation=generation,
                strategy=settings.fewshot_strategy,
                sets=settings.fewshot_sets,
                num_samples=settings.num_samples,
            )
        except DataError as error:
            raise DataError(f"eval {eval_name}: {error}") from error
        rendered += [checked(prompt, sample) for prompt in asked]
    if not rendered:
        raise DataError(f"eval {eval_name}: its task asks nothing about any of the rows; expected at least one question")
    return rendered


def evaluated_samples(samples: Sequence[Sample], split: str, limit: int | None) -> list[Sample]:
    """The samples of a split, of each subject the first `limit`."""
    return [sample for sample in samples if sample.split == split and (limit is None or sample.row_index < limit)]


def _fingerprint(project: Project, eval_name: str, model: str, snapshot: LakeFile, formatter: Formatter) -> str:
    settings = project.eval(eval_name)
    return stable_hash(
        {
            "samples": snapshot.info.version,
            "code": [code_version(project.task(eval_name)), code_version(render_eval, _row)],
            "settings": {**settings.model_dump(mode="json", exclude={"subjects"}), "num_fewshot": project.num_fewshot(eval_name)},
            "formatter": formatter.version(),
            "generation": project.model(model).generation.model_dump(mode="json"),
        }
    )


def _write(partition: Partition, prompts: Sequence[RenderedPrompt], fingerprint: str, snapshot: LakeFile) -> LakeFile:
    version = stable_hash(
        [
            [
                *(p.sample_id, p.request.request_id, list(p.gold_indices), list(p.ground_truths), p.truth_is_list),
                [part.model_dump() for part in p.context],
            ]
            for p in prompts
        ]
    )
    num_fewshot = partition.project.num_fewshot(partition.eval_name)
    rows = [_row(partition.eval_name, partition.model, prompt, num_fewshot, version) for prompt in prompts]
    return partition.write(
        _STAGE,
        rows,
        fingerprint=fingerprint,
        version=version,
        inputs={_SNAPSHOT: snapshot.info.version, **snapshot.info.inputs},
        counts={
            "prompts": len(rows),
            "errors": sum(row["error"] is not None for row in rows),
            "choices": sum(len(row["choices"] or ()) for row in rows),
            "mean_characters": round(sum(len(row["prompt"]) for row in rows) / len(rows), 1),
        },
    )


def _row(eval_name: str, model: str, prompt: RenderedPrompt, num_fewshot: int, version: str) -> dict[str, Any]:
    request = prompt.request
    return {
        "eval": eval_name,
        "model": model,
        "sample_id": prompt.sample_id,
        "source_id": prompt.source_id,
        "subject": prompt.subject,
        "request_id": request.request_id,
        "response_type": prompt.response_type.value,
        "messages": json.dumps([{"role": message.role, "content": message.content} for message in prompt.messages], ensure_ascii=False),
        "prompt": request.prompt,
        "has_special_tokens": request.has_special_tokens,
        "choices": list(request.choices) if request.choices is not None else None,
        "gold": list(prompt.ground_truths),
        "gold_is_list": prompt.truth_is_list,
        "gold_index": list(prompt.gold_indices),
        "generation": json.dumps(asdict(request.generation)) if request.generation else None,
        "unconditioned_prompt": request.unconditioned_prompt,
        "use_logits": request.use_logits,
        "images": list(request.images) or None,
        "context": json.dumps([part.model_dump(mode="json") for part in prompt.context]) if prompt.context else None,
        "num_fewshot": num_fewshot,
        "fewshot_ids": list(prompt.fewshot_ids),
        "fewshot_set": prompt.fewshot_set,
        "error": prompt.error,
        "prompt_version": version,
    }


def request_of(row: Mapping[str, Any]) -> Request:
    """The request of a prompt's row."""
    return Request(
        request_id=row["request_id"],
        prompt=row["prompt"],
        has_special_tokens=row["has_special_tokens"],
        choices=tuple(row["choices"]) if row["choices"] is not None else None,
        generation=_settings_of(json.loads(row["generation"])) if row["generation"] else None,
        perplexity=row["response_type"] == ResponseType.PERPLEXITY.value,
        unconditioned_prompt=row["unconditioned_prompt"],
        use_logits=row["use_logits"],
        images=tuple(row["images"] or ()),
    )


def _settings_of(stored: Mapping[str, Any]) -> GenerationSettings:
    grammar = Grammar(**stored["grammar"]) if stored["grammar"] else None
    return GenerationSettings(**{**stored, "stop_sequences": tuple(stored["stop_sequences"]), "grammar": grammar})
