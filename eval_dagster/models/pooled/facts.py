"""A worker's report about itself, and how it differs from the expected one."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata

_FIRST = ("python", "torch", "transformers", "tokenizers", "llguidance", "pillow", "vllm", "eval_dagster")
"""Packages that are named first if several differ."""
_MOST = 6
"""Most packages that a message names."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """The place of a worker."""

    node: str
    """Address of its node."""
    node_id: str
    """The cluster's name of its node."""
    pid: int

    @property
    def name(self) -> str:
        """Node and process."""
        return f"{self.node}:{self.pid}"


@dataclass(frozen=True, kw_only=True)
class WorkerFacts:
    """A worker before it loads the model."""

    version: str
    """The version of the model as this worker would answer."""
    content: str
    """The version of the model without its engine."""
    template: str
    """The version of the chat template."""
    takes_messages: bool
    answers_vary: bool
    device: str
    """What the model would run on; empty if its backend does not say."""
    packages: Mapping[str, str]
    """Versions of all installed packages, and of Python."""


def installed_packages() -> dict[str, str]:
    """Versions of all installed packages, and of Python."""
    found = {each.metadata["Name"].lower().replace("_", "-"): each.version for each in metadata.distributions() if each.metadata["Name"]}
    return found | {"python": ".".join(map(str, sys.version_info[:3]))}


def differences(found: WorkerFacts, expected: WorkerFacts) -> str:
    """The differences that make a worker another model version."""
    parts: list[str] = []
    if found.content != expected.content:
        parts.append(f"its weights, tokenizer or chat template are others ({found.content}, expected {expected.content})")
    if found.device != expected.device:
        parts.append(f"it runs on {found.device or 'no device'}, expected {expected.device or 'no device'}")
    if names := _other_packages(found.packages, expected.packages):
        more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
        shown = [f"{name} {found.packages.get(name, 'missing')} (expected {expected.packages.get(name, 'none')})" for name in names[:_MOST]]
        parts.append(f"packages: {', '.join(shown)}{more}")
    return "; ".join(parts) or "neither weights, device nor packages differ, but its settings or code do"


def _other_packages(found: Mapping[str, str], expected: Mapping[str, str]) -> Sequence[str]:
    names = [name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name)]
    first = {name.replace("_", "-"): index for index, name in enumerate(_FIRST)}
    return sorted(names, key=lambda name: (first.get(name, len(first)), name))
