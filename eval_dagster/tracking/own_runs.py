"""Runs in the home's own database, read without MLflow, whose import takes a third of the time of a run without new results."""

import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_REST = 20.0
"""After all runs are read, so many times the time that it took passes before they are read again."""


@dataclass(frozen=True, kw_only=True)
class _KnownRuns:
    """The runs of a store at a moment."""

    stamp: Sequence[object]
    """The state of the store's files."""
    facts: Mapping[str, tuple[str, str]]
    """By run, its experiment, and `active` or `deleted`."""
    rest_until: float
    """When they may be read again, by `time.monotonic`."""


class OwnRuns:
    """The runs of a home's `mlflow.db`.

    Each method raises `FileNotFoundError` if runs are elsewhere or the file does not exist, and `sqlite3.Error` if it is another file.
    """

    def __init__(self, file: Path | None) -> None:
        """Set the file; None if runs are elsewhere."""
        self._file = file
        self._runs: _KnownRuns | None = None

    def facts(self, run_id: str) -> tuple[str, str] | None:
        """The experiment of a run, and `active` or `deleted`; None if the run is unknown."""
        known = self._known()
        if known is not None:
            return known.get(run_id)
        with self.database() as database:
            row = database.execute("select experiment_id, lifecycle_stage from runs where run_uuid = ?", [run_id]).fetchone()
        return None if row is None else (str(row[0]), str(row[1]))

    @contextmanager
    def database(self) -> Iterator[sqlite3.Connection]:
        """Open the database for reading."""
        if self._file is None or not self._file.is_file():
            raise FileNotFoundError(self._file)
        with closing(sqlite3.connect(f"{self._file.as_uri()}?mode=ro", uri=True)) as database:
            yield database

    def _known(self) -> Mapping[str, tuple[str, str]] | None:
        """The facts of all runs in the home's own database. None if it was written to since they were read: one run is asked for alone.

        A run asks for each of its results, and each opening of the database takes longer than the question. All are read again if that
        takes a twentieth of the time since the last reading, or less.
        """
        if self._file is None:
            raise FileNotFoundError(self._file)
        stamp: list[object] = []
        for each in (self._file, self._file.with_name(f"{self._file.name}-wal")):
            with suppress(FileNotFoundError):
                state = each.stat()
                stamp += [each.name, state.st_size, state.st_mtime_ns, state.st_ctime_ns]
        began = time.monotonic()
        if self._runs is None or (self._runs.stamp != stamp and began >= self._runs.rest_until):
            with self.database() as database:
                rows = database.execute("select run_uuid, experiment_id, lifecycle_stage from runs").fetchall()
            facts = {str(name): (str(experiment), str(stage)) for name, experiment, stage in rows}
            now = time.monotonic()
            self._runs = _KnownRuns(stamp=stamp, facts=facts, rest_until=now + _REST * (now - began))
        return self._runs.facts if self._runs.stamp == stamp else None
