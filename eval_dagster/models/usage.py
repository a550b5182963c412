"""The work of a loaded model: tokens asked for, tokens that went through the network, and the way of computing.

The ways are kept, so that they can be shown before the next load.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from eval_dagster.stores.whole_files import replaced


@dataclass(kw_only=True)
class Usage(ABC):
    """Counts that grow while a loaded model works."""

    kind: ClassVar[str]
    """The name of the work."""
    path: str
    """The way of computing; each kind of work has its own names."""
    reason: str = ""
    """Why this path was chosen."""
    layers: str = ""
    """How the network's linear layers are computed."""
    elsewhere: int = 0
    """Inputs or texts that were computed in another way: this path would not be exact for them, or failed."""
    requests: int = 0
    passes: int = 0
    """Forward passes."""
    cost: float | None = None
    """US dollars for all calls of a server, those included that failed; null on this machine, and without a price."""
    cost_estimated: int = 0
    """Calls whose part in `cost` is an estimate, since the server gave no counts or the answer was lost."""
    state: str = ""
    """What the model does at this moment, if that is not plain."""

    @abstractmethod
    def inputs_asked(self) -> int:
        """Tokens that the model had to read, as if each choice and each text were computed alone."""

    @abstractmethod
    def inputs_computed(self) -> int:
        """How many of them went through the network, padding and repetitions included."""

    @abstractmethod
    def computed(self) -> int:
        """All tokens that went through the network."""

    def reuse(self) -> float | None:
        """Tokens asked for divided by the tokens that were computed; None if none was computed."""
        computed = self.inputs_computed()
        return self.inputs_asked() / computed if computed else None


@dataclass(kw_only=True)
class ScoringUsage(Usage):
    """The work of scoring."""

    kind: ClassVar[str] = "scoring"
    path: str = "plain"
    """How inputs are scored: `tree` (each distinct prefix once), `prefix` (the common prefix of a batch once) or `plain`."""
    tokens_asked: int = 0
    """Tokens of the inputs of all spans, as if each were run alone."""
    tokens_needed: int = 0
    """Distinct prefixes among them: nodes of their token trees."""
    tokens_computed: int = 0
    """Tokens that went through the network, padding and repetitions included."""
    seconds: float = 0.0
    """Seconds of forward passes and what belongs to them."""

    def count_pass(self, tokens: int) -> None:
        """Count a forward pass over so many tokens."""
        self.passes += 1
        self.tokens_computed += tokens

    def inputs_asked(self) -> int:
        """Tokens of the inputs of all spans."""
        return self.tokens_asked

    def inputs_computed(self) -> int:
        """Tokens that went through the network: all of them are read."""
        return self.tokens_computed

    def computed(self) -> int:
        """Tokens that went through the network."""
        return self.tokens_computed


@dataclass(kw_only=True)
class GenerationUsage(Usage):
    """The work of generation."""

    kind: ClassVar[str] = "generation"
    path: str = "rows"
    """How texts are generated: `rows` (they come and go, and shared beginnings are computed once) or `padded` (whole batches)."""
    reason: str = "not checked yet: nothing was generated this way"
    """Why by this path."""
    prompt_tokens_asked: int = 0
    """Tokens of the prompts of all texts, as if each were generated alone."""
    prompt_tokens_computed: int = 0
    """Tokens of prompts that went through the network."""
    tokens_decoded: int = 0
    """Tokens of texts that went through the network. The last token of a text does not."""

    def inputs_asked(self) -> int:
        """Tokens of the prompts of all texts."""
        return self.prompt_tokens_asked

    def inputs_computed(self) -> int:
        """Tokens of prompts that went through the network."""
        return self.prompt_tokens_computed

    def computed(self) -> int:
        """Tokens of prompts and texts that went through the network."""
        return self.prompt_tokens_computed + self.tokens_decoded


def remember_ways(home: Path, model: str, version: str, ways: Mapping[str, str]) -> None:
    """Keep how a model in a version computed: by kind of work, a line with the way and the reason. The latest version is kept alone."""
    if not ways:
        return
    file = _ways_file(home, model)
    kept = {"version": version, "ways": {**known_ways(home, model, version), **ways}}
    # What is not kept costs a line of `eval-dagster models`, and no run.
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with replaced(file) as made:
            made.write_text(json.dumps(kept, indent=1, sort_keys=True), "utf-8")


def known_ways(home: Path, model: str, version: str) -> Mapping[str, str]:
    """How a model in a version computed when it was last loaded in this home; empty if it was not, or another version was loaded later."""
    with suppress(OSError, ValueError, AttributeError, KeyError, TypeError):
        kept = json.loads(_ways_file(home, model).read_text("utf-8"))
        if kept["version"] == version:
            return {str(kind): str(way) for kind, way in kept["ways"].items()}
    return {}


def _ways_file(home: Path, model: str) -> Path:
    return home / "models" / "ways" / f"{model}.json"
