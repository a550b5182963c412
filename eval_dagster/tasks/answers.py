"""Checks the values that a task returns about a row: prompts, settings, gold answers and contexts."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from eval_dagster.errors import DataError, SampleError
from eval_dagster.records import GenerationSettings, Message, MetricContext, Sample, TaskSample
from eval_dagster.tasks.samples import place_of


def check_prompt(made: Any, sample: Sample) -> None:
    """Check the texts of a prompt before they are used.

    Raises:
        DataError: One is not a text, as if a hook returned None.
    """
    where = f"{place_of(sample)}: the task"
    if not isinstance(made, TaskSample):
        raise DataError(f"{where} made {shown(made)} of the row; expected a TaskSample")
    messages: object = made.messages
    if not isinstance(messages, list | tuple) or (not messages and made.prompt is None):
        raise DataError(f"{where} made a prompt of the messages {shown(messages)}; expected a list of at least one Message")
    for message in messages:
        if not isinstance(message, Message) or not isinstance(message.content, str):
            found = message.content if isinstance(message, Message) else message
            raise DataError(f"{where} made a prompt with the message {shown(found)}; expected a Message with a text")
    for name, text in (("prompt", made.prompt), ("unconditioned query", made.unconditioned_query)):
        if text is not None and not isinstance(text, str):
            raise DataError(f"{where} gave the {name} {shown(text)}; expected a text")


def check_settings(settings: GenerationSettings, sample: Sample) -> None:
    """Check the settings of a text to generate, which tasks, rows and models give together.

    Raises:
        DataError: One is invalid, such as a negative number of tokens.
    """
    counts = {"max_tokens": settings.max_tokens, "num_samples": settings.num_samples, "top_k": settings.top_k}
    expected = {name: "a whole number of at least 1" for name, value in counts.items() if value is not None and not is_count(value)}
    if not all(isinstance(stop, str) and stop for stop in settings.stop_sequences):
        expected["stop_sequences"] = "texts that are not empty"
    if not _is_number(settings.temperature) or not 0 <= settings.temperature < math.inf:
        expected["temperature"] = "a number of at least 0"
    if settings.top_p is not None and (not _is_number(settings.top_p) or not 0 < settings.top_p <= 1):
        expected["top_p"] = "a number above 0 and of at most 1"
    for name, words in expected.items():
        raise DataError(f"{place_of(sample)}: the task gives {name} as {shown(getattr(settings, name))}; expected {words}")


def is_count(value: object) -> bool:
    """Whether a value is a whole number of at least 1."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def shown(value: object) -> str:
    """A value in a message, cut if it is long."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def gold_indices(truths: Sequence[str], choices: Sequence[str], sample: Sample) -> tuple[int, ...]:
    """Positions of the truths. Outer white space is ignored, since a task may write it only in the truth or only in the choice."""
    wanted = {truth.strip() for truth in truths}
    found = tuple(index for index, choice in enumerate(choices) if choice.strip() in wanted)
    missing = wanted - {choices[index].strip() for index in found}
    if missing or not found:
        raise DataError(f"{place_of(sample)}: the gold answer {sorted(missing) or list(truths)} is not among the choices {list(choices)}")
    return found


def given_gold(given: Sequence[int], choices: Sequence[str], sample: Sample) -> tuple[int, ...]:
    """Check the positions that a task gave."""
    if not given or not all(0 <= index < len(choices) for index in given):
        raise DataError(f"{place_of(sample)}: the gold indices are {list(given)}; expected positions of the {len(choices)} choices, from 0")
    return tuple(given)


def contexts_of(given: Any, sample: Sample) -> tuple[MetricContext, ...]:
    """The contexts that a task gives the metrics, as a tuple."""
    parts = [] if given is None else [given] if isinstance(given, Mapping | MetricContext) else given
    try:
        return tuple(MetricContext(**(part.model_dump() if isinstance(part, BaseModel) else part)) for part in parts)
    except TypeError as error:
        raise DataError(f"{place_of(sample)}: the task returned {given!r} as context; expected a mapping or a MetricContext") from error


def truths_of(given: Any, sample: Sample) -> tuple[str, ...]:
    """The correct answers that a task gave, as a tuple of texts."""
    if given is not None and not isinstance(given, str | list | tuple):
        raise DataError(
            f"{place_of(sample)}: the task returned {given!r} as ground truth; expected a text (such as {str(given)!r}), a list of texts "
            "or None"
        )
    return texts_of([] if given is None else [given] if isinstance(given, str) else given, "ground truth", sample)


def texts_of(values: Any, what: str, sample: Sample) -> tuple[str, ...]:
    """Check that a hook returned a list of texts. A list of choices needs at least one, and each needs more than white space.

    Raises:
        DataError: It returned something else.
        SampleError: The list of choices is empty, or one is null, empty or white space: rows of data have such gaps.
    """
    if not isinstance(values, list | tuple):
        raise DataError(f"{place_of(sample)}: the task returned {values!r} as {what}; expected a list of texts")
    if what == "choices" and not values:
        raise SampleError(f"{place_of(sample)}: there are no choices; expected one at least. Correct the row, or leave it out")
    for index, value in enumerate(values):
        if what == "choices" and (value is None or (isinstance(value, str) and not value.strip())):
            seen = "null" if value is None else f"{value!r}, white space alone" if value else "empty"
            raise SampleError(
                f"{place_of(sample)}: choice {index + 1} of {len(values)} is {seen}, whose score says nothing; expected a text. "
                "Correct the row, or leave the choice out"
            )
        if not isinstance(value, str):
            raise DataError(f"{place_of(sample)}: the task returned {value!r} among its {what}; expected a text that is not empty")
    return tuple(values)
