"""The rows of assets of a user's Dagster project: what is known of their newest materializations, and where the rows are.

Dagster is asked elsewhere (`assets.asset_datasets`). The home keeps its last answer, and the rows that only an IO manager could read, so
that commands without that IO manager read the same rows.
"""

import json
import logging
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from eval_dagster.datasets.row_files import SplitFolder, Types, rows_of
from eval_dagster.errors import DataError, DatasetNotFoundError, UnreadAssetError
from eval_dagster.records import DatasetSource, Row
from eval_dagster.stores.whole_files import replaced
from eval_dagster.tasks.base import subject_name
from eval_dagster.versions.hashes import file_hash, file_stamp, stable_hash

log = logging.getLogger(__name__)
_SCHEME = "asset:"
SUFFIXES = (".parquet", ".jsonl", ".csv")
"""The kinds of files that are read as a table."""
_TABLE = "table"
_SPLITS = "splits"
_KEPT_S = 24 * 3600.0
"""Seconds for which rows stay that a newer materialization replaced: a run may be reading them."""


def asset_path(keys: Mapping[str, str]) -> str:
    """The text in place of `DATASET_PATH` if assets have the rows. `keys` has the key of each split, or one under an empty text for all."""
    return _SCHEME + ",".join(f"{split}={key}" if split else key for split, key in keys.items())


def keys_in(path: str) -> dict[str, str]:
    """The keys of assets by split, of what `asset_path` made; empty for any other path."""
    if not path.startswith(_SCHEME):
        return {}
    pairs = [part.rpartition("=") for part in path.removeprefix(_SCHEME).split(",")]
    return {split: key for split, _, key in pairs}


@dataclass(frozen=True, kw_only=True)
class Materialized:
    """The newest materialization of an asset in Dagster."""

    key: str
    """The key of the asset, with `/` between its parts."""
    version: str
    """Its data version."""
    value_id: str
    """Names its value: another value has another name. A value can have several names."""
    when: float
    """Seconds since 1970."""
    run_id: str
    place: str | None = None
    """The file or folder of the rows, if the materialization names one. Otherwise its IO manager reads them."""
    content: str | None = None
    """Hash of the rows that an IO manager read; null if it has not read them yet."""
    problem: str = ""
    """Why the rows cannot be read."""

    def __str__(self) -> str:
        """For messages."""
        of_run = f" of the run {self.run_id[:8]}" if self.run_id else ""
        return f"{datetime.fromtimestamp(self.when, UTC):%Y-%m-%d %H:%M:%S} UTC{of_run}"


