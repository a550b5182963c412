"""A word that marks a program of a test."""

import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from sandbox_traces import processes_with


@pytest.fixture
def mark() -> Iterator[str]:
    """A word by which a program's traces are found; none may be left."""
    word = f"mark{uuid4().hex}"
    yield word
    deadline = time.monotonic() + 5
    while (left := processes_with(word)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left
    assert not [path for folder in ("/tmp", "/var/tmp", "/dev/shm", Path.home(), Path.cwd()) for path in Path(folder).glob(f"*{word}*")]
