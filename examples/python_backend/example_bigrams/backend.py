"""A model backend: counts which word follows which in a text, and predicts by these counts."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

from pydantic import Field

from eval_dagster import (
    Message,
    Model,
    ModelError,
    ModelHandle,
    ModelNotFoundError,
    ModelResponse,
    ModelSection,
    Request,
    Usage,
    file_hash,
    stable_hash,
)

ENGINE_VERSION = 1
"""Raise it with every change of this file after which an answer can differ: the cache then holds none of its answers."""


class BigramSection(ModelSection):
    """The keys of such a model in evals.yaml, beside those that every model has."""

    backend: Literal["bigrams"]
    text: str
    """The file whose word pairs are counted; relative to evals.yaml."""
    smoothing: float = Field(default=0.1, gt=0)
    """Added to every count."""


class BigramHandle(ModelHandle):
    """A configured model, not yet loaded."""

    SECTION = BigramSection

    def __init__(self, name: str, config: BigramSection, file: Path) -> None:
        """Nothing is read yet."""
        self._name, self._config, self._file = name, config, file

    @classmethod
    def open(cls, name: str, config: BigramSection, *, folder: Path, home: Path) -> "BigramHandle":
        """The handle of a section of evals.yaml, which lies in `folder`."""
        return cls(name, config, folder / config.text)

    def check(self) -> None:
        """Raise `ModelNotFoundError` where the text is not there."""
        if not self._file.is_file():
            raise ModelNotFoundError(f"Model {self._name!r}: there is no file {self._file}; correct `text` in evals.yaml.")

    def version(self) -> str:
        """Hash of all that can change an output."""
        return stable_hash(["bigrams", ENGINE_VERSION, self.content_version(), self._config.smoothing])

    def content_version(self) -> str:
        """Hash of the model alone."""
        self.check()
        return file_hash(self._file)

    def image_mark(self) -> str:
        """Raise `ModelError`: the model reads text alone."""
        raise ModelError(f"Model {self._name!r} takes no images.")

    def apply_chat_template(self, messages: Sequence[Message], *, images: int = 0) -> str:
        """Raise `ModelError`: the model has no chat template."""
        raise ModelError(f"Model {self._name!r} has no chat template. Set `prompt_format: plain` for it in evals.yaml.")

    def template_version(self) -> str:
        """The same for all models of this backend."""
        return stable_hash("no chat template")

    def load(self) -> "BigramModel":
        """Read the text and count."""
        self.check()
        return BigramModel(self._file.read_text("utf-8").split(), self._config.smoothing)


class BigramModel(Model):
    """A loaded model."""

    def __init__(self, words: Sequence[str], smoothing: float) -> None:
        """Count the pairs of a text."""
        self._words, self._smoothing = sorted(set(words)), smoothing
        self._counts: dict[str, Counter[str]] = defaultdict(Counter)
        for word, following in pairwise(words):
            self._counts[word][following] += 1

    def respond(self, requests: Sequence[Request]) -> Iterator[tuple[Request, ModelResponse]]:
        """Answer every request; one that cannot be answered has its reason in `error`."""
        for request in requests:
            if request.perplexity:
                yield request, ModelResponse(error="ModelError: bigrams give no perplexity")
            elif request.choices is None:
                yield request, self._generated(request)
            else:
                yield request, self._scored(request, request.choices)

    def usage(self) -> Sequence[Usage]:
        """Nothing: no tokens are counted."""
        return ()

    def _generated(self, request: Request) -> ModelResponse:
        words = request.prompt.split()
        settings = request.generation
        length = (settings.max_tokens if settings else None) or 1
        for _ in range(length):
            words.append(max(self._words, key=lambda word: self._logprob(words[-1], word)))
        text = " " + " ".join(words[-length:])
        return ModelResponse(input=request.prompt, text=(text,), finish_reason=("length",))

    def _scored(self, request: Request, choices: Sequence[str]) -> ModelResponse:
        tokens = []
        for choice in choices:
            words = [request.prompt.split()[-1], *choice.split()]
            tokens.append(tuple(self._logprob(word, following) for word, following in pairwise(words)))
        logprobs = tuple(map(sum, tokens))
        return ModelResponse(
            input=request.prompt,
            logprobs=logprobs,
            token_logprobs=tuple(tokens),
            argmax_logits_eq_gold=tuple(value == max(logprobs) for value in logprobs),
        )

    def _logprob(self, word: str, following: str) -> float:
        counts = self._counts[word]
        return math.log((counts[following] + self._smoothing) / (counts.total() + self._smoothing * (len(self._words) + 1)))