class AssetStore:
    """The newest materializations of assets, and rows of theirs, in a home. Several processes may use it at once."""

    def __init__(self, folder: Path | None) -> None:
        """`folder` need not exist. Without one, nothing is kept."""
        self._folder = folder
        self._told: dict[str, Materialized] = {}

    def newest(self, key: str) -> Materialized | None:
        """The newest known materialization of an asset: from `tell`, or from the home. None if there is none."""
        told, kept = self._told.get(key), self._kept(key)
        if told is None or kept is None:
            return told or kept
        if told.value_id == kept.value_id:
            return replace(told, content=told.content or kept.content)
        return told if told.when >= kept.when else kept

    def tell(self, found: Materialized) -> None:
        """Note a materialization for this process."""
        self._told[found.key] = found

    def keep(self, key: str) -> None:
        """Keep in the home what is known of an asset now."""
        newest, kept = self.newest(key), self._kept(key)
        if newest is None or newest == kept or newest.problem or self._folder is None:
            return
        file = self._of(key) / "newest.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        with replaced(file) as temporary:
            temporary.write_text(json.dumps(asdict(newest), indent=2) + "\n", "utf-8")
        for old in self._of(key).iterdir():
            if old.is_dir() and old.name not in (newest.content, kept and kept.content) and time.time() - old.stat().st_mtime > _KEPT_S:
                shutil.rmtree(old, ignore_errors=True)

    def keep_rows(self, found: Materialized, tables: Mapping[str, pa.Table]) -> None:
        """Keep the rows of a materialization, and note it for this process.

        Args:
            found: The materialization.
            tables: The rows by split; by an empty text if they have none.

        Raises:
            DataError: Parquet cannot hold them.
        """
        folder = self._of(found.key)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".") as unfinished:
            made = Path(unfinished) / "made"
            hashes = {}
            for split, table in tables.items():
                file = made / (f"{_SPLITS}/{split}.parquet" if split else f"{_TABLE}.parquet")
                file.parent.mkdir(parents=True, exist_ok=True)
                try:
                    pa.parquet.write_table(table.replace_schema_metadata(None), file)
                except (pa.ArrowException, ValueError) as error:
                    raise DataError(f"the rows of the asset {found.key} cannot be kept as Parquet: {error}") from error
                hashes[split] = file_hash(file)
            content = stable_hash(hashes)
            if not (folder / content).exists():
                try:
                    made.rename(folder / content)
                except OSError:
                    if not (folder / content).exists():  # another process was first
                        raise
        (folder / content).touch()
        self.tell(replace(found, content=content))

    def place(self, key: str) -> Path:
        """The file or folder of the rows of an asset.

        Raises:
            DatasetNotFoundError: The asset was never materialized, or its rows are not where its materialization says.
            UnreadAssetError: Only its IO manager has the rows of its newest materialization.
            DataError: The rows cannot be read.
        """
        found = self.newest(key)
        if found is None:
            raise DatasetNotFoundError(
                f"nothing is known of a materialization of the asset {key}; materialize it in Dagster first (dg launch --assets {key}), "
                "and set DAGSTER_HOME to that of your project where this runs"
            )
        if found.problem:
            raise DataError(f"the rows of the asset {key}, materialized {found}, cannot be read: {found.problem}")
        if found.place is not None:
            if not Path(found.place).exists():
                raise DatasetNotFoundError(
                    f"the rows of the asset {key} are not there: its materialization of {found} names {found.place}; materialize it again"
                )
            return Path(found.place)
        if found.content is None or not (folder := self._of(key) / found.content).exists():
            raise UnreadAssetError(
                f"the rows of the asset {key}, materialized {found}, are read by its IO manager, which only a run in your Dagster project "
                "has: materialize dataset_snapshot there (or evaluate there), which keeps the rows in the home"
            )
        return folder / _SPLITS if (folder / _SPLITS).exists() else folder / f"{_TABLE}.parquet"

    def has_rows(self, key: str) -> bool:
        """Whether the home has the rows of the newest materialization, as an IO manager read them."""
        found = self.newest(key)
        return found is not None and found.content is not None and (self._of(key) / found.content).exists()

    def _of(self, key: str) -> Path:
        assert self._folder is not None
        return self._folder.joinpath(*key.split("/"), "@")  # a folder of its own, as a/b can be an asset beside a

    def _kept(self, key: str) -> Materialized | None:
        if self._folder is None:
            return None
        file = self._of(key) / "newest.json"
        try:
            return Materialized(**json.loads(file.read_text("utf-8")))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            log.warning(f"{file} is damaged ({error}), and counts as missing; a run in Dagster makes it again")
            return None


