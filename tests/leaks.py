"""What a test file leaves open fails this file: warnings are errors, and those of forgotten objects come when they are collected."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def files_close_what_they_open() -> Iterator[None]:
    """Collect garbage after each file, so that a process, a connection or a file that it forgot is the error of its last test.

    What was imported so far is not looked at again: it would make each collection in a test take a second, as those in a load of a model.
    """
    gc.freeze()
    yield
    gc.collect()
