"""Weights on the Hugging Face Hub at one commit: read from the local cache if they are in it, downloaded otherwise."""

from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

from eval_dagster.errors import ModelError, ModelNotFoundError
from eval_dagster.models.transformers.weights.checkpoint import (
    MODEL_FILES,
    TEMPLATE_FILES,
    Checkpoint,
    configured_length,
    layout_problem,
    tokenizer_problem,
)

_TIMEOUT_S = 5.0
"""Seconds that the Hub has to answer whether a commit exists."""

_REFUSALS = (
    (RevisionNotFoundError, "the Hub has no such commit in this repository", "Correct `source.revision` in evals.yaml"),
    (GatedRepoError, "the repository is gated", "Accept its terms on the Hub and log in with `hf auth login`"),
    (RepositoryNotFoundError, "the Hub has no such repository, or it is private", "Correct `source.hub`, or log in with `hf auth login`"),
)
"""Statuses of the Hub for a commit that is not available, with their meaning and the cure."""


class HubCheckpoint(Checkpoint):
    """A repository on the Hub at one commit."""

    def __init__(self, name: str, repository: str, commit: str):
        self._name = name
        self._repository = repository
        self._commit = commit

    def check(self) -> None:
        """Raise `ModelNotFoundError` unless the commit is cached or the Hub has it."""
        try:
            cached = self._cached()
        except HFValidationError as error:
            raise self._not_found(f"no name of a repository ({error})", "Write `source.hub` as organisation/name") from error
        if cached is not None:
            return
        if constants.HF_HUB_OFFLINE:
            raise self._not_found(
                "it is not complete in the local cache, and HF_HUB_OFFLINE forbids a download",
                "Unset HF_HUB_OFFLINE once to download it, or copy it and use `source: {folder: ...}`",
            )
        try:
            info = HfApi().model_info(self._repository, revision=self._commit, timeout=_TIMEOUT_S)
        except Exception as error:
            for refusal, seen, remedy in _REFUSALS:
                if isinstance(error, refusal):
                    raise self._not_found(seen, remedy) from error
            # The HTTP client, and with it the class of its errors, differs between the versions of huggingface_hub.
            reason = f"the Hub cannot be reached at {constants.ENDPOINT} ({type(error).__name__}: {error})"
            raise self._not_found(
                f"it is not complete in the local cache, and {reason}",
                "Check the network, or copy the model and use `source: {folder: ...}`",
            ) from error
        files = sorted(sibling.rfilename for sibling in info.siblings or ())
        if not any(name.endswith(".safetensors") for name in files) or "config.json" not in files:
            raise self._not_found(
                f"the repository holds no config.json with *.safetensors weights at this commit, only {', '.join(files[:8]) or 'nothing'}",
                "Pickled weights (*.bin) are refused because loading them can run code: choose a commit that has safetensors",
            )

    def fingerprint(self) -> Any:
        """Repository and commit, which identify the content without a download."""
        return {"hub": self._repository, "commit": self._commit}

    def context_length(self) -> int | None:
        """Tokens of context that `config.json` states, if it is in the local cache."""
        folder = self._cached()
        return None if folder is None else configured_length(folder)

    def has_tokenizer(self) -> bool:
        """Whether the repository is in the local cache."""
        return self._cached() is not None

    def folder(self) -> Path:
        """The folder to load from, downloaded if necessary. Raises `ModelError` if the download fails."""
        folder = self._cached() or self._download(MODEL_FILES)
        if problem := layout_problem(folder):
            raise ModelError(f"Model {self._name!r}: {self._repository} at commit {self._commit} cannot be loaded: {problem}.")
        return folder

    def tokenizer_folder(self) -> Path:
        """A folder to load the tokenizer from; downloads no weights. Raises `ModelError` if the download fails."""
        folder = self._cached() or self._download((*TEMPLATE_FILES, "config.json"))
        if problem := tokenizer_problem(folder):
            raise ModelError(f"Model {self._name!r}: {self._repository} at commit {self._commit} cannot be loaded: {problem}.")
        return folder

    def _cached(self) -> Path | None:
        config = try_to_load_from_cache(self._repository, "config.json", cache_dir=constants.HF_HUB_CACHE, revision=self._commit)
        if not isinstance(config, str) or layout_problem(Path(config).parent):
            return None
        return Path(config).parent

    def _download(self, patterns: tuple[str, ...]) -> Path:
        try:
            return Path(
                snapshot_download(self._repository, revision=self._commit, allow_patterns=list(patterns), cache_dir=constants.HF_HUB_CACHE)
            )
        except Exception as error:
            raise ModelError(
                f"Model {self._name!r}: {self._repository} at commit {self._commit} could not be downloaded "
                f"({type(error).__name__}: {error}). Check the network and the free disk space, then run again: finished files are kept."
            ) from error

    def _not_found(self, seen: str, remedy: str) -> ModelNotFoundError:
        return ModelNotFoundError(f"Model {self._name!r}: {self._repository} at commit {self._commit}: {seen}. {remedy}.")
