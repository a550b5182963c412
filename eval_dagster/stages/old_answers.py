"""Scores stored answers of an older result again, with the current task and metrics. No model is asked."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from eval_dagster.errors import LakeError
from eval_dagster.lake.answers.responses import ResponseCache
from eval_dagster.lake.files import LakeFile
from eval_dagster.lake.format.file_reading import read_rows
from eval_dagster.lake.tables.rows import prompt_of, response_of, sample_of, score_row
from eval_dagster.records import ModelResponse, Sample
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.stages.outputs import as_response
from eval_dagster.stages.partition import Partition, allowed_execution, require_execution
from eval_dagster.stages.scores import asked_types, clusters_of, scores_of


@dataclass(frozen=True, kw_only=True)
class OldAnswers:
    """The answers of a result, current or past, with its prompts."""

    prompts: LakeFile
    responses: Mapping[str, Mapping[str, Any]]
    """The rows of `responses` by sample."""
    samples: Mapping[str, Sample]
    """The rows of the dataset by id."""


def find_answers(partition: Partition, inputs: Mapping[str, str]) -> OldAnswers:
    """The answers from which a result was computed. If their file is gone, they are read from the response cache.

    Args:
        partition: The eval and the model.
        inputs: The versions of the result's inputs, as in `FileInfo.inputs`.

    Raises:
        LakeError: Rows, prompts or answers are no longer in the lake, or damaged.
    """
    lake, eval_name, model = partition.project.lake, partition.eval_name, partition.model
    snapshot = lake.of_version("samples", inputs["dataset_snapshot"], eval_name)
    prompts = lake.of_version("prompts", inputs["rendered_prompts"], eval_name, model)
    if snapshot is None or prompts is None:
        what = "rows of the dataset" if snapshot is None else "prompts"
        raise LakeError(f"the {what} of an older result of {partition} are no longer in the lake")
    samples = [sample_of(row) for row in read_rows(snapshot.path, list(Sample.__dataclass_fields__))]
    try:
        outputs = lake.of_version("responses", inputs["model_outputs"], eval_name, model)
        rows = [] if outputs is None else read_rows(outputs.path)
    except LakeError:
        rows = []
    responses = {row["sample_id"]: row for row in rows} or _from_cache(partition, prompts, inputs["model"])
    return OldAnswers(prompts=prompts, responses=responses, samples={each.sample_id: each for each in samples})


def _from_cache(partition: Partition, prompts: LakeFile, model_version: str) -> dict[str, dict[str, Any]]:
    asked = [row for row in read_rows(prompts.path) if row["error"] is None]
    known = ResponseCache(partition.project.lake, model_version).find({row["request_id"] for row in asked})
    if missing := sum(row["request_id"] not in known for row in asked):
        raise LakeError(f"{missing} of {len(asked)} answers of an older result of {partition} are no longer in the lake")
    return {row["sample_id"]: as_response(partition, row["prompt"], known[row["request_id"]]) for row in asked}


def score_again(partition: Partition, answers: OldAnswers) -> list[dict[str, Any]]:
    """The rows of `scores` for older answers, by the current metrics. If a metric refuses an answer, its sample has an error.

    Raises:
        RequirementError: A metric lacks a package, permission to run code, or a sandbox.
    """
    project, eval_name = partition.project, partition.eval_name
    require_execution(project, eval_name)
    task = partition.task(num_fewshot=project.num_fewshot(eval_name))
    clusters = clusters_of(task, answers.samples, eval_name)
    with allowed_execution(project):
        return [
            score_row(eval_name, partition.model, prompt, clusters[prompt.source_id], score)
            for prompt, score in scores_of(task, answers.samples, _answered(answers), asked_types(answers.prompts))
        ]


def _answered(answers: OldAnswers) -> Iterator[tuple[RenderedPrompt, ModelResponse]]:
    for row in read_rows(answers.prompts.path):
        response = answers.responses.get(row["sample_id"])
        if response is not None and row["source_id"] in answers.samples:
            yield prompt_of(row), response_of(response)
