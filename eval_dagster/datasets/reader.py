"""Reads a task's rows from the task itself, a folder, a mirror of the Hub, or the Hub.

`LookingReader` is for somebody who only looks: it records nothing, and asks no other machine unless it may.
"""

import socket
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from eval_dagster.datasets.assets import AssetRows, AssetStore, keys_in
from eval_dagster.datasets.dataset_lock import FILE_NAME, DatasetLock
from eval_dagster.datasets.hub import HubRepo, current_commit
from eval_dagster.datasets.origin import BenchmarkOrigin, OrderedRows, Origin, Stored
from eval_dagster.datasets.row_files import MirrorPart, SplitFolder
from eval_dagster.errors import (
    DataError,
    DatasetNotFoundError,
    FarError,
    TaskDefinitionError,
    UnreadAssetError,
    described,
)
from eval_dagster.records import DatasetSource, Row
from eval_dagster.tasks.base import BaseTask, subject_name
from eval_dagster.tasks.benchmark import AdapterTask, DatasetSplit, OrderedTask
from eval_dagster.tasks.samples import unreadable_reason
from eval_dagster.users_code import calling, raised_at
from eval_dagster.versions.hashes import definition_version, file_stamp
from eval_dagster.versions.source_files import is_user_module, shown_name

_BUILDERS = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet", ".txt": "text"}
_COMPRESSED = {".gz", ".zst", ".bz2", ".xz"}
TaskClass = type[BaseTask[Any]]
_ONE_CONFIG = "default"
"""The Hub's name of the configuration of a dataset with a single one."""
_FOLDER_REMEDY = "correct DATASET_PATH, which is relative to the folder of evals.yaml, or else to that of the task's file"
_NO_MIRROR = "unset datasets.mirror in evals.yaml (and EVAL_DAGSTER_DATASETS) to read from the Hugging Face Hub"


@dataclass(frozen=True)
class ListedFiles:
    """The files of a split, in a folder or in a repository of the Hub."""

    split: DatasetSplit
    folder: Path | None
    """None: they are on the Hub."""
    revision: str | None = None
    """The commit on the Hub."""

    def check(self, subjects: Sequence[Any], splits: Sequence[str]) -> None:  # noqa: ARG002 - the files are those of the split
        """Raise `DatasetNotFoundError` if a file is missing in the folder, or `DataError` if its kind is not known."""
        self._builder()
        for file in self._local():
            if not file.is_file():
                raise DatasetNotFoundError(f"dataset {self.split.path} lacks the file {file}, which the split {self.split.split!r} names")

    def read(self, subject: Any, splits: Sequence[str]) -> dict[str, list[Row]]:
        """Return the rows of all files.

        Raises:
            DatasetNotFoundError: A file is missing.
            DataError: A file cannot be read.
        """
        import datasets

        self.check([subject], splits)
        files = [str(file) for file in self._local()] or [
            f"hf://datasets/{self.split.path}@{self.revision}/{file}" for file in self.split.files
        ]
        try:
            with tempfile.TemporaryDirectory() as cache:
                rows = datasets.load_dataset(self._builder(), data_files=files, split="train", cache_dir=cache, **self.split.options)
                return {self.split.split: list(rows)}
        except Exception as error:
            raise DataError(f"the files {', '.join(files)} cannot be read: {type(error).__name__}: {error}") from error

    def stamp(self, subjects: Sequence[Any], splits: Sequence[str]) -> list[Any]:  # noqa: ARG002 - as above
        """Return the files with name, size and time of change, or with the commit."""
        split = self.split
        files: list[Any] = [file_stamp(file) for file in self._local()] or [self.revision, *split.files]
        return [split.path, split.split, files, {name: str(value) for name, value in split.options.items()}]

    def source(self) -> DatasetSource:
        """Return the dataset and its commit."""
        return DatasetSource(path=self.split.path, revision=self.revision)

    def _local(self) -> list[Path]:
        return [] if self.folder is None else [self.folder / file for file in self.split.files]

    def _builder(self) -> str:
        endings = [each for each in Path(self.split.files[0]).suffixes if each not in _COMPRESSED]
        builder = _BUILDERS.get(endings[-1] if endings else "")
        if builder is None:
            raise DataError(f"the kind of the file {self.split.files[0]} of {self.split.path} is unknown; expected {', '.join(_BUILDERS)}")
        return builder


