"""The response cache: all answers of models, by model version and request.

Its files are in `lake/response_cache/model_version=<version>/`. They are written every few seconds while a model works. Until then answers
are in a journal, one line of JSON each, which is written as soon as the answer arrives. So a killed run loses none. The lock of a journal
ends with its process. A journal without a lock tells other processes to store its answers. The version covers everything that can change an
answer, so stored answers are never outdated.
"""

import contextlib
import fcntl
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from contextlib import AbstractContextManager
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from eval_dagster.errors import LakeError, ModelError
from eval_dagster.lake.answers.claims import Claim, GrowingClaim, HomeClaims, StoreClaims, lines_of_rows, rows_of_lines
from eval_dagster.lake.catalog.catalog import rows_of
from eval_dagster.lake.files import Lake
from eval_dagster.lake.format.damage import damage_named, damages_of, require_sound
from eval_dagster.lake.format.parquet_files import TableParts, is_listed, new_name
from eval_dagster.lake.tables.columns import Answer
from eval_dagster.lake.tables.rows import to_table
from eval_dagster.lake.tables.schemas import RESPONSE_CACHE

SUFFIX = ".journal"
_UNNAMED = ".tmp"
_MERGE_ABOVE = 24
_VERSION = re.compile(r"(?!\.)[\w.+-]{1,200}", re.ASCII)
_ONE_EACH = "qualify row_number() over (partition by request_id order by latency_s, hash(choice_logprobs), hash(text)) = 1"
"""Two processes may have stored an answer to the same request. The choice between them must not depend on the order of the files."""
_LARGE_BYTES = 16 * 2**20
"""Size of all files above which the files that hold a request are looked for before they are read."""
_HOLDING = (
    "select distinct filename from read_parquet($files, filename = true, hive_partitioning = false) semi join wanted using (request_id)"
)
FLUSH_S = 3.0
_BACK_UP_S = 0.2
_MOST_ROWS = 200
"""Above this number, rows are flushed to a file, because each backup writes all of them again."""


class Journal:
    """The journals of one process. It writes to one at a time."""

    def __init__(self, folder: Path, name: str) -> None:
        """`name` is the prefix of its file names."""
        self._folder = folder
        self._name = name
        self._number = 0
        self._file: IO[bytes] | None = None
        self._path = folder
        self._ended: list[tuple[Path, IO[bytes]]] = []

    def add(self, rows: Iterable[Answer]) -> None:
        """Write answers."""
        while self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._number += 1
            self._path = self._folder / f"{self._name}-{self._number}{SUFFIX}"
            # It is locked before it gets its name, because other processes treat an unlocked journal as abandoned.
            unnamed = self._path.with_name(f".{self._path.name}{_UNNAMED}")
            file = unnamed.open("ab", buffering=0)
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                unnamed.rename(self._path)
                self._file = file
            except FileNotFoundError:  # another process treated it as abandoned before it was locked
                file.close()
        lines = lines_of_rows(rows)
        if self._file.write(lines) != len(lines):
            raise OSError(f"no space left for {self._path}")

    @contextlib.contextmanager
    def storing(self) -> Iterator[None]:
        """End the current journal. After the block, which stores the answers, all ended journals are deleted."""
        if self._file is not None:
            self._ended.append((self._path, self._file))
            self._file = None
        yield
        for path, file in self._ended:
            path.unlink(missing_ok=True)
            file.close()
        self._ended.clear()

    def close(self) -> None:
        """Leave journals with unstored answers to the next run."""
        for file in (*(file for _, file in self._ended), *([self._file] if self._file else [])):
            file.close()
        self._file = None


def journals(folder: Path) -> list[Path]:
    """The journals in a folder."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def remove_unnamed(folder: Path) -> None:
    """Remove the journals of processes that were killed before their journals had names."""
    for path in folder.glob(f".*{SUFFIX}{_UNNAMED}"):
        with abandoned(path) as is_abandoned:
            if is_abandoned:
                path.unlink(missing_ok=True)


def journal_rows(path: Path) -> Iterator[Answer]:
    """The answers of a journal. Skips a line cut by a crash, so its request is sent again."""
    try:
        yield from rows_of_lines(path.read_bytes())
    except FileNotFoundError:  # stored and deleted since it was listed
        return


@contextlib.contextmanager
def abandoned(path: Path) -> Iterator[bool]:
    """Whether the process of a journal has ended. The journal is locked during the block, which may store and delete it."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        yield False
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield path.exists()


