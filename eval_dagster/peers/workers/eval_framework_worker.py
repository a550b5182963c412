"""eval-framework's tasks: messages, prompts and metric values, made by eval-framework 0.9. It runs in the environment that has it."""

import hashlib
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from eval_framework.shared.types import Completion, Loglikelihood
from eval_framework.tasks.base import RANDOM_SEED, ResponseType
from eval_framework_tasks import Rows, Splits, describe, loading, names, subject_of, task_of
from template_formatting.formatter import ConcatFormatter, IdentityFormatter, Llama3Formatter, Message

__all__ = ["describe", "names", "render", "rows", "score"]

_FORMATTERS = {"plain": ConcatFormatter, "identity": IdentityFormatter, "llama3": Llama3Formatter}
_SHUFFLED = "eval_framework_shuffled"
"""Field of a row before the examples: how many rows were shuffled by the generator that draws the examples."""


# ---- rows


def rows(name: str, subject: str, splits: Sequence[Mapping[str, Any]], fewshot: bool) -> dict[str, Any]:
    """The rows as the task has them after loading: filtered, and in its order."""
    task = task_of(name)
    given = Splits({each["split"]: Rows(each["rows"]) for each in splits})
    with loading(task, lambda *_, **__: given):
        task._load_dataset(subject_of(task, subject))
    evaluated = task.dataset[task.SAMPLE_SPLIT]
    if not fewshot:
        return {"evaluated": evaluated}
    sizes = [len(given.get(task.SAMPLE_SPLIT, ())), len(evaluated)]
    examples = [] if task.FEWSHOT_SPLIT == task.SAMPLE_SPLIT else list(task.dataset.get(task.FEWSHOT_SPLIT, []))
    return {"evaluated": evaluated, "examples": [{_SHUFFLED: _shuffled(task, sizes)}, *examples]}


def _shuffled(task: Any, sizes: Sequence[int]) -> int:
    """Of how many rows the shuffling left the task's generator in its state."""
    generator = getattr(task, "rnd", None)
    state = None if generator is None else generator.getstate()
    return next((size for size in sizes if _generator(size).getstate() == state), 0)


def _generator(shuffled: int, seed: int = RANDOM_SEED) -> random.Random:
    made = random.Random(seed)
    made.shuffle(list(range(shuffled)))
    return made


# ---- questions


def render(
    name: str, subject: str, rows: Sequence[dict[str, Any]], examples: Sequence[dict[str, Any]], settings: Mapping[str, Any]
) -> Iterator[list[dict[str, Any]]]:
    """The task's samples for each row."""
    task = task_of(name, settings["num_fewshot"])
    marks, pool = [row for row in examples if row.keys() == {_SHUFFLED}], [dict(row) for row in examples if row.keys() != {_SHUFFLED}]
    items = [dict(row) for row in rows]
    task.dataset = {task.FEWSHOT_SPLIT: pool} | {task.SAMPLE_SPLIT: items}
    task.rnd = _generator(marks[0][_SHUFFLED] if marks else 0, RANDOM_SEED + settings["seed"])
    own = subject_of(task, subject)
    index = 0
    for item, row in zip(items, rows, strict=True):
        if settings["examples_per_sample"]:
            task.rnd = random.Random(_seed([settings["seed"], row]))
        item["subject"] = own
        made = task._create_samples(item, index, str(own))
        index += len(made)
        yield [_question(task, sample, number, settings["format"]) for number, sample in enumerate(made)]


def _seed(value: Any) -> int:
    return int(hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8], 16)


def _question(task: Any, sample: Any, number: int, prompt_format: str) -> dict[str, Any]:
    question = {
        "messages": [[message.role.value, message.content] for message in sample.messages],
        "ground_truth": sample.ground_truth,
        "response_type": task.get_response_type().value,
        "context": {"number": number},
    }
    if formatter := _FORMATTERS.get(prompt_format):
        question["prompt"] = formatter().format([Message(role=each.role, content=each.content) for each in sample.messages])
    if task.get_response_type() is ResponseType.LOGLIKELIHOODS:
        choices = list(sample.possible_completions or ())
        truths = [sample.ground_truth] if isinstance(sample.ground_truth, str) else list(sample.ground_truth or ())
        gold = [position for position, choice in enumerate(choices) if choice in truths]
        # eval-framework does not require that the correct answer is among the choices.
        return {**question, "choices": choices, "gold_indices": gold, "ground_truth": None}
    return {**question, "stop_sequences": sorted(set(task.stop_sequences or ())), "max_tokens": task.max_tokens}


# ---- scores


def score(name: str, subject: str, row: Mapping[str, Any], answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The values of a row: the means over its questions and their texts."""
    task = task_of(name, 0)
    task.num_fewshot, task.dataset, task.rnd = 0, {task.SAMPLE_SPLIT: [], task.FEWSHOT_SPLIT: []}, random.Random(RANDOM_SEED)
    own = subject_of(task, subject)
    samples = task._create_samples({**row, "subject": own}, 0, str(own))
    metrics = [metric() for metric in task.get_metrics()]  # some keep what they saw of the first sample until the second
    found: dict[str, list[float]] = {}
    errors: dict[str, str] = {}
    for answer in answers:
        for response in _responses(task, samples[answer["context"]["number"]], answer):
            for metric in metrics:
                _calculate(metric, response, found, errors)
    means = {metric: math.fsum(values) / len(values) for metric, values in found.items()}
    return means | {metric: {"$error": reason} for metric, reason in errors.items()}


def _calculate(metric: Any, response: Any, found: dict[str, list[float]], errors: dict[str, str]) -> None:
    try:
        results = metric.calculate(response)
    except Exception as error:  # the other metrics of the row are computed
        errors[metric.NAME] = f"{type(error).__name__}: {error}"
        return
    for result in results:
        if result.error is not None:
            errors[result.metric_name] = f"{result.error.error_class}: {result.error.message}"
        elif result.value is not None:
            found.setdefault(result.metric_name, []).append(float(result.value))


def _responses(task: Any, sample: Any, answer: Mapping[str, Any]) -> list[Any]:
    shared = {"id": sample.id, "subject": sample.subject, "ground_truth": sample.ground_truth, "prompt": answer["prompt"]}
    if task.get_response_type() is ResponseType.LOGLIKELIHOODS:
        positions = {choice: len(tokens) for choice, tokens in zip(answer["choices"], answer["tokens"], strict=False)}
        values = dict(zip(answer["choices"], answer["loglikelihoods"], strict=True))
        return [Loglikelihood(**shared, prompt_sequence_positions=None, loglikelihoods=values, loglikelihoods_sequence_positions=positions)]
    return [
        Completion(
            **shared,
            prompt_sequence_positions=None,
            completion=task.post_process_generated_completion(text, sample),
            raw_completion=text,
            raw_completion_sequence_positions=None,
            messages=sample.messages,
            context=sample.context,
        )
        for text in answer["texts"]
    ]