class DatasetReader:
    """Reads the splits that a task evaluates and draws examples from.

    A task that overrides `_load_dataset` has its own rows. A `DATASET_PATH` that is absolute or begins with `./` or `../` is a folder.
    Other datasets come from the mirror if there is one, otherwise from the Hub: at the task's commit, or at the commit of the first
    download, which datasets.lock.json beside evals.yaml records. The rows of an asset (`assets.asset_path`) are where its newest
    materialization says, or in the home. The argument `fewshot` of all methods includes the few-shot split.
    """

    def __init__(
        self, mirror: Path | None, folder: Path | None = None, *, beside_tasks: bool = False, assets: AssetStore | None = None
    ) -> None:
        """Set the places of datasets.

        Args:
            mirror: A folder `<org>/<name>/<config>/<split>-*.parquet` that is read instead of the Hub.
            folder: The folder of evals.yaml, which paths are relative to; the current one if not given.
            beside_tasks: Whether paths are first relative to the file of the task, since evals.yaml is missing.
            assets: What is known of assets with rows; nothing if not given.
        """
        self.assets = assets or AssetStore(None)
        self._mirror = mirror
        self._folder = folder or Path()
        self._beside_tasks = beside_tasks
        self._lock = DatasetLock(self._folder / FILE_NAME)

    def check(self, task: TaskClass, subjects: Sequence[Any], *, fewshot: bool = False) -> None:
        """Check whether the dataset exists, without reading a row.

        Raises:
            DatasetNotFoundError: It does not exist. The message names the searched places and what they contain.
            TaskDefinitionError: Few-shot examples are wanted, but the task names no split for them.
        """
        with self._folders_named(task):
            self._origin(task).check(subjects, _parts(_splits(task, fewshot)))

    def read(self, task: BaseTask[Any], subject: Any, *, fewshot: bool = False, limit: int | None = None) -> dict[str, list[Row]]:
        """Return the rows of one subject by split, the evaluated split first. Arguments and errors are as in `rows`."""
        found: dict[str, list[Row]] = {split: [] for split in _splits(type(task), fewshot)}
        for split, row in self.rows(task, subject, fewshot=fewshot, limit=limit):
            found[split].append(row)
        return found

    def rows(self, task: BaseTask[Any], subject: Any, *, fewshot: bool = False, limit: int | None = None) -> Iterator[tuple[str, Row]]:
        """Read the rows of one subject one after the other, each with its split. The evaluated split comes first.

        All rows are held at once where code of a task or of another package brings them.

        Args:
            task: The task.
            subject: One of its subjects.
            fewshot: Whether examples are drawn.
            limit: Most rows of the evaluated split. What is beyond is not read where `reads_in_part`.

        Raises:
            DatasetNotFoundError: The dataset lacks the subject's config or a split.
            DataError: The rows cannot be read.
        """
        splits = _splits(type(task), fewshot)
        most = {task.SAMPLE_SPLIT: limit} if reads_in_part(type(task), fewshot=fewshot) else {}
        with self._folders_named(type(task)):
            origin = self._origin(type(task), task)
            if isinstance(origin, _RowsByField | SplitFolder | HubRepo | AssetRows):
                of_part: Callable[[str], Iterable[Row]] = partial(origin.rows, subject)
            else:
                of_part = origin.read(subject, _parts(splits)).__getitem__
            for split in splits:
                rows = chain.from_iterable(map(of_part, split.split("+")))
                yield from ((split, row) for row in islice(rows, most.get(split)))

    def stamp(self, task: TaskClass, subjects: Sequence[Any], *, fewshot: bool = False) -> list[Any]:
        """Return a JSON-like value that changes whenever the rows could have changed, without reading them."""
        with self._folders_named(task):
            return self._origin(task).stamp(subjects, _parts(_splits(task, fewshot)))

    def source(self, task: TaskClass) -> DatasetSource:
        """Return the origin of the rows. Rows of a mirror have no commit, since it is unknown."""
        with self._folders_named(task):
            return self._origin(task).source()

    def read_from(self, task: TaskClass, subjects: Sequence[Any], *, fewshot: bool = False) -> Iterator[MirrorPart]:
        """The splits that a task reads and a mirror can hold: none if the rows are in a folder, or an asset or the task brings them.

        Raises:
            DatasetNotFoundError: The commit of a dataset is not known, and the Hub is out of reach.
            TaskDefinitionError: Few-shot examples are wanted, but the task names no split for them.
        """
        if keys_in(task.DATASET_PATH):
            return
        if issubclass(task, AdapterTask):
            named = [split for subject in subjects for split in task.BENCHMARK.splits(subject, fewshot=fewshot)]
            for split in named:
                if not _is_folder(split.path) and not split.files:  # named files have no place in a mirror of splits
                    place = self._files(split.path, task.DATASET_REVISION or split.revision, 1)
                    yield MirrorPart(path=split.path, config=split.config or _ONE_CONFIG, splits=(split.split,), origin=place)
        elif not _brings_rows(task) and not _is_folder(task.DATASET_PATH):
            configs = [_ONE_CONFIG] if task.SUBJECT_FIELD else [subject_name(subject) for subject in subjects]
            place = self._files(task.DATASET_PATH, task.DATASET_REVISION, 1 if task.SUBJECT_FIELD else len(task.SUBJECTS))
            splits = tuple(_parts(_splits(task, fewshot)))
            for config in configs:
                yield MirrorPart(path=task.DATASET_PATH, config=config, splits=splits, origin=place)

    def _origin(self, task: TaskClass, instance: BaseTask[Any] | None = None) -> Origin:
        if keys_in(task.DATASET_PATH) and (issubclass(task, AdapterTask | OrderedTask) or _brings_rows(task)):
            raise TaskDefinitionError(
                f"the task {task.NAME} loads its rows by its own code, which an asset ({task.DATASET_PATH}) cannot stand for; expected a "
                "task whose rows are those of its DATASET_PATH; remove `dataset` from the eval, or `_load_dataset` from the task"
            )
        if issubclass(task, AdapterTask):
            return BenchmarkOrigin(task, self._of_split)
        if issubclass(task, OrderedTask) and task.reads_dataset():
            return OrderedRows(task, instance, lambda path, revision, configs: self._files(path, revision, configs, task))
        if _brings_rows(task):
            return _OwnRows(task, instance)
        files = self._files(task.DATASET_PATH, task.DATASET_REVISION, 1 if task.SUBJECT_FIELD else len(task.SUBJECTS), task)
        return _RowsByField(task, task.SUBJECT_FIELD, files) if task.SUBJECT_FIELD else files

    def _files(self, path: str, revision: str | None, configs: int, task: TaskClass | None = None) -> Stored:
        types = {} if task is None else task.COLUMN_TYPES
        if task is not None and keys_in(path):
            return AssetRows(self.assets, path, task.SAMPLE_SPLIT, configs, types)
        if _is_folder(path):
            return SplitFolder(path, self._place(path, task), configs, _FOLDER_REMEDY, types)
        if self._mirror is not None:
            remedy = f"add it to the mirror, or {_NO_MIRROR}"
            if not self._mirror.is_dir():
                remedy = f"the mirror {self._mirror} itself is not there; bring it back, or {_NO_MIRROR}"
            return SplitFolder(path, self._mirror / path, configs, remedy, types)
        return HubRepo(path, revision or self._locked_commit(path), configs)

    @contextmanager
    def _folders_named(self, task: TaskClass) -> Iterator[None]:
        """Name the folder that is there under the name of a missing dataset of the Hub."""
        try:
            yield
        except DatasetNotFoundError as error:
            place = self._place(task.DATASET_PATH, task)
            if issubclass(task, AdapterTask) or _brings_rows(task) or _is_folder(task.DATASET_PATH) or not place.exists():
                raise
            kind, meant = ("folder", task.DATASET_PATH) if place.is_dir() else ("file", str(Path(task.DATASET_PATH).parent))
            raise DatasetNotFoundError(
                f"there is no dataset {task.DATASET_PATH!r} of the Hub or the mirror here, and there is the {kind} {place}; did you mean "
                f"DATASET_PATH = './{meant}'? A folder begins with './'. (As a dataset of the Hub or the mirror: {error})"
            ) from error

    def _place(self, path: str, task: TaskClass | None) -> Path:
        """The folder of a path: relative to evals.yaml, or to the file of the class that sets `DATASET_PATH`; the first that exists."""
        owner = next((each for each in task.__mro__ if "DATASET_PATH" in vars(each)), None) if task is not None else None
        places = [self._folder / path]
        if owner is not None and is_user_module(owner.__module__):
            places.insert(0 if self._beside_tasks else 1, Path(shown_name(owner.__module__)).parent / path)
        return next((place for place in places if place.exists()), places[0])

    def _of_split(self, split: DatasetSplit) -> Origin:
        if not split.files:
            return self._files(split.path, split.revision, 1)
        if _is_folder(split.path):
            return ListedFiles(split, self._folder / split.path)
        if self._mirror is not None:
            return ListedFiles(split, self._mirror / split.path)
        return ListedFiles(split, None, split.revision or self._locked_commit(split.path))

    def _locked_commit(self, path: str) -> str:
        return self._lock.get(path) or self._lock.add(path, current_commit(path))


