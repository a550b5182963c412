"""Ends queries at once on Ctrl-C. DuckDB itself reacts only between two steps of a query, and one step can take hours."""

import threading
from collections.abc import Callable
from typing import TypeVar

import duckdb

T = TypeVar("T")
_LOOK_S = 0.1
_END_S = 2.0
"""Seconds to wait for the end of an interrupted query."""


class StuckQueryError(KeyboardInterrupt):
    """An interrupt after which the session is still busy. Closing the session would wait for the query."""


def interruptibly(session: duckdb.DuckDBPyConnection, call: Callable[[], T]) -> T:
    """Call a function that uses a session in a separate thread, and wait for it. `KeyboardInterrupt` cancels the query."""
    results: list[T] = []
    problems: list[BaseException] = []

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=work, name="query", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_LOOK_S)
    except KeyboardInterrupt:
        session.interrupt()
        thread.join(_END_S)
        if thread.is_alive():
            raise StuckQueryError from None
        raise
    if problems:
        raise problems[0]
    return results[0]
