"""The copy of a lake's files on this machine. Without an object store, its folder is the lake itself.

Files of a lake never change, so a copy is never outdated; only names are compared. A new file is put into the store before it appears here.
Until then it waits in a separate folder. If this run cannot put it into the store, the next run does.

A file in the lake's folder names the store, so every process that opens the home finds it.
"""

import hashlib
import logging
import os
import secrets
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from eval_dagster.errors import LakeError, LakeUnreachableError, UsageError
from eval_dagster.lake.format.damage import verify_file
from eval_dagster.lake.format.parquet_files import sweep
from eval_dagster.lake.remote.store import ConflictError, Store, StoredObject, probe, was_probed
from eval_dagster.lake.tables.schemas import TABLES
from eval_dagster.progress.reporting import current_reporter
from eval_dagster.stores.locks import is_held, locked
from eval_dagster.stores.whole_files import replaced, user_cache

_FILE = ".parquet"
_DOWNSTREAM_FIRST = (
    *(("notices", "acceptances", "human_labels"), ("regressions",), ("aggregate_regressions", "sample_changes", "looks", "confirmations")),
    *(("metrics",), ("scores",), ("responses",), ("prompts",)),
    ("samples", "attempts", "endpoint_states", "checkpoints", "night_plans", "history_looks"),
)
"""The tables, in groups. Files of a group name files of later groups, which are written before them."""
log = logging.getLogger(__name__)
_WAITING = ".waiting"
_THREADS = 16
_TRIES = 5
_REPORTED = 50
"""With fewer files, no progress is reported."""
_NOTE = ".mirror"
_stores: dict[str, Store] = {}


def is_file(name: str) -> bool:
    """Whether a name belongs to a whole file of a lake."""
    return name.endswith(_FILE) and not name.rpartition("/")[2].startswith(".")


def is_inside(name: str) -> bool:
    """Whether a name found in a file belongs to a file in the lake."""
    parts = name.split("/")
    return is_file(name) and not {"", ".", ".."} & set(parts)


def downstream_first(folders: Iterable[str]) -> list[list[str]]:
    """Folders of tables in groups, each before the groups whose files its own files name."""
    order = {table: number for number, tables in enumerate(_DOWNSTREAM_FIRST) for table in tables}
    groups: list[list[str]] = [[] for _ in range(len(_DOWNSTREAM_FIRST) + 1)]
    for folder in folders:
        groups[order.get(folder.partition("/")[0], len(_DOWNSTREAM_FIRST))].append(folder)
    return groups


def newest(names: Iterable[str], tables: Collection[str]) -> list[str]:
    """The names without the older files of each partition of some tables."""
    last: dict[str, str] = {}
    kept: list[str] = []
    for name in names:
        if name.partition("/")[0] in tables:
            partition = name.rpartition("/")[0]
            last[partition] = max(name, last.get(partition, ""))
        else:
            kept.append(name)
    return kept + list(last.values())


