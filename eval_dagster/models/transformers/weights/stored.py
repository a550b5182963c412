"""Weights in an object store, whose objects are downloaded into the home and have to be those that were seen first."""

import fnmatch
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eval_dagster.errors import EvalDagsterError, LakeUnreachableError, ModelError, ModelUnreachableError, NotEvaluatedError
from eval_dagster.lake.remote.store import Store, StoredObject
from eval_dagster.models.transformers.weights.checkpoint import MODEL_FILES, TEMPLATE_FILES, Checkpoint, configured_length, layout_problem
from eval_dagster.progress.reporting import current_reporter
from eval_dagster.stores.whole_files import replaced
from eval_dagster.versions.hashes import stable_hash


def content_of(url: str, objects: Mapping[str, StoredObject]) -> str:
    """A hash that differs if a file of a model differs: of its place, and of names, sizes, times of upload and tags of its objects.

    Two models of one size can be uploaded within the second by which servers count, so that their places tell them apart.

    Args:
        url: The prefix of the objects.
        objects: By their names relative to it.
    """
    files = {name: [each.size, each.modified.isoformat(), each.tag] for name, each in sorted(objects.items()) if _is_of_model(name)}
    return stable_hash([url, files])


def _is_of_model(name: str) -> bool:
    return name.endswith(".safetensors") or any(fnmatch.fnmatch(name, each) for each in MODEL_FILES)


class StoreCheckpoint(Checkpoint):
    """A model below a URL of an object store, with the content that was seen first."""

    def __init__(self, name: str, url: str, content: str, home: Path) -> None:
        self._name = name
        self._url = url
        self._content = content
        self._folder = home / "models" / "stored" / content

    def check(self) -> None:
        """Raise unless it is downloaded or in the store. Cached answers can be used all the same.

        Raises:
            NotEvaluatedError: It was deleted.
            ModelUnreachableError: The store does not answer, or the objects were replaced.
        """
        if layout_problem(self._folder) is not None:
            try:
                self._objects()
            except NotEvaluatedError:
                raise
            except ModelError as error:
                raise ModelUnreachableError(str(error)) from error

    def fingerprint(self) -> Any:
        """The content, which is known without a download."""
        return {"stored": self._content}

    def context_length(self) -> int | None:
        """Tokens of context that `config.json` states, if it is downloaded."""
        return configured_length(self._folder) if (self._folder / "config.json").is_file() else None

    def has_tokenizer(self) -> bool:
        """Whether it is downloaded."""
        return layout_problem(self._folder) is None

    def folder(self) -> Path:
        """The folder to load from. Raises `NotEvaluatedError` if the model was deleted, `ModelError` if it cannot be downloaded."""
        if layout_problem(self._folder) is not None:
            self._download(weights=True)
        if problem := layout_problem(self._folder):
            raise ModelError(f"Model {self._name!r}: {self._url} cannot be loaded: {problem}.")
        return self._folder

    def tokenizer_folder(self) -> Path:
        """A folder with at least the tokenizer. No weights are downloaded for it."""
        if layout_problem(self._folder) is not None:
            self._download(weights=False)
        return self._folder

    def _objects(self) -> dict[str, StoredObject]:
        """The objects of the model, by their names relative to it."""
        try:
            found = Store(self._url).list("")
        except LakeUnreachableError as error:  # of this store, which need not be that of the lake
            raise ModelError(f"Model {self._name!r}: {self._url} cannot be listed: {error}.") from error
        if not any(map(_is_of_model, found)):
            raise NotEvaluatedError(f"the checkpoint was deleted (was at {self._url})")
        if content_of(self._url, found) != self._content:
            raise ModelError(f"Model {self._name!r}: the objects at {self._url} were replaced since the checkpoint was first seen.")
        return found

    def _download(self, *, weights: bool) -> None:
        objects = self._objects()
        small = [name for name in objects if any(fnmatch.fnmatch(name, each) for each in (*TEMPLATE_FILES, "config.json"))]
        wanted = [name for name in objects if _is_of_model(name)] if weights else small
        store = Store(self._url)
        with current_reporter().track(f"download {self._name}", total=len(wanted), unit="files") as advance:
            for name in wanted:
                path = self._folder / name
                if not path.is_file() or path.stat().st_size != objects[name].size:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    try:
                        with replaced(path) as temporary:
                            store.fetch(name, temporary)
                    except FileNotFoundError as error:
                        raise NotEvaluatedError(f"the checkpoint was deleted while it was downloaded (was at {self._url})") from error
                    except EvalDagsterError as error:
                        raise ModelError(f"Model {self._name!r}: {self._url}/{name} could not be downloaded: {error}.") from error
                advance()
