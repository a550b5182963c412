"""Calls that find out what a server can do, before the first request is asked."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from eval_dagster.errors import NotEvaluatedError
from eval_dagster.models.served.calls.answers import BadAnswerError
from eval_dagster.models.served.calls.client import PushbackError, StoppedError

_ATTEMPTS, _FEW = 5, 3
"""Attempts at a call, and those if the answer tells what the server cannot do: it may be wrong once."""
_SPENT = (402, 429)
"""Statuses of a spent quota. With another one, the server lacks this path, or refuses it."""
T = TypeVar("T")


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Try a call some times: a server that is busy says nothing about what it can do.

    Raises:
        BadAnswerError: The server has no answer to such a call.
        StoppedError: The quota is spent, or a cap is reached.
    """
    for attempt in range(_ATTEMPTS):
        try:
            return await ask()
        except PushbackError as error:
            if attempt == _ATTEMPTS - 1:
                raise BadAnswerError(str(error)) from None
            await asyncio.sleep(min(error.retry_after_s or 2.0**attempt, 30.0))
        except StoppedError as error:
            is_last = attempt == _ATTEMPTS - 1
            if isinstance(error, NotEvaluatedError) or (is_last and error.status in _SPENT):
                raise
            if is_last:
                raise BadAnswerError(str(error), kind="NoLogprobsError") from None
            await asyncio.sleep(0.1)
        except BadAnswerError as error:
            if not error.helps_to_retry or attempt >= (_FEW if error.kind == "NoLogprobsError" else _ATTEMPTS) - 1:
                raise
            await asyncio.sleep(2.0**attempt / 4)
    raise AssertionError