class Mirror:
    """The files of a store in a folder. Several processes may use the folder at once."""

    def __init__(self, root: Path, store: Store) -> None:
        self.root = root
        self.store = store
        self._lock = threading.Lock()
        self._is_ready = False
        self._steady: frozenset[str] = frozenset()
        self._older: dict[str, list[tuple[str, StoredObject]]] = {}
        """Files of steady folders that stay in the store until they are read, by folder."""
        self._older_lock = threading.Lock()

    def begin(self) -> None:
        """Probe the store once, and put files into it that earlier processes could not put.

        Raises:
            UsageError: The store cannot hold a lake.
            LakeUnreachableError: The store does not answer, or has lost the lake that it held.
        """
        with self._lock:
            if not self.store.is_probed:
                if has_files(self.root):  # before the probe, which leaves an object
                    self._require_lake()
                probe(self.store)
                self.store.is_probed = True
            if not self._is_ready:
                self.put_waiting()
                self._is_ready = True

    def put_waiting(self) -> None:
        """Put all waiting files into the store. If two processes put a file at the same time, it is put once."""
        folder = self.root / _WAITING

        def put(waiting: Path) -> None:
            try:
                self._put(waiting, self.root / waiting.relative_to(folder))
            except ConflictError as error:  # the other files can still be put
                log.warning(f"{waiting} stays where it is: {error}")

        files = sorted(_files_in(folder))
        reported = len(files) if len(files) >= _REPORTED else 0
        with (
            ThreadPoolExecutor(_THREADS) as pool,
            current_reporter().track(f"write to {self.store.url}", total=reported, unit="files") as advance,
        ):
            for _ in pool.map(put, files):
                advance()

    def write(self, path: Path, write: Callable[[Path], None]) -> None:
        """Add a file. `write` makes it at a path, then it is put into the store, then it appears here.

        Raises:
            LakeUnreachableError: It cannot be put. It is kept, and the next run puts it.
        """
        self.begin()
        waiting = self.root / _WAITING / path.relative_to(self.root)
        write(waiting)
        try:
            self._put(waiting, path)
        except (LakeError, LakeUnreachableError, UsageError) as error:
            raise type(error)(f"{error}; until then the file is kept in {waiting}") from error

    def _put(self, waiting: Path, path: Path) -> None:
        with suppress(FileNotFoundError):  # another process also put it
            self.store.put_file(self.name(path), waiting)
            path.parent.mkdir(parents=True, exist_ok=True)
            waiting.replace(path)

    def name(self, path: Path) -> str:
        """The name of a file in the store."""
        return path.relative_to(self.root).as_posix()

    def delete(self, path: Path) -> None:
        """Delete a file in the store, then here."""
        self.store.delete(self.name(path))
        path.unlink(missing_ok=True)

    def listed(self, folders: Iterable[str]) -> dict[str, StoredObject]:
        """The store's files in folders, by name.

        Others may write while the store is listed. A table is listed before the tables that its files name, so the named files are listed
        too.
        """
        found: dict[str, StoredObject] = {}
        with ThreadPoolExecutor(_THREADS) as pool:
            for group in downstream_first(folders):
                for objects in pool.map(self.store.list, group):
                    found |= {name: each for name, each in objects.items() if is_file(name)}
        return found

    def fetch(self, names: Iterable[str]) -> None:
        """Fetch files missing here. Skips files that are no longer in the store, and names that cannot be a lake file's."""
        missing = [name for name in names if is_inside(name) and not (self.root / name).exists()]
        if missing:
            with ThreadPoolExecutor(_THREADS) as pool:
                self._fetch_all(pool, missing)

    @contextmanager
    def steady(self, folders: Iterable[str], *, newest_of: Collection[str] = ()) -> Iterator[None]:
        """Pull folders and freeze them within the block, plus this process's additions.

        Older files of the tables `newest_of` are fetched when their folder is pulled within the block.
        """
        wanted = frozenset(folder for folder in folders if not self._is_steady(folder))
        for name, stored in self.pull(wanted, newest_of=newest_of).items():
            self._older.setdefault(name.rpartition("/")[0], []).append((name, stored))
        before, self._steady = self._steady, self._steady | wanted
        try:
            yield
        finally:
            self._steady = before
            self._older = {folder: files for folder, files in self._older.items() if self._is_steady(folder)}

    def older(self, folder: str) -> list[str]:
        """The files of a steady folder that are fetched only when they are read."""
        return [name for name, _ in self._older.get(folder, ())]

    def _fetch_older(self, folder: str) -> None:
        with self._older_lock:
            folders = [folder] if "/" in folder else [each for each in self._older if each.startswith(f"{folder}/")]
            files = [file for each in folders for file in self._older.get(each, ())]
            missing = [name for name, stored in files if _size(self.root / name) != stored.size]
            if missing:
                with ThreadPoolExecutor(_THREADS) as pool:
                    self._fetch_all(pool, missing)
            for each in folders:
                self._older.pop(each, None)

    def pull(self, folders: Iterable[str], *, newest_of: Collection[str] = (), whole: bool = False) -> dict[str, StoredObject]:
        """Make folders the same as in the store: fetch missing files, and remove files that are no longer in the store.

        Args:
            folders: Their names, relative to the lake.
            newest_of: Tables for which only the newest file of each partition is fetched.
            whole: Whether the folders are all of the lake. Then an empty store is an error if this machine has files.

        Returns:
            The older files of `newest_of`, which were left in the store.

        Raises:
            LakeUnreachableError: The store does not answer, or has lost the lake that it held.
        """
        wanted: list[str] = []
        for folder in folders:
            if not self._is_steady(folder):
                wanted.append(folder)
            elif folder.partition("/")[0] not in newest_of:
                self._fetch_older(folder)
        if not wanted:
            return {}
        with ThreadPoolExecutor(_THREADS) as pool:
            for _ in range(_TRIES):
                # Before the store is listed, because a file is in the store before it is here.
                here = {self.name(path): _size(path) for folder in wanted for path in _files_in(self.root / folder, sweeping=True)}
                there = self.listed(wanted)
                if here and not there:
                    if whole:
                        raise LakeUnreachableError(self._is_empty())
                    self._require_lake()
                chosen = newest(there, newest_of) if newest_of else there
                if self._fetch_all(pool, [name for name in chosen if here.get(name) != there[name].size]):
                    for name in here.keys() - there.keys():
                        (self.root / name).unlink(missing_ok=True)
                    return {name: there[name] for name in there.keys() - set(chosen)}
        raise LakeUnreachableError(f"the lake {self.store.url} kept changing while it was read; run again")

    def _is_steady(self, folder: str) -> bool:
        return folder in self._steady or any(folder.startswith(f"{parent}/") for parent in self._steady if "/" not in parent)

    def _fetch_all(self, pool: ThreadPoolExecutor, missing: Sequence[str]) -> bool:
        """Fetch files. Returns whether all were still in the store: another machine may have merged or deleted some.

        Reports no progress for few files.
        """

        def fetch(name: str) -> bool:
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
            try:
                for _ in range(2):  # a file damaged twice is damaged in the store, which its readers report
                    self.store.fetch(name, temporary)
                    with suppress(ValueError):
                        verify_file(temporary)
                        break
                temporary.replace(path)
            except FileNotFoundError:
                return False
            finally:
                temporary.unlink(missing_ok=True)
            return True

        reported = len(missing) if len(missing) >= _REPORTED else 0
        found = True
        with current_reporter().track(f"fetch {self.store.url}", total=reported, unit="files") as advance:
            for is_there in pool.map(fetch, missing):
                found = found and is_there
                advance()
        return found

    def _require_lake(self) -> None:
        """Raise `LakeUnreachableError` if the store has neither a probe's object nor a file."""
        if not was_probed(self.store) and not any(map(is_file, self.store.list(""))):
            raise LakeUnreachableError(self._is_empty())

    def _is_empty(self) -> str:
        count = sum(1 for _ in _files_in(self.root))
        return (
            f"the lake {self.store.url} has no file, but {self.root} has {count} files of it; if it was emptied on purpose, delete "
            f"{self.root}; otherwise mount the disk that it is on, or restore it, for instance from that folder"
        )


def has_files(root: Path) -> bool:
    """Whether a folder contains files of a lake at any depth, including waiting ones."""
    return any(True for _ in _files_in(root))


def has_waiting(root: Path) -> bool:
    """Whether files of a lake wait to be put into a store."""
    return has_files(root / _WAITING)


def let_wait(root: Path, folders: Iterable[str]) -> None:
    """Move all files of a lake to the files that wait for a store."""
    for folder in folders:
        for path in list(_files_in(root / folder)):
            waiting = root / _WAITING / path.relative_to(root)
            waiting.parent.mkdir(parents=True, exist_ok=True)
            path.replace(waiting)


def _size(path: Path) -> int | None:
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return None


def _files_in(folder: Path, *, sweeping: bool = False) -> Iterator[Path]:
    """The files of a lake in a folder and below it. With `sweeping`, removes half-fetched files left by killed processes."""
    for parent, _, names in os.walk(folder):
        if sweeping and any(name.endswith(".tmp") for name in names):
            sweep(Path(parent))
        yield from (Path(parent) / name for name in names if is_file(name))


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
