"""Lock files of datasets: a JSON file that maps the path of a dataset to a commit of it."""

import json
from pathlib import Path
from typing import Any, Self

_FOLDER = Path(__file__).resolve().parent
HF_REVISIONS_LOCKFILE = _FOLDER / "dataset_revisions.json"
"""The commits that eval-framework 0.9.1 evaluates."""
FROZEN_HF_REVISIONS_LOCKFILE = _FOLDER / "frozen_dataset_revisions.json"
"""The commits of datasets that a task cannot read at a later one."""


class HfDatasetRevisions:
    """The commits of datasets by their paths."""

    def __init__(self, revisions: dict[str, str]) -> None:
        self._revisions = dict(revisions)

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Read a lock file."""
        return cls(json.loads(path.read_text("utf-8")))

    def to_dict(self) -> dict[str, str]:
        """A copy of the mapping."""
        return dict(self._revisions)

    def to_file(self, path: Path) -> None:
        """Write a lock file."""
        path.write_text(json.dumps(self._revisions, indent=4, sort_keys=True, ensure_ascii=False) + "\n", "utf-8")

    def revision_for(self, dataset_path: str) -> str:
        """The commit of a dataset. Raises `KeyError` where there is none."""
        return self._revisions[dataset_path]

    def num_revisions(self) -> int:
        """How many datasets there are."""
        return len(self._revisions)

    def update_to_latest(self, api: Any) -> None:
        """Replace each commit by the newest one on the Hub. A dataset whose commit cannot be found keeps its own."""
        for path in self._revisions:
            try:
                self._revisions[path] = api.dataset_info(path, timeout=100.0).sha or self._revisions[path]
            except Exception:  # noqa: S112 - the Hub is out of reach, or has no such dataset
                continue


def pinned_revision(lockfile: Path, dataset_path: str) -> str:
    """The commit of a dataset in a lock file.

    Raises:
        KeyError: It names none.
    """
    try:
        return HfDatasetRevisions.from_file(lockfile).revision_for(dataset_path)
    except KeyError:
        raise KeyError(f"{lockfile} names no commit of the dataset {dataset_path!r}; add one") from None
