"""A dataset on the Hugging Face Hub, at one commit."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from eval_dagster.errors import DataError, DatasetNotFoundError
from eval_dagster.records import DatasetSource, Row
from eval_dagster.tasks.base import subject_name

TIMEOUT_S = 5
"""Longest wait of the check for the Hub, in seconds."""
_REMEDY = "set datasets.mirror in evals.yaml or EVAL_DAGSTER_DATASETS to a folder that holds it, or run once with a network"


@dataclass(frozen=True)
class HubRepo:
    """A dataset repository; never one that has to run code of its own."""

    path: str
    """`organisation/name`."""
    revision: str
    """The full commit hash."""
    subject_count: int
    """Number of the task's subjects. For a single subject, the dataset may have any one config."""

    def check(self, subjects: Sequence[Any], splits: Sequence[str]) -> None:  # noqa: ARG002 - splits show while they are read
        """Check within seconds. Raises `DatasetNotFoundError` if a subject is not in the cache and the commit is not found on the Hub."""
        if not all(self._prepared(subject_name(subject)) for subject in subjects):
            _commit_of(self.path, self.revision)

    def read(self, subject: Any, splits: Sequence[str]) -> dict[str, list[Row]]:
        """Download (once) and read the rows of one subject.

        Raises:
            DatasetNotFoundError: The dataset lacks the config or a split, or what was found is another commit.
            DataError: The download or its preparation failed.
        """
        builder = self._prepared_builder(subject, splits)
        return {split: list(builder.as_dataset(split=split)) for split in splits}

    def rows(self, subject: Any, split: str) -> Iterator[Row]:
        """Download (once) and read the rows of a split one after the other. Raises as `read` does."""
        yield from self._prepared_builder(subject, [split]).as_dataset(split=split)

    def _prepared_builder(self, subject: Any, splits: Sequence[str]) -> Any:
        try:
            builder = self._builder(subject_name(subject))
            builder.download_and_prepare()
        except DatasetNotFoundError:
            raise
        except Exception as error:
            raise DataError(f"dataset {self._name()} cannot be read: {type(error).__name__}: {error}") from error
        known = list(builder.info.splits)
        for split in splits:
            if split not in known:
                raise DatasetNotFoundError(f"dataset {self._name()} lacks the split {split!r}; it has: {', '.join(known)}")
        return builder

    def stamp(self, subjects: Sequence[Any], splits: Sequence[str]) -> list[Any]:
        """Return path, commit, configs and splits: a commit never changes."""
        return [self.path, self.revision, [subject_name(subject) for subject in subjects], list(splits)]

    def source(self) -> DatasetSource:
        """Return id and commit."""
        return DatasetSource(path=self.path, revision=self.revision)

    def size(self, subject: Any, splits: Sequence[str]) -> int | None:
        """Return the bytes of the files of some splits, as the Hub lists them; None if they are prepared, or not listed."""
        from huggingface_hub import HfApi  # as in `_commit_of`

        config = subject_name(subject)
        if self._prepared(config):
            return None
        listed = HfApi().dataset_info(self.path, revision=self.revision, files_metadata=True, timeout=TIMEOUT_S).siblings or []
        sizes = {file.rfilename: file.size for file in listed}
        files = self._builder(config).config.data_files or {}
        names = [str(file).partition(f"@{self.revision}/")[2] for split in splits for file in files.get(split, ())]
        found = [sizes.get(name) for name in names]
        known = [size for size in found if size is not None]
        return sum(known) if found and len(known) == len(found) else None

    def save(self, subject: Any, split: str, folder: Path) -> None:
        """Download a split (once) and write it into a folder as one Parquet file.

        Raises:
            DatasetNotFoundError: The dataset lacks the config or the split.
            DataError: The download or its preparation failed.
        """
        builder = self._prepared_builder(subject, [split])
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{split}-00000-of-00001.parquet"
        unfinished = file.with_name(f".{file.name}.tmp")
        try:
            builder.as_dataset(split=split).to_parquet(unfinished)
            unfinished.replace(file)
        finally:
            unfinished.unlink(missing_ok=True)

    def _builder(self, config: str) -> Any:
        # Imported lazily: slow, and only needed for datasets of the Hub.
        import datasets
        from datasets.packaged_modules.cache.cache import Cache

        if prepared := self._prepared(config):
            # Without a network, a request to the Hub would take a minute of retries.
            return Cache(
                repo_id=self.path,
                dataset_name=prepared.parents[2].name.partition("___")[2],
                config_name=prepared.parents[1].name,
                version=prepared.parent.name,
                hash=self.revision,
            )
        try:
            builder = datasets.load_dataset_builder(self.path, config, revision=self.revision)
        except ValueError as error:  # it has no such config
            builder = datasets.load_dataset_builder(self.path, revision=self.revision) if self.subject_count == 1 else None
            if builder is None or len(builder.builder_configs) > 1:
                raise DatasetNotFoundError(f"dataset {self._name()}: {error}. SUBJECTS names the configs of a dataset") from error
        # Without a network, `datasets` takes the newest commit in its cache, and not the requested one.
        if builder.hash != self.revision:
            raise DatasetNotFoundError(f"dataset {self._name()} was asked for, and the cache gave commit {builder.hash}; {_REMEDY}")
        return builder

    def _prepared(self, config: str) -> Path | None:
        import datasets

        # <organisation>___<name>/<config>/<version>/<commit>. The name is rewritten, so only the commit identifies it.
        folder = Path(datasets.config.HF_DATASETS_CACHE)
        configs = [config, "default"] if self.subject_count == 1 else [config]
        found = (folder.glob(f"{self.path.partition('/')[0]}___*/{name}/*/{self.revision}") for name in configs)
        return next(chain.from_iterable(found), None)

    def _name(self) -> str:
        return _named(self.path, self.revision)


def current_commit(path: str) -> str:
    """The newest commit of a dataset on the Hub. Raises `DatasetNotFoundError` if there is none, or the Hub is out of reach."""
    return _commit_of(path, None)


def _commit_of(path: str, revision: str | None) -> str:
    from huggingface_hub import HfApi, constants  # slow, and few commands ask the Hub
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    if constants.is_offline_mode():
        raise DatasetNotFoundError(f"dataset {_named(path, revision)} is not in the cache, and HF_HUB_OFFLINE forbids the Hub; {_REMEDY}")
    try:
        return str(HfApi().dataset_info(path, revision=revision, timeout=TIMEOUT_S).sha)
    except RevisionNotFoundError as error:
        raise DatasetNotFoundError(f"dataset {path} has no commit {revision}; set DATASET_REVISION to one it has") from error
    except RepositoryNotFoundError as error:
        raise DatasetNotFoundError(
            f"there is no dataset {path} on the Hub, or it is gated and needs a login (`hf auth login`); {_REMEDY}"
        ) from error
    except Exception as error:  # the HTTP library below changes between versions of huggingface_hub, and its errors with it
        problem = f"the Hub is out of reach ({type(error).__name__}: {error})"
        raise DatasetNotFoundError(f"dataset {_named(path, revision)} is not in the cache, and {problem}; {_REMEDY}") from error


def _named(path: str, revision: str | None) -> str:
    return f"{path} at commit {revision}" if revision else path
