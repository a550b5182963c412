"""What is known of a served model: what its server declares about it, kept in the home.

A name on a server may stand for another model tomorrow. So the version of a served model has what the server declares about it. It is read
when a run begins, and kept in a file, so that the version of a model is known also while its server is down.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from eval_dagster.whole_files import replaced

_FACTS = ("context_length", "max_model_len", "meta", "parent", "quantization", "root")
"""Keys of `/models` that describe the model. Others, such as a price, change under the same model."""


@dataclass(frozen=True, kw_only=True)
class EndpointState:
    """What the newest look at a server found."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the server declares about the model, such as its path, the size of its file and the length of its context."""


class StateFile:
    """The file that holds the state of one endpoint."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def exists(self) -> bool:
        """Whether a state is kept."""
        return self._path.is_file()

    def read(self) -> EndpointState | None:
        """The state; None where no look was made, or where the file is damaged."""
        try:
            found = json.loads(self._path.read_text("utf-8"))
            return EndpointState(facts=found["facts"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, state: EndpointState) -> None:
        """Keep a state."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with replaced(self._path) as temporary:
            temporary.write_text(json.dumps(asdict(state), indent=1, sort_keys=True), "utf-8")


def declared(models: Any, name: str) -> tuple[Mapping[str, Any] | None, list[str]]:
    """What `/models` declares about a model, and the names of all models there. None where the model is not among them."""
    entries = models.get("data") if isinstance(models, dict) else models
    listed = [each for each in (entries if isinstance(entries, list) else ()) if isinstance(each, dict) and isinstance(each.get("id"), str)]
    names = [each["id"] for each in listed]
    known = next((each for each in listed if name == each["id"] or name in _aliases(each)), None)
    return (None if known is None else {key: value for key, value in sorted(known.items()) if key in _FACTS}), names


def _aliases(entry: Mapping[str, Any]) -> list[Any]:
    found = entry.get("aliases")
    return found if isinstance(found, list) else []


def declared_length(facts: Mapping[str, Any]) -> int | None:
    """The tokens of context that the server declares; None where it declares none."""
    found = (facts.get(name) for name in ("max_model_len", "context_length"))
    return next((length for length in found if isinstance(length, int) and not isinstance(length, bool) and length > 0), None)
