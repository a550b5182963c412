"""Finds the object store of a home's lake.

A file in the lake's folder names it, so every process that opens the home finds it.
"""

import hashlib
from pathlib import Path

from eval_dagster.errors import UsageError
from eval_dagster.lake.remote.mirror import Mirror, has_files, has_waiting, let_wait
from eval_dagster.lake.remote.store import Store, probe
from eval_dagster.lake.tables.schemas import TABLES
from eval_dagster.stores.locks import is_held, locked
from eval_dagster.stores.user_cache import user_cache
from eval_dagster.stores.whole_files import replaced

_NOTE = ".mirror"
_stores: dict[str, Store] = {}


def mirror_in(root: Path) -> Mirror | None:
    """The mirror in a folder. None if the folder is the lake itself."""
    url = mirrored_url(root)
    return None if url is None else Mirror(root, _store(url))


def mirrored_url(root: Path) -> str | None:
    """The URL of the lake that a folder mirrors, if any."""
    try:
        return (root / _NOTE).read_text("utf-8").strip() or None
    except (FileNotFoundError, NotADirectoryError):
        return None


def mirror_lake(root: Path, url: str | None) -> None:
    """Make a folder the mirror of a lake; with None, a separate lake.

    Raises:
        UsageError: It has files of another lake.
    """
    url, known = url and url.rstrip("/"), mirrored_url(root)
    if url == known:
        if url is None and has_waiting(root):
            raise UsageError(f"the files of {root} were being moved to an object store; end that first: eval-dagster upload URL")
        return
    if url is None:
        raise UsageError(
            f"{root} mirrors the lake {known}, but evals.yaml names no lake; add `lake: {known}`, or use another home (EVAL_DAGSTER_HOME)"
        )
    if has_files(root):
        what = f"mirrors the lake {known}" if known else "holds the results of this home"
        cure = (
            "use another home (EVAL_DAGSTER_HOME)"
            if known
            else f"move them there by `eval-dagster upload {url}`, or use another home (EVAL_DAGSTER_HOME)"
        )
        raise UsageError(f"the lake is to be {url}, but {root} {what}; {cure}")
    note_mirror(root, url)


def upload(root: Path, url: str) -> Mirror:
    """Move the results of a home to an object store. The home becomes its mirror.

    A killed process leaves waiting files; calling this again continues.

    Raises:
        UsageError: The home mirrors another lake, a run of the home is active, or the store cannot hold a lake.
        LakeUnreachableError: The store does not answer.
    """
    url = url.rstrip("/")
    known = mirrored_url(root)
    if known not in (None, url):
        raise UsageError(f"{root} mirrors the lake {known}, and cannot be moved to {url}; copy the objects from store to store")
    mirror = Mirror(root, _store(url))
    probe(mirror.store)
    if known is None:
        locks = root.parent / "locks"
        with locked(locks / "catalog"):
            # A run would continue to write files outside the store.
            if any(map(is_held, (locks / "runs").glob("*"))):
                raise UsageError(f"a run of {root.parent} is at work; upload when it has ended")
            let_wait(root, (*TABLES, "response_cache"))
            note_mirror(root, url)
    mirror.put_waiting()
    return mirror


def reading_home(url: str) -> Path:
    """The home of a user's read-only copy of a lake: a folder for each URL in the user's cache."""
    name = hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:16]
    home = user_cache() / "lakes" / name
    mirror_lake(home / "lake", url)
    return home


def note_mirror(root: Path, url: str) -> None:
    """Record that a folder mirrors a lake."""
    root.mkdir(parents=True, exist_ok=True)
    with replaced(root / _NOTE) as temporary:
        temporary.write_text(url, "utf-8")


def _store(url: str) -> Store:
    """The store of a URL. Opened once per process, because it holds connections."""
    if url not in _stores:
        _stores[url] = Store(url)
    return _stores[url]
