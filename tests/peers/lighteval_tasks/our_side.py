"""This project's prompts and metric values of the same rows, and the answers that both sides get."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from eval_dagster.metrics.base import BaseMetric, CorpusMetric, ItemMetric, RepeatedMetric, metrics_for
from eval_dagster.prompts.formatters import ChatTemplateFormatter, ConcatFormatter
from eval_dagster.prompts.rendering import Rendering, fewshot_pool, render_sample
from eval_dagster.prompts.views import AnsweredPrompt
from eval_dagster.records import Message, ModelResponse, ResponseType, Sample
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.task_files.loading import load_task
from eval_dagster.tasks.base import BaseTask
from eval_dagster.tasks.samples import build_samples

CATEGORIES = {
    ResponseType.COMPLETION: "GENERATIVE",
    ResponseType.LOGLIKELIHOODS: "LOGPROBS",
    ResponseType.PERPLEXITY: "PERPLEXITY",
}


class Template:
    """A model's chat template that shows every character of its messages."""

    def apply_chat_template(self, messages: Sequence[Message], *, images: int = 0) -> str:
        assert not images
        return "".join(f"<{message.role}>{message.content}</{message.role}>" for message in messages) + "<assistant>"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The questions of a task about some rows."""

    task: BaseTask[Any]
    samples: Sequence[Sample]
    plain: Mapping[str, Sequence[RenderedPrompt]]
    """The prompts of a row, by its position."""
    chat: Mapping[str, Sequence[RenderedPrompt]]


def ask(folder: Path, module: str, name: str, rows: Mapping[str, Sequence[dict[str, Any]]], num_fewshot: int) -> Asked:
    """Render every row of the evaluated split."""
    task = load_task(f"{folder / module}.py:{name}", {}, folder)(num_fewshot=num_fewshot)
    subject = str(task.SUBJECTS[0])
    samples = build_samples({"evaluated": next(iter(rows.values()))}, subject)
    examples = build_samples({"examples": rows.get("examples", ())}, subject)
    rendered: list[dict[str, list[RenderedPrompt]]] = []
    for formatter in (ConcatFormatter(), ChatTemplateFormatter(Template())):  # type: ignore[arg-type]
        how = Rendering(task=task, formatter=formatter, num_fewshot=num_fewshot, strategy="first")
        pool = fewshot_pool(task, examples)
        rendered.append({str(sample.row_index): render_sample(how, sample, pool) for sample in samples})
    return Asked(task=task, samples=samples, plain=rendered[0], chat=rendered[1])


def answers(asked: Asked) -> dict[str, dict[str, dict[str, Any]]]:
    """Invented answers by row and kind: log-probabilities in steps, and texts that are correct, nearly so, or wrong."""
    made: dict[str, dict[str, dict[str, Any]]] = {}
    for key, prompts in asked.plain.items():
        random = Random(f"{asked.task.NAME}/{key}")
        made[key] = {CATEGORIES[prompt.response_type]: _answer(prompt, random) for prompt in prompts}
    return made


def _answer(prompt: RenderedPrompt, random: Random) -> dict[str, Any]:
    if prompt.response_type is ResponseType.COMPLETION:
        assert prompt.request.generation is not None
        return {"texts": [_text(prompt, random) for _ in range(prompt.request.generation.num_samples)]}
    if prompt.response_type is ResponseType.PERPLEXITY:
        tokens = [-random.randrange(1, 40) / 8 for _ in prompt.request.prompt.split()]
        return {"logprobs": tokens, "token_logprobs": [tokens]}
    by_choice = [[-random.randrange(1, 60) / 8 for _ in range(random.randrange(1, 4))] for _ in prompt.request.choices or ()]
    if random.random() < 0.5:  # the correct choice is the most probable one
        by_choice[prompt.gold_indices[0]] = [-0.0625]
    return {"logprobs": [sum(tokens) for tokens in by_choice], "token_logprobs": by_choice}


def _text(prompt: RenderedPrompt, random: Random) -> str:
    gold = random.choice(prompt.ground_truths)
    if random.random() < 0.4:
        return gold
    wrong = ["", "none", "B", "The answer is (C).", "12", r"So $\boxed{15}$", "a dozen"]
    return random.choice([gold, f" {gold} ", f"Answer: {gold.strip()}", f"{gold} indeed", gold.lower(), *wrong])


def values(asked: Asked, given: Mapping[str, Mapping[str, Mapping[str, Any]]], leave: frozenset[str]) -> dict[str, float]:
    """The value of every metric of all rows, but for those of a name in `leave`."""
    found = {}
    for response_type, category in CATEGORIES.items():
        for metric in metrics_for(asked.task.METRICS, response_type):
            views = [
                AnsweredPrompt(task=asked.task, sample=sample, prompt=prompt).views(_response(given[str(sample.row_index)][category]))
                for sample in asked.samples
                for prompt in asked.plain[str(sample.row_index)]
                if prompt.response_type is response_type
            ]
            if views and metric.NAME not in leave:
                found[metric.NAME] = _value(metric, views)
    return found


def _response(answer: Mapping[str, Any]) -> ModelResponse:
    texts = answer.get("texts", ())
    return ModelResponse(
        text=texts,
        text_post_processed=texts,
        reasonings=[None] * len(texts),
        finish_reason=["stop"] * len(texts),
        logprobs=answer.get("logprobs", ()),
        token_logprobs=answer.get("token_logprobs", ()),
    )


def _value(metric: type[BaseMetric], views: Sequence[Sequence[Any]]) -> float:
    if issubclass(metric, RepeatedMetric):
        return float(np.mean([metric().calculate_all(each) for each in views]))
    results: list[Any] = [metric().calculate(each[0]) for each in views]
    if issubclass(metric, ItemMetric):
        return metric.aggregate(results)
    if issubclass(metric, CorpusMetric):
        return float(metric.aggregate(np.array([[each[name] for name in metric.STATISTICS] for each in results]).sum(axis=0)))
    return float(np.mean(results))
