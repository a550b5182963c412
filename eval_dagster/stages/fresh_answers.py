"""Asks samples of a result again, to test whether their answers repeat.

Fresh answers do not belong to the result. They are requested with the result's seed. If a server honours it, baseline, result and fresh
answer share their random draws, and differ only by the change. They are stored under their own name, derived from the model's version and
the result. So a process that is killed and started again sends no answered request twice.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eval_dagster.errors import EvalDagsterError, LakeError, ModelError
from eval_dagster.lake.files import LakeFile
from eval_dagster.lake.format.file_reading import read_rows
from eval_dagster.lake.tables.rows import prompt_of, request_of, response_of
from eval_dagster.models.base import VaryingHandle
from eval_dagster.progress.reporting import current_reporter
from eval_dagster.project import Project
from eval_dagster.records import ItemScore, ModelResponse, Request
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.stages.inference import AskedModel, ask
from eval_dagster.stages.outputs import as_response
from eval_dagster.stages.partition import Partition, allowed_execution, require_execution
from eval_dagster.stages.results import answer_text
from eval_dagster.stages.scores import asked_types, scores_of
from eval_dagster.stages.snapshot import read_samples
from eval_dagster.versions.hashes import stable_hash


@dataclass(frozen=True, kw_only=True)
class FreshAnswers:
    """The answers to the samples that were asked again, by sample."""

    texts: Mapping[str, str]
    """The model's text or most probable choice; or an error with its reason."""
    scores: Mapping[str, Mapping[str, Mapping[str, Any]]]
    """`value` and `item` of the scores, as in rows of `scores`, by metric and sample; both null for an error."""


def answers_vary(project: Project, model: str) -> bool:
    """Whether a model may answer the same request differently. False if it cannot be opened."""
    try:
        handle = project.handle(model)
    except EvalDagsterError:
        return False
    return isinstance(handle, VaryingHandle) and handle.answers_vary()


def ask_again(partition: Partition, result: LakeFile, rows: Collection[str]) -> FreshAnswers:
    """Ask the questions about some rows of the dataset again, and score the answers.

    Args:
        partition: The eval and the model.
        result: The metrics of the result. Its prompts are asked.
        rows: The ids of the rows.

    Raises:
        ModelError: The model's version differs from the result's, or the model cannot be asked or left requests unanswered.
        LakeError: The prompts or rows of the result are no longer current, or damaged.
        RequirementError: A metric lacks a package, permission to run code, or a sandbox.
    """
    project, version = partition.project, partition.project.handle(partition.model).version()
    if version != result.info.inputs["model"]:
        raise ModelError(f"the model {partition.model} has changed since its result")
    prompts = partition.require("rendered_prompts")
    if prompts.info.version != result.info.inputs["rendered_prompts"]:
        raise LakeError(f"the prompts of {partition} have changed since its result")
    chosen = set(rows)
    asked = [row for row in read_rows(prompts.path) if row["source_id"] in chosen and row["error"] is None]
    state = stable_hash(["fresh answers", version, partition.eval_name, result.info.inputs["sample_scores"]])
    model = AskedModel(project=project, name=partition.model, version=version, run_id=partition.run_id, stored_as=state)
    with project.lake.lock(f"fresh-{state}"):  # a second process finds the answers of the first
        answers = _answers(model, [request_of(row) for row in asked], partition.eval_name)
    responses = [as_response(partition, row["prompt"], answers[row["request_id"]]) for row in asked]
    return FreshAnswers(
        texts={row["sample_id"]: _text(each, row["choices"]) for row, each in zip(asked, responses, strict=True)},
        scores=_scores(partition, prompts, [(prompt_of(row), response_of(each)) for row, each in zip(asked, responses, strict=True)]),
    )


def _answers(model: AskedModel, requests: Sequence[Request], eval_name: str) -> Mapping[str, Mapping[str, Any]]:
    """The rows of the response cache by request. Asks missing ones. Raises `ModelError` if a request stays without an answer."""
    by_id = {request.request_id: request for request in requests}
    known = model.cache.find(by_id)
    missing = [request for name, request in by_id.items() if name not in known]
    run = ask(model, missing, dict.fromkeys(by_id, eval_name), current_reporter())
    found = known | run.found | run.answers
    if left := by_id.keys() - found.keys():
        raise ModelError(f"{len(left)} of {len(by_id)} requests were left unanswered: {run.failure or 'the model gave no reason'}")
    return found


def _text(response: Mapping[str, Any], choices: Sequence[str] | None) -> str:
    return f"error: {response['error']}" if response["error"] is not None else answer_text(response, list(choices or ())) or ""


def _scores(
    partition: Partition, prompts: LakeFile, answered: Sequence[tuple[RenderedPrompt, ModelResponse]]
) -> dict[str, dict[str, dict[str, Any]]]:
    project, eval_name = partition.project, partition.eval_name
    require_execution(project, eval_name)
    task = partition.task(num_fewshot=project.num_fewshot(eval_name))
    samples = {sample.sample_id: sample for sample in read_samples(project, eval_name)}
    scores: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    with allowed_execution(project):
        for prompt, score in scores_of(task, samples, iter(answered), asked_types(prompts)):
            item = score.item if isinstance(score, ItemScore) else None
            scores[score.metric][prompt.sample_id] = {"value": score.value, "item": item}
    return scores