@dataclass(frozen=True)
class AssetRows:
    """The rows of assets, as splits of a dataset."""

    store: AssetStore
    path: str
    """The path that `asset_path` made."""
    sample_split: str
    """The split that the task evaluates, which an asset with a single table stands for."""
    subject_count: int
    """Number of the task's subjects; 1 if a field of the rows names them."""
    types: Types = field(default_factory=dict)
    """Declared types of columns of CSV files."""

    def check(self, subjects: Sequence[Any], splits: Sequence[str]) -> None:
        """Check whether the rows are there, without reading one. Raises as `AssetStore.place`, and if a split is missing."""
        for subject in subjects:
            for split in splits:
                self._files(subject, split)

    def read(self, subject: Any, splits: Sequence[str]) -> dict[str, list[Row]]:
        """Read the rows of one subject. Raises as `check`, and `DataError` if a file is damaged."""
        return {split: list(self.rows(subject, split)) for split in splits}

    def rows(self, subject: Any, split: str) -> Iterator[Row]:
        """Read the rows of a split one after the other. Raises as `read` does."""
        return rows_of(self._files(subject, split), self.types)

    def stamp(self, subjects: Sequence[Any], splits: Sequence[str]) -> list[Any]:
        """Return the assets with the content of their rows: its hash if an IO manager read them, and otherwise the stamps of the files.

        Rows that were not read yet count as others than all that were.
        """
        stamps: list[Any] = []
        for split in splits:
            key = self._key(split)
            found = self.store.newest(key)
            try:
                place = self.store.place(key)
                files = [[subject_name(each), [file_stamp(file) for file in self._files(each, split)]] for each in subjects]
            except UnreadAssetError:
                stamps.append([split, key, "unread", found and found.value_id])
                continue
            is_kept = found is not None and found.place is None
            stamps.append([split, key, found and found.content] if is_kept else [split, key, str(place), files])
        declared = [{name: kind.__name__ for name, kind in self.types.items()}] if self.types else []
        return [*declared, *map(subject_name, subjects), *stamps]

    def source(self) -> DatasetSource:
        """Return the assets, with their data versions as the commit."""
        keys = keys_in(self.path)
        versions = {split: found.version if (found := self.store.newest(key)) else None for split, key in keys.items()}
        revision = next(iter(versions.values())) if len(keys) == 1 else ",".join(f"{split}={each}" for split, each in versions.items())
        return DatasetSource(path=self.path, revision=revision)

    def size(self, subject: Any, splits: Sequence[str]) -> int:
        """Return the bytes of the files of some splits."""
        return sum(file.stat().st_size for split in splits for file in self._files(subject, split))

    def save(self, subject: Any, split: str, folder: Path) -> None:
        """Raise `NotImplementedError`: a mirror is of the Hub."""
        raise NotImplementedError

    def _key(self, split: str) -> str:
        keys = keys_in(self.path)
        if "" in keys:
            return keys[""]
        if split not in keys:
            raise DatasetNotFoundError(
                f"the eval reads the split {split!r}, and its `dataset` names an asset for {', '.join(keys)}; add it: "
                f"dataset: {{asset: {{{split}: KEY}}}}"
            )
        return keys[split]

    def _files(self, subject: Any, split: str) -> list[Path]:
        key, is_for_all = self._key(split), "" in keys_in(self.path)
        place = self.store.place(key)
        if place.is_file():
            if self.subject_count > 1:
                raise DatasetNotFoundError(
                    f"the asset {key} is one table, and the task has {self.subject_count} subjects; set its SUBJECT_FIELD to the column "
                    "that names the subject, or name one subject in SUBJECTS"
                )
            if is_for_all and split != self.sample_split:
                raise DatasetNotFoundError(
                    f"the asset {key} is one table, which stands for the split {self.sample_split!r} that the task evaluates, and the eval "
                    f"reads {split!r} too; name an asset for each: dataset: {{asset: {{{self.sample_split}: {key}, {split}: KEY}}}}"
                )
            return [place]
        found = self.store.newest(key)
        if not is_for_all and found is not None and found.place is not None:
            files = sorted(file for file in place.iterdir() if file.suffix in SUFFIXES and not file.name.startswith((".", "_")))
            if self.subject_count > 1 or not files:
                raise DatasetNotFoundError(
                    f"the asset {key} stands for the split {split!r}; expected files of one table ({', '.join(SUFFIXES)}) in {place}, "
                    f"found {len(files)} files{f', and the task has {self.subject_count} subjects' if self.subject_count > 1 else ''}"
                )
            return files
        try:
            return SplitFolder(f"asset {key}", place, self.subject_count, "materialize the asset again", self.types).files(subject, split)
        except DatasetNotFoundError as error:
            said = f"; if all of its files are one table, name its split: dataset: {{asset: {{{split}: {key}}}}}" if is_for_all else ""
            raise DatasetNotFoundError(f"{error}{said}") from error
