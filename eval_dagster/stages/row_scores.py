"""Scores of rows whose benchmark scores the answers to all questions about a row together."""

import math
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

import numpy as np

from eval_dagster.errors import MachineError, RequirementError
from eval_dagster.metrics.items import Item, ItemMetric, frozen
from eval_dagster.records import ItemScore, ModelResponse, Sample, Score
from eval_dagster.rendered_prompt import RenderedPrompt
from eval_dagster.tasks.adapter_task import AdapterTask
from eval_dagster.tasks.benchmark import Answer


def row_scores(
    task: AdapterTask, samples: Mapping[str, Sample], answered: Iterator[tuple[RenderedPrompt, ModelResponse]]
) -> Iterator[tuple[RenderedPrompt, Score]]:
    """Every metric of every row, each with the first question about the row.

    A row that lacks an answer, or whose scoring fails, has an error under every metric.

    Raises:
        RequirementError: The benchmark lacks a package or a program.
    """
    task.prepare(list(samples.values()))
    of_items = {metric.NAME for metric in task.METRICS if issubclass(metric, ItemMetric)}
    for source_id, group in groupby(answered, key=lambda pair: pair[0].source_id):
        questions = list(group)
        first = questions[0][0]
        error = next((response.error for _, response in questions if response.error is not None), None)
        retryable = False
        values: Mapping[str, Item] = {}
        if error is None:
            try:
                values = task.score_row(samples[source_id], [answer_to(prompt, response) for prompt, response in questions])
            except RequirementError:
                raise
            except Exception as problem:  # code of the benchmark: it may fail for one row
                error, retryable = f"{type(problem).__name__}: {problem}", isinstance(problem, MachineError | OSError)
        if error is not None:
            for metric in task.METRICS:
                yield first, Score(metric=metric.NAME, value=None, error=error, retryable=retryable)
            continue
        for name, value in values.items():
            yield first, item_score(name, value) if name.partition("/")[0] in of_items else _number(name, value)


def answer_to(prompt: RenderedPrompt, response: ModelResponse) -> Answer:
    """What a benchmark sees of an answer."""
    context: dict[str, Any] = prompt.context[0].model_dump() if prompt.context else {}
    return Answer(
        prompt=prompt.request.prompt,
        choices=prompt.request.choices or (),
        loglikelihoods=list(response.choice_logprobs),
        is_greedy=list(response.argmax_logits_eq_gold),
        texts=list(response.final_text),
        context=context,
    )


def item_score(name: str, item: Item) -> Score:
    """The score of a metric that is computed from all items together."""
    try:
        if _is_number(item) and math.isfinite(item):
            return ItemScore(metric=name, value=float(item), item=None)
        return ItemScore(metric=name, value=None, item=frozen(item))
    except TypeError as error:
        return Score(metric=name, value=None, error=str(error))


def _number(name: str, value: Item) -> Score:
    if not _is_number(value):
        return Score(metric=name, value=None, error=f"the benchmark gave {value!r:.200} for {name!r}, which is averaged; expected a number")
    if not math.isfinite(value):
        return Score(metric=name, value=None, error=f"the benchmark gave {value}, which is no number that can be averaged")
    return Score(metric=name, value=float(value))


def _is_number(value: object) -> bool:
    return isinstance(value, bool | int | float | np.number | np.bool_)
