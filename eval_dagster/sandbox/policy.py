"""Whether a project lets code run that a model wrote."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

ALLOW_KEY = "sandbox.allow_code_execution"
"""The key of evals.yaml that allows execution."""


@dataclass(frozen=True, kw_only=True)
class SandboxPolicy:
    """What a project permits."""

    allowed: bool = False
    """Whether code that a model wrote may run at all."""


_NOTHING_ALLOWED = SandboxPolicy()
_policy: ContextVar[SandboxPolicy] = ContextVar("sandbox_policy", default=_NOTHING_ALLOWED)


@contextmanager
def sandbox_policy(policy: SandboxPolicy) -> Iterator[None]:
    """Hold to a policy within the block. A new thread starts without one: nothing may run there."""
    token = _policy.set(policy)
    try:
        yield
    finally:
        _policy.reset(token)


def execution_allowed() -> bool:
    """Whether the policy that holds here lets code run."""
    return _policy.get().allowed
