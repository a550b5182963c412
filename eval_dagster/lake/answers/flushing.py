"""Flushes answers to the response cache every few seconds while a model works, and writes each to a journal at once."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from eval_dagster.lake.answers.journal import Journal
from eval_dagster.lake.answers.responses import ResponseCache
from eval_dagster.lake.format.file_names import new_name

FLUSH_S = 3.0
_BACK_UP_S = 0.2
_MOST_ROWS = 200
"""Above this number, rows are flushed to a file, because each backup writes all of them again."""


class ResponseFlusher:
    """Collects answers and flushes them every few seconds. The end of its `with` block flushes the rest, also after an error.

    It has its own thread, because the next answer of a large model can take minutes, and earlier answers must not wait for it.
    """

    def __init__(
        self,
        cache: ResponseCache,
        run_id: str,
        every_s: float = FLUSH_S,
        back_up: Callable[[Iterable[Mapping[str, Any]]], None] | None = None,
    ) -> None:
        """Set the destination and the interval. If journals are local to this machine, `back_up` saves the answers not yet flushed."""
        self._cache = cache
        self._run_id = run_id
        self._every_s = every_s
        self._rows: list[Mapping[str, Any]] = []
        self._journal = Journal(cache.folder, Path(new_name(run_id)).stem)
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

    def add(self, row: Mapping[str, Any]) -> None:
        """Add an answer. Raises the error of the last flush, such as a full disk, because later answers could not be stored either."""
        if self._problem is not None:
            raise self._problem
        with self._lock:
            self._journal.add(row)
            self._rows.append(row)

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
