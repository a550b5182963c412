"""What trials of the sandbox share: each is run behind every kind of wall that this machine has."""

import textwrap
from collections.abc import Callable, Iterator

import pytest

from eval_dagster.errors import EvalDagsterError
from eval_dagster.sandbox import SandboxPolicy, SandboxResult, probe, run_python, sandbox_policy


@pytest.fixture(params=["bubblewrap", "namespaces"])
def run(request: pytest.FixtureRequest) -> Iterator[Callable[..., SandboxResult]]:
    """A function from a program, and arguments of `run_python`, to how it ended."""
    try:
        probe(request.param)
    except EvalDagsterError as problem:
        pytest.skip(f"{request.param} does not work here: {problem}")
    with sandbox_policy(SandboxPolicy(allowed=True)):
        yield lambda code, **limits: run_python(textwrap.dedent(code), isolation=request.param, **limits)
