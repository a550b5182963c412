"""Lock files of datasets: a JSON file that maps the path of a dataset to a commit of it."""

import json
from pathlib import Path

_FOLDER = Path(__file__).resolve().parent
HF_REVISIONS_LOCKFILE = _FOLDER / "dataset_revisions.json"
"""The commits that eval-framework 0.9.1 evaluates."""
FROZEN_HF_REVISIONS_LOCKFILE = _FOLDER / "frozen_dataset_revisions.json"
"""The commits of datasets that a task cannot read at a later commit."""


def commit_in(lockfile: Path, dataset_path: str) -> str | None:
    """The commit of a dataset in a lock file; None if the file does not name one."""
    commits: dict[str, str] = json.loads(lockfile.read_text("utf-8"))
    return commits.get(dataset_path)
