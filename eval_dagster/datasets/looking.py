"""A reader for somebody who only looks: it records nothing, and asks no other machine unless it may."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eval_dagster.datasets.hub import current_commit
from eval_dagster.datasets.reader import DatasetReader, TaskClass
from eval_dagster.errors import FarError
from eval_dagster.records import Row
from eval_dagster.tasks.adapter_task import AdapterTask
from eval_dagster.tasks.base import BaseTask


class _Refused(BaseException):
    """Something asked for another machine. It is no `Exception`, since libraries catch these and try again for a minute."""


@contextmanager
def without_network() -> Iterator[None]:
    """Raise `FarError` where code within the block, in any thread of this process, opens a connection or looks up an address."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise _Refused

    originals = {(owner, name): getattr(owner, name) for owner, name in ((socket.socket, "connect"), (socket, "getaddrinfo"))}
    try:
        for owner, name in originals:
            setattr(owner, name, refuse)
        yield
    except _Refused:
        raise FarError("files have to be fetched, or another machine asked first") from None
    finally:
        for (owner, name), original in originals.items():
            setattr(owner, name, original)


class LookingReader(DatasetReader):
    """Reads as `DatasetReader` does, and records no commit.

    Unless it `fetches`, its methods raise `FarError` if the dataset is not on this machine.
    """

    def __init__(self, mirror: Path | None, folder: Path | None, *, fetches: bool) -> None:
        """The places are the same as of `DatasetReader`."""
        super().__init__(mirror, folder)
        self._fetches = fetches

    @classmethod
    def of(cls, reader: DatasetReader, *, fetches: bool) -> "LookingReader":
        """A reader of the same places."""
        return cls(reader._mirror, reader._folder, fetches=fetches)

    def stamp(self, task: TaskClass, subjects: Sequence[Any], *, fewshot: bool = False) -> list[Any]:
        """Return a value that changes whenever the rows could have changed."""
        with self._guard(task):
            return super().stamp(task, subjects, fewshot=fewshot)

    def read(self, task: BaseTask[Any], subject: Any, *, fewshot: bool = False, limit: int | None = None) -> dict[str, list[Row]]:
        """Return the rows of one subject by split."""
        with self._guard(type(task)):
            if not self._fetches and isinstance(task, AdapterTask) and not any(task.BENCHMARK.splits(subject, fewshot=fewshot)):
                raise FarError("")  # its package brings them, and may fetch them
            return super().read(task, subject, fewshot=fewshot, limit=limit)

    def check(self, task: TaskClass, subjects: Sequence[Any], *, fewshot: bool = False) -> None:
        """Check whether the dataset exists, without reading a row."""
        with self._guard(task):
            super().check(task, subjects, fewshot=fewshot)

    @contextmanager
    def _guard(self, task: TaskClass) -> Iterator[None]:
        if self._fetches:
            yield
            return
        try:
            with without_network():
                yield
        except FarError as error:
            raise FarError(f"the rows of {task.NAME} have to be fetched first") from error

    def _locked_commit(self, path: str) -> str:
        return self._lock.get(path) or current_commit(path)