class ResponseCache:
    """The answers of one model version."""

    def __init__(self, lake: Lake, model_version: str) -> None:
        """Take a model's version. Raises `ModelError` if it cannot name a folder, since the code of a backend may give any text."""
        if not isinstance(model_version, str) or not _VERSION.fullmatch(model_version):
            raise ModelError(f"the model has the version {model_version!r:.100}; expected 1 to 200 letters, digits and any of . _ + -")
        self._lake = lake.answers
        self._model_version = model_version
        self.folder = self._lake.root / "response_cache" / f"model_version={model_version}"
        """The folder of its files."""
        self._ids: _StoredIds | None = None
        self._own: ResponseFlusher | None = None

    def claimed(self, request_ids: Set[str], run_id: str) -> AbstractContextManager[Claim]:
        """Claim the requests that have no answer and that no other process asks, for the duration of the block."""
        if self._store_claims is None:
            return self._home_claims.claimed(request_ids, run_id, self.find)
        return self._store_claims.claimed(request_ids, run_id, self.find, partial(self.add, run_id=run_id))

    def growing_claim(self, run_id: str) -> AbstractContextManager[GrowingClaim]:
        """A claim to which requests are added, to the end of the block. For caches that have journals."""
        return self._home_claims.growing(run_id, self.find)

    @property
    def _home_claims(self) -> HomeClaims:
        return HomeClaims(self._lake.home, self._model_version)

    @property
    def has_journals(self) -> bool:
        """Whether answers are in a journal of this machine until they are in a file, rather than in an object store."""
        return self._store_claims is None

    @contextlib.contextmanager
    def searched_often(self, own: "ResponseFlusher | None") -> Iterator[None]:
        """Hold the ids of all stored answers within the block, so that requests without an answer are found missing in no time.

        `own` collects the answers of this process meanwhile; its journal is not read.
        """
        self._ids, self._own = _StoredIds(), own
        try:
            yield
        finally:
            self._ids = self._own = None

    @cached_property
    def _store_claims(self) -> StoreClaims | None:
        lake = self._lake
        return None if lake.mirror is None else StoreClaims(lake.mirror.store, self._model_version, lake.home)

    def find(self, request_ids: Collection[str]) -> dict[str, Answer]:
        """The stored rows of the requests, by request id. Raises `LakeError` if a file of the cache is damaged."""
        if not request_ids:
            return {}
        # Before the files, because a journal is deleted once its answers are in a file.
        wanted: Set[str] = set(request_ids)
        own = self._own
        others = [path for path in journals(self.folder) if own is None or not own.writes(path)]
        found = {row["request_id"]: row for path in others for row in journal_rows(path) if row["request_id"] in wanted}
        if own is not None:
            found |= own.held(wanted)
        query = (
            "select c.* from read_parquet($files, union_by_name = true, hive_partitioning = false) c semi join wanted using (request_id) "
            f"where model_version = $version {_ONE_EACH}"
        )
        for _ in range(5):
            files = self._lake.files(self.folder)
            if self._ids is not None:
                wanted = self._ids.among(files, wanted)
            if not files or not wanted:
                return found
            _require_sound(files)
            with duckdb.connect() as connection:
                connection.register("wanted", pa.table({"request_id": pa.array(sorted(wanted), pa.string())}))
                try:
                    names = list(map(str, files))
                    if sum(path.stat().st_size for path in files) > _LARGE_BYTES:
                        connection.execute(_HOLDING, {"files": names})
                        names = [name for (name,) in connection.fetchall()]
                    if not names:
                        return found
                    result = connection.execute(query, {"files": names, "version": self._model_version})
                    return found | {row["request_id"]: row for row in rows_of(result)}
                except FileNotFoundError:
                    continue
                except duckdb.Error as error:
                    _require_sound(files, again=True)
                    if all(map(is_listed, files)):
                        raise LakeError(f"the response cache {self.folder} cannot be read ({str(error).splitlines()[0]})") from error
        raise LakeError(f"the response cache {self.folder} kept changing while it was read; run again")

    def store_abandoned(self, run_id: str) -> None:
        """Store the answers in the journals of killed processes."""
        for path in journals(self.folder):
            with abandoned(path) as is_abandoned:
                if is_abandoned:
                    if rows := list(journal_rows(path)):
                        self.add(rows, run_id)
                    path.unlink(missing_ok=True)
        remove_unnamed(self.folder)

    def add(self, rows: Iterable[Answer], run_id: str) -> None:
        """Write answers to a new file."""
        self._lake.add(self.folder / new_name(run_id), to_table(list(rows), RESPONSE_CACHE))

    def merge(self, run_id: str) -> None:
        """Merge many small files into one, then delete them."""
        if len(self._lake.small_files(self.folder)) <= _MERGE_ABOVE:
            return
        with self._lake.lock(f"merge-{self._model_version}"):
            files = self._lake.small_files(self.folder)

            def read() -> Iterator[pa.Table]:
                for file in files:
                    require_sound(file)
                    with damage_named(file):
                        yield pq.read_table(file, schema=RESPONSE_CACHE)

            self._lake.add(self.folder / new_name(run_id), TableParts(schema=RESPONSE_CACHE, read=read))
            for file in files:
                self._lake.delete(file)


