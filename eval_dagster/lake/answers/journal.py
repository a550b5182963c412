"""Answers that are not in a file of the response cache yet, one line of JSON each.

A line is written as soon as its answer arrives, so a killed process loses no answer. The lock of a journal ends with its process. A journal
without a lock tells other processes to store its answers.
"""

import contextlib
import fcntl
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from eval_dagster.lake.tables.columns import Answer

SUFFIX = ".journal"
_UNNAMED = ".tmp"


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

    def add(self, row: Answer) -> None:
        """Write an answer."""
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
        line = lines_of_rows([row])
        if self._file.write(line) != len(line):
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


def lines_of_rows(rows: Iterable[Answer]) -> bytes:
    """Answers as the lines of a journal."""
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def rows_of_lines(content: bytes) -> Iterator[Answer]:
    """The answers in a journal's lines. Skips a line that was cut."""
    for line in content.split(b"\n"):
        with contextlib.suppress(ValueError):
            yield json.loads(line)


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
