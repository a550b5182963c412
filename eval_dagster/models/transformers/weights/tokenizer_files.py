"""The files of a tokenizer, from the same kinds of source as a model's. No weights are needed, downloaded or converted."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eval_dagster.config.models import FolderSource, HubSource, Source
from eval_dagster.errors import EvalDagsterError, ModelNotFoundError
from eval_dagster.models.transformers.weights.checkpoint import TOKENIZER_FILES, Checkpoint, tokenizer_problem
from eval_dagster.models.transformers.weights.digests import Digests
from eval_dagster.models.transformers.weights.gguf import GGUFCheckpoint
from eval_dagster.models.transformers.weights.sources import open_checkpoint


class TokenizerFiles(ABC):
    """The files of a tokenizer, which can be checked and named without being loaded."""

    @abstractmethod
    def check(self) -> None:
        """Raise `ModelNotFoundError` unless the tokenizer is there."""

    @abstractmethod
    def fingerprint(self) -> Any:
        """JSON-like value that differs if the tokenizer or its chat template differs. Loads nothing."""

    @abstractmethod
    def folder(self) -> Path:
        """The folder to load from, downloaded or prepared if necessary. Raises `ModelError` if that fails."""


def open_tokenizer(name: str, source: Source, *, folder: Path, home: Path) -> TokenizerFiles:
    """The tokenizer of a model's key `tokenizer`. `folder` is the folder of evals.yaml, `home` the folder of all state."""
    if isinstance(source, FolderSource):
        return _FolderFiles(name, (folder / Path(source.folder).expanduser()).absolute(), Digests(home / "models" / "digests.json"))
    checkpoint = open_checkpoint(name, source, folder=folder, home=home)
    return _HubFiles(name, checkpoint) if isinstance(source, HubSource) else _GGUFFiles(checkpoint)


class _FolderFiles(TokenizerFiles):
    def __init__(self, name: str, folder: Path, digests: Digests) -> None:
        self._name = name
        self._folder = folder
        self._digests = digests

    def check(self) -> None:
        if not self._files():
            seen = "holds no tokenizer, such as tokenizer.json" if self._folder.is_dir() else "does not exist"
            raise ModelNotFoundError(
                f"Model {self._name!r}: the folder {self._folder} {seen}. Correct `tokenizer.folder` in evals.yaml (relative to that file)."
            )

        if problem := tokenizer_problem(self._folder):
            raise ModelNotFoundError(f"Model {self._name!r}: {problem}. Correct that file, or `tokenizer.folder` in evals.yaml.")

    def fingerprint(self) -> Any:
        self.check()
        return {path.relative_to(self._folder).as_posix(): self._digests.of(path) for path in self._files()}

    def folder(self) -> Path:
        self.check()
        return self._folder

    def _files(self) -> list[Path]:
        return sorted({path for pattern in TOKENIZER_FILES for path in self._folder.glob(pattern)})


class _HubFiles(TokenizerFiles):
    def __init__(self, name: str, checkpoint: Checkpoint) -> None:
        self._name = name
        self._checkpoint = checkpoint

    def check(self) -> None:
        try:
            self.folder()  # a few megabytes, where they are not in the cache yet
        except EvalDagsterError as error:
            raise ModelNotFoundError(f"{error} It is the `tokenizer` of this model in evals.yaml.") from error

    def fingerprint(self) -> Any:
        return self._checkpoint.fingerprint()

    def folder(self) -> Path:
        return self._checkpoint.tokenizer_folder()


class _GGUFFiles(TokenizerFiles):
    def __init__(self, checkpoint: Checkpoint) -> None:
        assert isinstance(checkpoint, GGUFCheckpoint), "the other sources have files of their own"
        self._checkpoint = checkpoint

    def check(self) -> None:
        with _own_key():
            self._checkpoint.check()

    def fingerprint(self) -> Any:
        with _own_key():
            return self._checkpoint.fingerprint()

    def folder(self) -> Path:
        with _own_key():
            return self._checkpoint.tokenizer_alone()


@contextmanager
def _own_key() -> Iterator[None]:
    """Name the key `tokenizer` in errors, if a model's weights have `source`."""
    try:
        yield
    except ModelNotFoundError as error:
        raise ModelNotFoundError(str(error).replace("`source", "`tokenizer").replace("its weights", "its tokenizer")) from error
