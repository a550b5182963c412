"""Replaces files as a whole, and names the folder for files that can be made again."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def user_cache() -> Path:
    """The folder, below `XDG_CACHE_HOME` or `~/.cache`, which may not exist. Raises `RuntimeError` if the user has no home."""
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "eval_dagster"


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yield a path beside a file. The file that the block writes there replaces `path`; if the block fails, it is removed."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
