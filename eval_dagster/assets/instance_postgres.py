"""Failures of a Dagster instance whose storage is in PostgreSQL, in one line each. dagster_postgres may not be installed."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

_DRIVER = "psycopg"
_RETRY = "Retrying failed database connection"


def postgres_problem(error: Exception) -> str | None:
    """The reason of an error, and what to do; None for errors that have nothing to do with PostgreSQL."""
    if isinstance(error, ModuleNotFoundError) and error.name == _DRIVER:
        return (
            "SQLAlchemy 2.1 reads `postgresql://` as the driver psycopg 3, which is not installed; write `postgresql+psycopg2://`, or set "
            "`scheme: postgresql+psycopg2` beside `postgres_db`"
        )
    if found := re.search(r"Couldn't import module (dagster_\w+)", str(error)):
        extra = "eval_dagster[postgres]" if found[1] == "dagster_postgres" else found[1].replace("_", "-")
        return f"the package {found[1]} is not installed; install it: pip install '{extra}'"
    if type(error).__name__ == "DagsterPostgresException":
        return f"{_first_line(error.__cause__ or error)}. What was computed is kept: run the command again once PostgreSQL answers"
    return None


@contextmanager
def one_line_retries() -> Iterator[None]:
    """Shorten the warnings of dagster_postgres about its retries to one line each, which otherwise have four."""

    def shorten(record: logging.LogRecord) -> bool:
        if str(record.msg).startswith(_RETRY):
            record.msg, record.args = f"{_RETRY}: {_first_line(record.args)}", ()
        return True

    root = logging.getLogger()
    root.addFilter(shorten)
    try:
        yield
    finally:
        root.removeFilter(shorten)


def _first_line(error: object) -> str:
    """The reason that the driver gives, without the name of its class and without passwords."""
    text = str(error[0] if isinstance(error, tuple) and error else error).strip() or type(error).__name__
    return re.sub(r"//[^/@\s]*@", "//***@", re.sub(r"^\([\w.]+\) ", "", text.splitlines()[0]))
