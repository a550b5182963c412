"""Scores of rows whose benchmark scores the answers to all questions about a row together."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Any

import numpy as np

from eval_dagster.errors import MachineError
from eval_dagster.metrics.choices import count_tie
from eval_dagster.metrics.explanations import Explanation, explained, with_explanations
from eval_dagster.metrics.items import Item, ItemMetric, frozen
from eval_dagster.records import ItemScore, ModelResponse, Sample, Score
from eval_dagster.rendered_prompt import RenderedPrompt
from eval_dagster.tasks.adapter_task import AdapterTask
from eval_dagster.tasks.benchmark import Answer, ScoreError

_LARGEST = 1e150
"""Largest value whose squares can be summed over any number of samples."""
_BATCH = 256
"""Rows that are scored together."""


def row_scores(
    task: AdapterTask, samples: Mapping[str, Sample], answered: Iterator[tuple[RenderedPrompt, ModelResponse]]
) -> Iterator[tuple[RenderedPrompt, Score]]:
    """Every metric of every row, each with the first question about the row.

    A row that lacks an answer, or whose scoring fails, has an error under every metric.

    Raises:
        RequirementError: The benchmark lacks a package or a program.
    """
    task.prepare(list(samples.values()))
    rows = (list(group) for _, group in groupby(answered, key=lambda pair: pair[0].source_id))
    while batch := list(islice(rows, _BATCH)):
        whole = [row for row in batch if _error(row) is None]
        asked = [(samples[row[0][0].source_id], [answer_to(prompt, response) for prompt, response in row]) for row in whole]
        found = iter(task.score_rows(asked))
        for row in batch:
            error = _error(row)
            if error is None:
                scored = next(found)
                scores = list(_scores(task, scored.values))
                ties = _ties(row)
                of_scores: dict[str | None, Explanation] = {
                    score.metric: {**scored.words.get(score.metric, {}), **ties} for score in scores
                }
                scores = with_explanations(scores, {**scored.words, **of_scores})
            else:
                scores = list(_scores(task, error))
            yield from ((row[0][0], score) for score in scores)


def _ties(row: Sequence[tuple[RenderedPrompt, ModelResponse]]) -> Explanation:
    """The choices that have the highest log-probability together. The other package, which decides between them, does not count them."""
    with explained() as found:
        for prompt, response in row:
            values = response.choice_logprobs if prompt.request.choices else ()
            count_tie([position for position, value in enumerate(values) if value == max(values)])
    return found.get(None, {})


def _error(row: Sequence[tuple[RenderedPrompt, ModelResponse]]) -> str | None:
    """The error of the first answer that has one."""
    return next((response.error for _, response in row if response.error is not None), None)


def _scores(task: AdapterTask, found: Mapping[str, Item] | Exception | str) -> Iterator[Score]:
    """The scores of a row from its values, or from the error that it has instead."""
    if isinstance(found, Mapping):
        of_items = {metric.NAME for metric in task.METRICS if issubclass(metric, ItemMetric)}
        for name, value in found.items():
            if isinstance(value, ScoreError):
                yield Score(metric=name, value=None, error=value.reason, retryable=value.retryable)
            else:
                yield item_score(name, value) if name.partition("/")[0] in of_items else _number(name, value)
        return
    error = found if isinstance(found, str) else f"{type(found).__name__}: {found}"
    for metric in task.METRICS:
        yield Score(metric=metric.NAME, value=None, error=error, retryable=isinstance(found, MachineError | OSError))


def answer_to(prompt: RenderedPrompt, response: ModelResponse) -> Answer:
    """An answer as a benchmark gets it."""
    context: dict[str, Any] = prompt.context[0].model_dump() if prompt.context else {}
    return Answer(
        prompt=prompt.request.prompt,
        choices=prompt.request.choices or (),
        loglikelihoods=list(response.choice_logprobs),
        is_greedy=list(response.argmax_logits_eq_gold),
        texts=list(response.final_text),
        tokens=list(response.output_tokens),
        context=context,
    )


def item_score(name: str, item: Item) -> Score:
    """The score of a metric that is computed from all items together."""
    try:
        if _is_number(item) and is_summable(item):
            return ItemScore(metric=name, value=float(item), item=None)
        return ItemScore(metric=name, value=None, item=frozen(item))
    except TypeError as error:
        return Score(metric=name, value=None, error=str(error))


def _number(name: str, value: Item) -> Score:
    if not _is_number(value):
        return Score(metric=name, value=None, error=f"the benchmark gave {value!r:.200} for {name!r}, which is averaged; expected a number")
    if not is_summable(value):
        return Score(metric=name, value=None, error=f"the benchmark gave {value}, which is no number that can be averaged")
    return Score(metric=name, value=float(value))


def is_summable(value: float) -> bool:
    """Whether a value is a number of which a mean and a variance can be computed: the square of 1e200 is infinite."""
    return abs(value) <= _LARGEST  # false for NaN


def _is_number(value: object) -> bool:
    return isinstance(value, bool | int | float | np.number | np.bool_)