@dataclass(frozen=True)
class _RowsByField:
    """The rows of a dataset with a single configuration. A field of each row names its subject."""

    task: TaskClass
    field: str
    files: Stored

    def check(self, subjects: Sequence[Any], splits: Sequence[str]) -> None:  # noqa: ARG002 - the files are those of all
        self.files.check([_ONE_CONFIG], splits)

    def read(self, subject: Any, splits: Sequence[str]) -> dict[str, list[Row]]:
        return {split: list(self.rows(subject, split)) for split in splits}

    def rows(self, subject: Any, split: str) -> Iterator[Row]:
        name, known = subject_name(subject), {subject_name(each) for each in self.task.SUBJECTS}
        for row in self.files.rows(_ONE_CONFIG, split):
            if reason := unreadable_reason(row):
                raise DataError(f"{reason}; the subject of such a row is not known (SUBJECT_FIELD of task {self.task.NAME})")
            value = row.get(self.field)
            value = str(value) if isinstance(value, int | float) else value
            if value not in known:
                raise DataError(
                    f"the field {self.field!r} of {self.task.DATASET_PATH} (SUBJECT_FIELD of task {self.task.NAME}) names "
                    f"{value}, which SUBJECTS lacks; add what is missing, or correct the field"
                )
            if value == name:
                yield row

    def stamp(self, subjects: Sequence[Any], splits: Sequence[str]) -> list[Any]:
        return [self.field, *map(subject_name, subjects), self.files.stamp([_ONE_CONFIG], splits)]

    def source(self) -> DatasetSource:
        return self.files.source()


