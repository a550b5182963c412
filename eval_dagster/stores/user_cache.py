"""The folder for files that can be made again, below `XDG_CACHE_HOME` or `~/.cache`."""

import os
from pathlib import Path


def user_cache() -> Path:
    """The folder, which may not exist. Raises `RuntimeError` if the user has no home."""
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "eval_dagster"
