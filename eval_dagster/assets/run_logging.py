"""Forwards the library's log to the log of the Dagster run."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from eval_dagster.visible_text import visible

_LIBRARY = logging.getLogger("eval_dagster")


class _Forwarder(logging.Handler):
    def __init__(self, log: logging.Logger) -> None:
        super().__init__(logging.INFO)
        self._run_log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._run_log.log(record.levelno, visible(self.format(record)))


@contextmanager
def library_log(log: logging.Logger) -> Iterator[None]:
    """Forward the library's lines, from INFO upwards, to `log` within the block.

    The step adds its own handler, so that nothing in the user's dagster.yaml is needed.
    """
    forwarder, level = _Forwarder(log), _LIBRARY.level
    _LIBRARY.addHandler(forwarder)
    _LIBRARY.setLevel(logging.INFO)
    try:
        yield
    finally:
        _LIBRARY.removeHandler(forwarder)
        _LIBRARY.setLevel(level)