class _StoredIds:
    """The ids of the answers in the files of a cache. Each file is read once."""

    _BYTES = 16
    """Bytes of an id that are held. Longer ids may be equal in them, and then the files are read."""

    def __init__(self) -> None:
        self._of: dict[Path, np.ndarray[Any, Any]] = {}

    def among(self, files: Sequence[Path], wanted: Set[str]) -> Set[str]:
        """The wanted ids that a file may have. None is left out that one has."""
        if not wanted:
            return wanted
        self._of = {path: ids for path, ids in self._of.items() if path in set(files)} if len(self._of) > len(files) else self._of
        names = sorted(wanted)
        ids = np.array([name.encode() for name in names], dtype=f"S{self._BYTES}")
        is_there = np.zeros(len(ids), bool)
        for path in files:
            if path not in self._of:
                try:
                    column = pq.read_table(path, columns=["request_id"]).column(0)
                except (OSError, pa.ArrowException):  # merged into another file meanwhile, or damaged
                    return wanted
                self._of[path] = np.sort(np.array([name.encode() for name in column.to_pylist()], dtype=f"S{self._BYTES}"))
            stored = self._of[path]
            places = np.minimum(np.searchsorted(stored, ids), max(len(stored) - 1, 0))
            is_there |= stored[places] == ids if len(stored) else False
        return {name for name, has in zip(names, is_there, strict=True) if has}


def _require_sound(files: Sequence[Path], *, again: bool = False) -> None:
    """Raise `LakeError` if a file is damaged. Another process has merged a missing file into another one."""
    for path, damage in damages_of(files, again=again).items():
        if is_listed(Path(path)):
            raise LakeError(damage)


class ResponseFlusher:
    """Collects answers and flushes them every few seconds. The end of its `with` block flushes the rest, also after an error.

    It has its own thread, because the next answer of a large model can take minutes, and earlier answers must not wait for it.
    """

    def __init__(
        self,
        cache: ResponseCache,
        run_id: str,
        every_s: float = FLUSH_S,
        back_up: Callable[[Iterable[Answer]], None] | None = None,
    ) -> None:
        """Set the destination and the interval. If journals are local to this machine, `back_up` saves the answers not yet flushed."""
        self._cache = cache
        self._run_id = run_id
        self._every_s = every_s
        self._rows: list[Answer] = []
        self._held: dict[str, Answer] = {}
        """The same by request id."""
        self._name = Path(new_name(run_id)).stem
        self._journal = Journal(cache.folder, self._name)
        self._back_up = back_up
        self._problem: Exception | None = None
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._keep_flushing, name="response flusher", daemon=True)

    def __enter__(self) -> Self:
        """Store the answers of killed processes, then start the thread."""
        self._cache.store_abandoned(self._run_id)
        self._thread.start()
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        """Flush the remaining answers."""
        self._is_over.set()
        self._thread.join()
        try:
            self._flush()
        finally:
            self._journal.close()

    def add(self, *rows: Answer) -> None:
        """Add answers. Raises the error of the last flush, such as a full disk, because later answers could not be stored either."""
        if self._problem is not None:
            raise self._problem
        with self._lock:
            self._journal.add(rows)
            self._rows += rows
            self._held |= {row["request_id"]: row for row in rows}

    def held(self, wanted: Set[str]) -> dict[str, Answer]:
        """The answers to some requests that are not in a file yet."""
        with self._lock:
            return {name: self._held[name] for name in wanted & self._held.keys()}

    def writes(self, path: Path) -> bool:
        """Whether a journal is its own."""
        return path.name.startswith(f"{self._name}-")

    def _keep_flushing(self) -> None:
        flushed_at, backed_up = time.monotonic(), 0
        while not self._is_over.wait(self._every_s if self._back_up is None else _BACK_UP_S):
            try:
                if self._back_up is not None:
                    with self._lock:
                        rows = list(self._rows)
                    if len(rows) <= _MOST_ROWS and time.monotonic() - flushed_at < self._every_s:
                        if len(rows) != backed_up:
                            self._back_up(rows)
                            backed_up = len(rows)
                        continue
                self._flush()
                flushed_at, backed_up = time.monotonic(), 0
            except Exception as error:
                self._problem = error
                return

    def _flush(self) -> None:
        with contextlib.ExitStack() as stored:
            with self._lock:
                rows = list(self._rows)
                if not rows:
                    return
                stored.enter_context(self._journal.storing())
            # Rows are removed after they are written. An interruption in between only stores them twice, which the cache allows.
            self._cache.add(rows, self._run_id)
        with self._lock:
            del self._rows[: len(rows)]
            self._held = {row["request_id"]: row for row in self._rows}
