"""How often Python looks for cycles of objects."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG_OBJECTS = 50_000
"""New objects after which Python looks for cycles. By itself it looks after some hundred, through the modules of Dagster and MLflow, for a
quarter of the time of a run. The peak of memory is the same."""


def look_rarely() -> None:
    """Look for cycles rarely from now on, unless the process looks more rarely or not at all."""
    young, middle, old = gc.get_threshold()
    if young:
        gc.set_threshold(max(young, YOUNG_OBJECTS), middle, old)


@contextmanager
def looking_rarely() -> Iterator[None]:
    """Look for cycles rarely within the block."""
    before = gc.get_threshold()
    look_rarely()
    try:
        yield
    finally:
        gc.set_threshold(*before)