@dataclass(frozen=True)
class _OwnRows:
    """The rows that a task's `_load_dataset` brings."""

    task: TaskClass
    instance: BaseTask[Any] | None

    def check(self, subjects: Sequence[Any], splits: Sequence[str]) -> None:  # noqa: ARG002 - the files are those of all
        """Check that every data file is there; of the rows only loading would tell."""
        self._data_files()

    def read(self, subject: Any, splits: Sequence[str]) -> dict[str, list[Row]]:
        where = f"{self.source().path}, subject {subject_name(subject)!r}"
        task = self.instance or self.task()
        try:
            with calling(f"the loader of {where}"):
                returned = task.load_rows(subject) if isinstance(task, OrderedTask) else task._load_dataset(subject)
                rows: Mapping[str, Sequence[Row]] = task.dataset if returned is None else returned
                found = {split: [dict(row) for row in rows[split]] for split in splits if split in rows}
        except Exception as error:
            raise DataError(f"_load_dataset of {where} raised {described(error)}{raised_at(error)}") from error
        for split in splits:
            if split not in found:
                raise DataError(f"_load_dataset of {where} brings no split {split!r}; it brings: {', '.join(rows) or 'none'}")
        return found

    def stamp(self, subjects: Sequence[Any], splits: Sequence[str]) -> list[Any]:
        """Return code, data files, subjects and splits: rows change with the code that makes them and the files that it reads."""
        files = [[name, file_stamp(file)] for name, file in self._data_files()]
        return [definition_version(self.task), files, [subject_name(subject) for subject in subjects], list(splits)]

    def source(self) -> DatasetSource:
        module = self.task.__module__.removeprefix("eval_dagster.")
        if is_user_module(module):
            module = Path(shown_name(module)).name
        return DatasetSource(path=f"{module}:{self.task.__qualname__}", revision=None)

    def _data_files(self) -> list[tuple[str, Path]]:
        """Every file that `DATA_FILES` names, itself or by its folder, with its path as the task would write it."""
        owner = next(each for each in self.task.__mro__ if "DATA_FILES" in vars(each))
        base = Path(str(sys.modules[owner.__module__].__file__)).parent
        found: list[tuple[str, Path]] = []
        for name in self.task.DATA_FILES:
            path = base / name
            if not path.exists():
                raise DatasetNotFoundError(
                    f"task {self.task.NAME} reads {name!r} (DATA_FILES), which is not there: looked for {path}; "
                    f"put it there, or correct DATA_FILES of {owner.__name__}"
                )
            files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
            found += [((Path(name) / file.relative_to(path)).as_posix(), file) for file in files]
        return found


