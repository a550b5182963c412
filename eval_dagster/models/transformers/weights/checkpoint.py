"""A model's folder in the Hub's layout: its files, their completeness, and the hash of their content."""

import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from eval_dagster.errors import ModelNotFoundError
from eval_dagster.models.transformers.weights.context import configured_length
from eval_dagster.models.transformers.weights.digests import Digests

TOKENIZER_FILES = (
    "tokenizer*.json",
    "tokenizer.model",
    "*.jinja",
    "additional_chat_templates/*.jinja",
    "added_tokens.json",
    "chat_template.json",
    "special_tokens_map.json",
    "vocab.*",
    "merges.txt",
    "*.tiktoken",
    "tekken.json",
    "spiece.model",
    "sentencepiece*.model",
)
"""Patterns of the files that turn text into tokens and messages into text."""

PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
"""Names of the files that configure how a vision-language model reads images."""

TEMPLATE_FILES = (*TOKENIZER_FILES, *PROCESSOR_FILES)
MODEL_FILES = (*TEMPLATE_FILES, "config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json")
"""Patterns of all files that are downloaded, loaded and hashed. Pickled weights and code are not among them."""


def layout_problem(folder: Path) -> str | None:
    """The missing part of a folder that is to be loaded as a model; None for a complete folder."""
    if not folder.is_dir():
        return f"the folder {folder} does not exist"
    if not (folder / "config.json").is_file():
        return f"the folder {folder} holds no config.json, only {_listing(folder)}"
    if not any(folder.glob("*.safetensors")):
        pickled = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
        if pickled:
            return f"the folder {folder} holds only pickled weights ({', '.join(pickled)}), refused because loading them can run code"
        return f"the folder {folder} holds no weights (*.safetensors), only {_listing(folder)}"
    missing = _missing_shards(folder)
    if missing:
        return f"the folder {folder} lacks weight files that its index names: {', '.join(missing)}"
    if not any(True for pattern in TOKENIZER_FILES for _ in folder.glob(pattern)):
        return f"the folder {folder} holds no tokenizer, only {_listing(folder)}"
    return None


class Checkpoint(ABC):
    """Weights and tokenizer that can be checked and named without being loaded."""

    @abstractmethod
    def check(self) -> None:
        """Raise `ModelNotFoundError` unless the weights are there. Reads no weights."""

    @abstractmethod
    def fingerprint(self) -> Any:
        """JSON-like value that differs where weights, configuration, tokenizer or chat template differ. Converts and downloads nothing."""

    def template_fingerprint(self) -> Any:
        """JSON-like value that differs where tokenizer or chat template differ."""
        return self.fingerprint()

    @abstractmethod
    def context_length(self) -> int | None:
        """Tokens of context that the configuration states; None without a configuration or a length in it. Prepares nothing."""

    @abstractmethod
    def has_tokenizer(self) -> bool:
        """Whether `tokenizer_folder` neither fetches nor converts anything."""

    @abstractmethod
    def folder(self) -> Path:
        """The folder to load from, prepared or downloaded if necessary. Raises `ModelError` if that fails."""

    def tokenizer_folder(self) -> Path:
        """A folder that holds at least the tokenizer. Raises `ModelError` if it cannot be prepared or downloaded."""
        return self.folder()


class FolderCheckpoint(Checkpoint):
    """Weights in a local folder."""

    def __init__(self, name: str, folder: Path, digests: Digests):
        self._name = name
        self._folder = folder
        self._digests = digests

    def check(self) -> None:
        """Raise `ModelNotFoundError` unless the folder is complete."""
        problem = layout_problem(self._folder)
        if problem:
            raise ModelNotFoundError(
                f"Model {self._name!r}: {problem}. Expected config.json, a tokenizer and *.safetensors weights there. "
                f"Correct `source.folder` in evals.yaml (relative to that file), or save the model with `save_pretrained`."
            )

    def fingerprint(self) -> Any:
        """Hash of each file that can change an output, by its name in the folder."""
        return self._hashes(MODEL_FILES)

    def template_fingerprint(self) -> Any:
        """Hash of each file of the tokenizer and the processor, the chat template included."""
        return self._hashes(TEMPLATE_FILES)

    def context_length(self) -> int | None:
        """Tokens of context that `config.json` states."""
        return configured_length(self._folder)

    def has_tokenizer(self) -> bool:
        """Always."""
        return True

    def folder(self) -> Path:
        """The folder to load from."""
        self.check()
        return self._folder

    def _hashes(self, patterns: tuple[str, ...]) -> dict[str, str]:
        self.check()
        files = sorted({path for pattern in patterns for path in self._folder.glob(pattern)})
        return {path.relative_to(self._folder).as_posix(): self._digests.of(path) for path in files}


def _missing_shards(folder: Path) -> list[str]:
    named: set[str] = set()
    for index in folder.glob("*.safetensors.index.json"):
        named.update(json.loads(index.read_text("utf-8"))["weight_map"].values())
    return sorted(name for name in named if not (folder / name).is_file())


def _listing(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir())
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "") if names else "nothing"
