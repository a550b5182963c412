"""What a loaded model took: tokens asked for, tokens that went through the network, and by which way."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(kw_only=True)
class Usage:
    """Counts that grow while a loaded model works."""

    kind: ClassVar[str]
    """What the work is called."""
    path: str
    """By which way; each kind of work names its own."""
    reason: str = ""
    """Why by this path."""
    requests: int = 0
    passes: int = 0
    """Forward passes."""

    def inputs_asked(self) -> int:
        """Tokens that the model was given to read, as if each choice and each text went by itself."""
        raise NotImplementedError

    def inputs_computed(self) -> int:
        """How many of them went through the network, padding and repetitions included."""
        raise NotImplementedError

    def computed(self) -> int:
        """All tokens that went through the network."""
        raise NotImplementedError


@dataclass(kw_only=True)
class ScoringUsage(Usage):
    """What scoring took."""

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

    def reuse(self) -> float | None:
        """Tokens asked for each token computed; nothing where none was."""
        return self.tokens_asked / self.tokens_computed if self.tokens_computed else None

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
    """What generating took."""

    kind: ClassVar[str] = "generation"
    path: str = "rows"
    """How texts are generated: `rows` (they come and go, and shared beginnings are computed once) or `padded` (whole batches)."""
    reason: str = "not checked yet: nothing was generated"
    """Why by this path."""
    prompt_tokens_asked: int = 0
    """Tokens of the prompts of all texts, as if each were generated alone."""
    prompt_tokens_computed: int = 0
    """Tokens of prompts that went through the network."""
    tokens_decoded: int = 0
    """Tokens of texts that went through the network, of which the last of a text is none."""

    def reuse(self) -> float | None:
        """Tokens of prompts asked for each token of them computed; nothing where none was."""
        return self.prompt_tokens_asked / self.prompt_tokens_computed if self.prompt_tokens_computed else None

    def inputs_asked(self) -> int:
        """Tokens of the prompts of all texts."""
        return self.prompt_tokens_asked

    def inputs_computed(self) -> int:
        """Tokens of prompts that went through the network."""
        return self.prompt_tokens_computed

    def computed(self) -> int:
        """Tokens of prompts and texts that went through the network."""
        return self.prompt_tokens_computed + self.tokens_decoded
