"""The commits at which datasets of the Hub are read."""

import json
import os
from pathlib import Path

from eval_dagster.errors import ConfigError
from eval_dagster.stores.locks import locked

FILE_NAME = "datasets.lock.json"


class DatasetLock:
    """A JSON file of commits by Hub id; meant to be kept under version control."""

    def __init__(self, path: Path) -> None:
        """`path` need not exist."""
        self._path = path

    def get(self, dataset: str) -> str | None:
        """The commit of a dataset; None if it was never downloaded. Raises `ConfigError` if the file is not a JSON object of texts."""
        return self._read().get(dataset)

    def add(self, dataset: str, commit: str) -> str:
        """Record the commit of a dataset, unless another process was first. Returns the recorded commit."""
        # Beside the file, where only users who can write the file can hold the lock.
        with locked(self._path.with_name(f".{self._path.name}.lock")):
            commits = {dataset: commit, **self._read()}
            made = self._path.with_name(f".{self._path.name}-{os.getpid()}")
            made.write_text(json.dumps(dict(sorted(commits.items())), indent=2) + "\n", "utf-8")
            made.replace(self._path)
        return commits[dataset]

    def _read(self) -> dict[str, str]:
        if not self._path.exists():
            return {}
        try:
            commits = json.loads(self._path.read_text("utf-8"))
        except ValueError as error:
            raise ConfigError(f"{self._path} is no JSON ({error}); restore it, or delete it to pin the datasets anew") from error
        if not isinstance(commits, dict) or not all(isinstance(commit, str) for commit in commits.values()):
            raise ConfigError(f"{self._path} holds {str(commits)[:80]}; expected commits by dataset; restore it, or delete it")
        return commits
