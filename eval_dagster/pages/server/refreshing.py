"""Fetches what other machines add to a shared lake, while the pages are open."""

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

from eval_dagster.errors import EvalDagsterError
from eval_dagster.lake.catalog.catalog import refresh
from eval_dagster.lake.files import Lake

EVERY_S = 60.0
"""Seconds between two fetches, at least. There is none while no page is opened."""
_LOG = logging.getLogger(__name__)
_STOP_S = 2.0


class Refresher:
    """Brings the catalog of a shared lake up to date in a thread. A page never waits for it, and never fails by it."""

    def __init__(self, lake: Lake, *, fetch: Callable[[Lake], bool] = refresh, every_s: float = EVERY_S) -> None:
        """The results have just been fetched. Of a lake without an object store nothing is fetched: runs publish to its catalog."""
        self._lake = lake
        self._fetch = fetch
        self._every_s = every_s
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._tried_at = time.monotonic()
        self._fetched_at = datetime.now(UTC)
        self._failure: str | None = None

    def wake(self) -> None:
        """Begin to fetch, unless the last fetch is recent or still going on."""
        if self._lake.mirror is None:
            return
        with self._lock:
            is_busy = self._thread is not None and self._thread.is_alive()
            if is_busy or time.monotonic() - self._tried_at < self._every_s:
                return
            self._tried_at = time.monotonic()
            self._thread = threading.Thread(target=self._run, name="refresh of the shared lake", daemon=True)
            self._thread.start()

    def footer(self) -> str | None:
        """When the results were fetched, and why not later; null if nothing is fetched."""
        if self._lake.mirror is None:
            return None
        with self._lock:
            fetched = f"Results of the shared lake, fetched at {self._fetched_at:%Y-%m-%d %H:%M:%S} UTC."
            return fetched if self._failure is None else f"{fetched} Newer ones could not be fetched: {self._failure}"

    def close(self) -> None:
        """Wait a little for a fetch that is going on."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(_STOP_S)

    def _run(self) -> None:
        began, failure = datetime.now(UTC), None
        try:
            if not self._fetch(self._lake):
                failure = f"{self._lake.home} cannot be written"
        except EvalDagsterError as error:
            failure = str(error)
        except Exception as error:  # the boundary between the pages and a fetch
            _LOG.exception("the results of the shared lake could not be fetched")
            failure = f"{type(error).__name__}: {error}"
        with self._lock:
            self._failure = failure
            if failure is None:
                self._fetched_at = began
