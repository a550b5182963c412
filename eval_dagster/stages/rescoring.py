"""Scores a result again: its stored answers, or fresh ones that test whether the answers repeat.

Fresh answers do not belong to the result. They are requested with the result's seed. If a server honours it, baseline, result and fresh
answer share their random draws, and differ only by the change. They are stored under their own name, derived from the model's version and
the result. So a process that is killed and started again sends no answered request twice.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypedDict

from eval_dagster.errors import EvalDagsterError, LakeError, ModelError
from eval_dagster.lake.answers.responses import ResponseCache
from eval_dagster.lake.files import LakeFile
from eval_dagster.lake.format.parquet_files import read_rows
from eval_dagster.lake.tables.columns import ResponseRow, ScoreRow
from eval_dagster.lake.tables.rows import prompt_of, request_of, response_of, sample_of, score_row
from eval_dagster.progress.reporting import current_reporter
from eval_dagster.project import Project
from eval_dagster.records import ItemScore, ModelResponse, Sample
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.stages.inference import AskedModel, ask
from eval_dagster.stages.outputs import as_response
from eval_dagster.stages.partition import Partition, allowed_execution, answer_text, require_execution
from eval_dagster.stages.scores import asked_types, clusters_of, scores_of
from eval_dagster.stages.snapshot import read_samples
from eval_dagster.versions.hashes import stable_hash


class FreshScore(TypedDict):
    """The columns of a row of `scores` from which a metric is computed; both null for an error."""

    value: float | None
    item: str | None


@dataclass(frozen=True, kw_only=True)
class FreshAnswers:
    """The answers to the samples that were asked again, by sample."""

    texts: Mapping[str, str]
    """The model's text or most probable choice; or an error with its reason."""
    scores: Mapping[str, Mapping[str, FreshScore]]
    """The scores by metric and sample."""


def answers_vary(project: Project, model: str) -> bool:
    """Whether a model may answer the same request differently. False if it cannot be opened."""
    try:
        handle = project.handle(model)
    except EvalDagsterError:
        return False
    return handle.answers_vary()


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
    project, eval_name = partition.project, partition.eval_name
    version = project.handle(partition.model).version()
    if version != result.info.inputs["model"]:
        raise ModelError(f"the model {partition.model} has changed since its result")
    prompts = partition.require("rendered_prompts")
    if prompts.info.version != result.info.inputs["rendered_prompts"]:
        raise LakeError(f"the prompts of {partition} have changed since its result")
    chosen = set(rows)
    asked = [row for row in read_rows(prompts.path) if row["source_id"] in chosen and row["error"] is None]
    requests = {row["request_id"]: request_of(row) for row in asked}
    state = stable_hash(["fresh answers", version, eval_name, result.info.inputs["sample_scores"]])
    model = AskedModel(project=project, name=partition.model, version=version, run_id=partition.run_id, stored_as=state)
    with project.lake.lock(f"fresh-{state}"):  # a second process finds the answers of the first
        known = model.cache.find(requests)
        missing = [request for name, request in requests.items() if name not in known]
        run = ask(model, missing, dict.fromkeys(requests, eval_name), current_reporter())
        answers = known | run.found | run.answers
        if left := requests.keys() - answers.keys():
            raise ModelError(f"{len(left)} of {len(requests)} requests were left unanswered: {run.failure or 'the model gave no reason'}")
    texts: dict[str, str] = {}
    answered: list[tuple[RenderedPrompt, ModelResponse]] = []
    for row in asked:
        response = as_response(partition, row["prompt"], answers[row["request_id"]])
        answered.append((prompt_of(row), response_of(response)))
        if response["error"] is not None:
            texts[row["sample_id"]] = f"error: {response['error']}"
        else:
            texts[row["sample_id"]] = answer_text(response, list(row["choices"] or ())) or ""
    require_execution(project, eval_name)
    task = partition.scorer()
    samples = {sample.sample_id: sample for sample in read_samples(project, eval_name)}
    scores: dict[str, dict[str, FreshScore]] = defaultdict(dict)
    with allowed_execution(project):
        for prompt, score in scores_of(task, samples, iter(answered), asked_types(prompts)):
            item = score.item if isinstance(score, ItemScore) else None
            scores[score.metric][prompt.sample_id] = {"value": score.value, "item": item}
    return FreshAnswers(texts=texts, scores=scores)


@dataclass(frozen=True, kw_only=True)
class OldAnswers:
    """The answers of a result, current or past, with its prompts."""

    prompts: LakeFile
    responses: Mapping[str, ResponseRow]
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
    responses: dict[str, ResponseRow] = {row["sample_id"]: row for row in rows}
    if not responses:
        asked = [row for row in read_rows(prompts.path) if row["error"] is None]
        known = ResponseCache(lake, inputs["model"]).find({row["request_id"] for row in asked})
        if missing := sum(row["request_id"] not in known for row in asked):
            raise LakeError(f"{missing} of {len(asked)} answers of an older result of {partition} are no longer in the lake")
        responses = {row["sample_id"]: as_response(partition, row["prompt"], known[row["request_id"]]) for row in asked}
    return OldAnswers(prompts=prompts, responses=responses, samples={each.sample_id: each for each in samples})


def score_again(partition: Partition, answers: OldAnswers) -> list[ScoreRow]:
    """The rows of `scores` for older answers, by the current metrics. If a metric refuses an answer, its sample has an error.

    Raises:
        RequirementError: A metric lacks a package, permission to run code, or a sandbox.
    """
    project, eval_name = partition.project, partition.eval_name
    require_execution(project, eval_name)
    task = partition.scorer()
    clusters = clusters_of(task, answers.samples, eval_name)
    answered = (
        (prompt_of(row), response_of(answers.responses[row["sample_id"]]))
        for row in read_rows(answers.prompts.path)
        if row["sample_id"] in answers.responses and row["source_id"] in answers.samples
    )
    with allowed_execution(project):
        return [
            score_row(eval_name, partition.model, prompt, clusters[prompt.source_id], score)
            for prompt, score in scores_of(task, answers.samples, answered, asked_types(answers.prompts))
        ]
