"""Whether a project allows code that a model wrote to run."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

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
