"""A program for the sandbox, its limits, its result, and whether a project allows it to run."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

EndedBy = Literal["exit", "timeout", "output", "memory"]


@dataclass(frozen=True, kw_only=True)
class Program:
    """Python code that a model wrote, and its tests."""

    code: str
    name: str = "__main__"
    """The module's `__name__`."""
    tests: str | None = None
    """Python source that tests the code, in another process."""
    given: str = ""
    """The beginning of the code, if the task wrote it. The tests take its definitions from here, except the last one, which the model
    finished."""
    entry: str | None = None
    """A name that the tests take from the code even if Python has a built-in one."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The most that a program may use. Beyond time, output or the memory of all processes, it is killed."""

    timeout_s: float = 10.0
    """Seconds, computing or sleeping. Time in which the program is ready and other programs have the processors does not count. Each
    process may compute one second longer at most."""
    memory_bytes: int = 2**30
    """Address space of each process, and memory of all its processes together."""
    disk_bytes: int = 2**26
    """Files in its folder, which lies in memory."""
    output_bytes: int = 2**20
    """Standard output and standard error together."""


@dataclass(frozen=True, kw_only=True)
class Toolchain:
    """A compiler that needs more than what every program sees."""

    executable: str
    """The target of the link `/proc/self/exe`: compilers find their own files by it. `/proc` contains nothing else."""
    paths: tuple[str, ...] = ()
    """Its files and folders, which the program may read."""


@dataclass(frozen=True, kw_only=True)
class SandboxResult:
    """How a program ended."""

    completed: bool
    """Whether the tests came to their last line, or without tests the code: no exception and no early exit, whatever its status."""
    exit_code: int | None
    """Negative for a signal; null if the sandbox killed the program."""
    ended_by: EndedBy
    """`exit`: the program itself; else the limit that it exceeded."""
    stdout: str
    stderr: str
    duration_s: float
    """Wall time from the start of the program to its end."""


ALLOW_KEY = "sandbox.allow_code_execution"
"""The key of evals.yaml that allows execution."""


@dataclass(frozen=True, kw_only=True)
class SandboxPolicy:
    """The permissions of a project."""

    allowed: bool = False
    """Whether code that a model wrote may run at all."""


_NOTHING_ALLOWED = SandboxPolicy()
_policy: ContextVar[SandboxPolicy] = ContextVar("sandbox_policy", default=_NOTHING_ALLOWED)


@contextmanager
def sandbox_policy(policy: SandboxPolicy) -> Iterator[None]:
    """Apply a policy within the block. A new thread has no policy, so nothing may run there."""
    token = _policy.set(policy)
    try:
        yield
    finally:
        _policy.reset(token)


def execution_allowed() -> bool:
    """Whether the current policy allows code to run."""
    return _policy.get().allowed
