"""Runs items through a model in batches. A failure affects only the item that causes it."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from eval_dagster.errors import ModelError
from eval_dagster.models.transformers.network.resources import release_memory
from eval_dagster.records import ModelResponse

_LOG = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")

_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "failed to allocate", "allocation failed", "alloc_failed")


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why an item has no result."""

    error: str
    """Class and message."""
    retryable: bool


@dataclass(frozen=True, kw_only=True)
class Outcome(Generic[Item, Result]):
    """The outcome of one item."""

    item: Item
    result: Result | Failure
    seconds: float
    """The batch's seconds divided by its items."""


class BatchRunner:
    """Divides items into batches and handles failures.

    After running out of memory, the size of a batch is halved from then on. After any other exception, the items of the batch run one by
    one, so that only the item that causes it fails.
    """

    def __init__(self, *, rows: int, tokens: int | None):
        """`rows` and `tokens` (padding included) are the limits of a batch. A batch of one item is always allowed."""
        self.rows = rows
        self._tokens = tokens

    def run(
        self, items: Sequence[Item], *, length: Callable[[Item], int], forward: Callable[[Sequence[Item]], Sequence[Result | Failure]]
    ) -> Iterator[list[Outcome[Item, Result]]]:
        """Yield the outcomes batch by batch, in the order of the items.

        The items are sorted by length, so that a batch holds little padding. `length` counts the tokens of an item. `forward` returns one
        result an item.
        """
        start = 0
        while start < len(items):
            batch = items[start : start + self.rows]
            longest = 0
            for count, item in enumerate(batch):
                longest = max(longest, length(item))
                if count and self._tokens is not None and longest * (count + 1) > self._tokens:
                    batch = batch[:count]
                    break
            attempt = _attempt(batch, forward)
            if isinstance(attempt, Exception) and len(batch) > 1 and is_out_of_memory(attempt):
                self.rows = len(batch) // 2
                _LOG.warning("out of memory with a batch of %d: going on with %d at most", len(batch), self.rows)
                release_memory()
                continue
            if isinstance(attempt, Exception):
                attempts = [attempt] if len(batch) == 1 else (_attempt([item], forward) for item in batch)
                yield [
                    Outcome(item=item, result=failure_of(each, retryable=True), seconds=0.0) if isinstance(each, Exception) else each[0]
                    for item, each in zip(batch, attempts, strict=True)
                ]
            else:
                yield attempt
            start += len(batch)


def is_out_of_memory(error: Exception) -> bool:
    """Whether an exception means that memory ran out. Only some of these have a class of their own."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in _OUT_OF_MEMORY)


def with_memory(compute: Callable[[], Result]) -> Result:
    """The value of a function; it is called again after memory ran out, when what is kept for later has been given back."""
    try:
        return compute()
    except Exception as error:
        check_device(error)
        if not is_out_of_memory(error):
            raise
    # Only here are the frames of the error gone, which hold tensors.
    release_memory()
    return compute()


def check_device(error: Exception) -> None:
    """Raise `ModelError` if the device computes nothing any more after an exception, as after an illegal access to its memory.

    Every later request would fail too. The answers so far are kept.
    """
    if not isinstance(error, torch.AcceleratorError) or is_out_of_memory(error):
        return
    try:
        for index in range(torch.accelerator.device_count()):
            torch.accelerator.synchronize(index)
    except Exception as again:
        raise ModelError(
            f"The device failed and computes nothing more in this process ({type(error).__name__}: {str(error).splitlines()[0]}). "
            "Answers so far are kept. Run again; if it fails again, look at the driver's log."
        ) from again


def failure_of(error: Exception, *, retryable: bool) -> Failure:
    """The record of an exception."""
    return Failure(error=f"{type(error).__name__}: {error}", retryable=retryable)


def refusal(error: Exception) -> ModelResponse:
    """The response to a request that could not be prepared. It is retryable only for a missing package."""
    failure = failure_of(error, retryable=isinstance(error.__cause__, ImportError))
    return ModelResponse(error=failure.error, retryable=failure.retryable)


def _attempt(
    batch: Sequence[Item], forward: Callable[[Sequence[Item]], Sequence[Result | Failure]]
) -> list[Outcome[Item, Result]] | Exception:
    started = time.perf_counter()
    try:
        results = forward(batch)
    except Exception as error:
        check_device(error)
        # The frames of the error hold the tensors of the batch, which must be freed before the next attempt.
        return error.with_traceback(None)
    seconds = (time.perf_counter() - started) / len(batch)
    return [Outcome(item=item, result=result, seconds=seconds) for item, result in zip(batch, results, strict=True)]