def reads_in_part(task: TaskClass, *, fewshot: bool) -> bool:
    """Whether the first rows of the evaluated split can be read without the others: no code of a task or of another package orders the
    rows, and no examples are drawn from them."""
    if issubclass(task, AdapterTask | OrderedTask) or _brings_rows(task):
        return False
    drawn_from = _parts([task.FEWSHOT_SPLIT]) if fewshot and task.FEWSHOT_SPLIT else []
    return not set(drawn_from) & set(_parts([task.SAMPLE_SPLIT]))


def _brings_rows(task: TaskClass) -> bool:
    return task._load_dataset is not BaseTask._load_dataset


def _is_folder(path: str) -> bool:
    """Whether a `DATASET_PATH` means a folder: as it is written, so that no folder that happens to be there stands in for the Hub."""
    return Path(path).is_absolute() or path.partition("/")[0] in (".", "..")


def _splits(task: TaskClass, fewshot: bool) -> list[str]:
    if fewshot and task.FEWSHOT_SPLIT is None:
        raise TaskDefinitionError(
            f"task {task.NAME} names no split to draw few-shot examples from; set its FEWSHOT_SPLIT, or num_fewshot to 0 in the eval"
        )
    wanted = [task.SAMPLE_SPLIT, *([task.FEWSHOT_SPLIT, getattr(task, "STATE_SPLIT", None)] if fewshot else [])]
    return list(dict.fromkeys(split for split in wanted if split))


def _parts(splits: Sequence[str]) -> list[str]:
    """The splits of the dataset: `validation+test` is one after the other."""
    return list(dict.fromkeys(part for split in splits for part in split.split("+")))


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

    def __init__(self, mirror: Path | None, folder: Path | None, *, fetches: bool, assets: AssetStore | None = None) -> None:
        """The places are the same as of `DatasetReader`."""
        super().__init__(mirror, folder, assets=assets)
        self._fetches = fetches

    @classmethod
    def of(cls, reader: DatasetReader, *, fetches: bool) -> "LookingReader":
        """A reader of the same places."""
        return cls(reader._mirror, reader._folder, fetches=fetches, assets=reader.assets)

    def stamp(self, task: TaskClass, subjects: Sequence[Any], *, fewshot: bool = False) -> list[Any]:
        """Return a value that changes whenever the rows could have changed."""
        with self._guard(task):
            return super().stamp(task, subjects, fewshot=fewshot)

    def rows(self, task: BaseTask[Any], subject: Any, *, fewshot: bool = False, limit: int | None = None) -> Iterator[tuple[str, Row]]:
        """Read the rows of one subject, each with its split. All are held at once, since the network is shut while they are read."""
        with self._guard(type(task)):
            if not self._fetches and isinstance(task, AdapterTask) and not any(task.BENCHMARK.splits(subject, fewshot=fewshot)):
                raise FarError("")  # its package brings them, and may fetch them
            try:
                found = list(super().rows(task, subject, fewshot=fewshot, limit=limit))
            except UnreadAssetError as error:
                raise FarError(str(error)) from error
        yield from found

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
            if isinstance(error.__cause__, UnreadAssetError):
                raise
            raise FarError(f"the rows of {task.NAME} have to be fetched first") from error

    def _locked_commit(self, path: str) -> str:
        return self._lock.get(path) or current_commit(path)
