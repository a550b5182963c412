"""Stage `dataset_snapshot`: the rows of an eval as they were read, named by their content."""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any

from eval_dagster.datasets.reader import DatasetReader, reads_in_part
from eval_dagster.errors import DataError
from eval_dagster.lake.files import LakeFile
from eval_dagster.lake.format.parquet_files import FileInfo, iter_rows, read_head, read_rows
from eval_dagster.lake.tables.columns import SampleRow
from eval_dagster.lake.tables.rows import sample_of, sample_row
from eval_dagster.progress.memory import watched
from eval_dagster.progress.reporting import making
from eval_dagster.project import Project
from eval_dagster.records import Sample
from eval_dagster.stages.partition import Plan, StageResult, sound_current
from eval_dagster.stages.stage_table import StageTable
from eval_dagster.tasks.base import BaseTask, subject_name
from eval_dagster.tasks.benchmark import AdapterTask
from eval_dagster.tasks.samples import samples_of
from eval_dagster.versions.hashes import ListHash, code_version, stable_hash

_PREVIEW = ("row", "subject", "split", "sample_id")
_BATCH = 10_000
"""Samples that are held at once."""
_MOST_HELD = 20_000
"""Rows of a snapshot that are held while its prompts are rendered. Larger ones are read several times."""
_MOST_PASSES = 100
"""Passes through a snapshot after which all samples are held, since they are asked for in another order."""


def materialize_snapshot(project: Project, eval_name: str, run_id: str) -> StageResult:
    """Make the snapshot of an eval current.

    Raises:
        DataError: The dataset is empty or a row cannot be stored.
        DatasetNotFoundError: The dataset is missing.
    """
    with project.lake.lock(f"snapshot-{eval_name}"):
        plan = plan_snapshot(project, eval_name)
        current = plan.fresh
        if current is None:
            making("dataset_snapshot", eval_name)
            task = project.task(eval_name)
            source, counts = project.reader.source(task), Counter[str]()
            rows, version, subjects = StageTable("samples", project.lake.home), _Version(), set[str]()
            for sample in watched(_read(project, eval_name), f"dataset_snapshot {eval_name}"):
                rows.add(sample_row(eval_name, sample, source, ""))
                version.add(sample)
                counts.update(rows=1, samples=int(sample.split == task.SAMPLE_SPLIT))
                subjects.add(sample.subject)
            info = FileInfo(
                fingerprint=plan.fingerprint,
                version=version.value(),
                run_id=run_id,
                materialized_at=project.lake.next_time("samples", eval_name),
                inputs={"dataset": f"{source.path}@{source.revision}" if source.revision else source.path},
                counts={**counts, "subjects": len(subjects)},
                made_of=plan.made_of,
            )
            current = project.lake.write("samples", rows.rows(dataset_version=info.version), eval_name=eval_name, info=info)
    cached = plan.fresh is not None
    return StageResult(
        stage="dataset_snapshot",
        eval_name=eval_name,
        model=None,
        file=current,
        cached=cached,
        read_preview=partial(read_head, current.path, 5, _PREVIEW),
    )


def plan_snapshot(project: Project, eval_name: str) -> Plan:
    """Whether the current snapshot of an eval is up to date. Reads no rows. Raises like `materialize_snapshot` for a missing dataset."""
    task, subjects = project.task(eval_name), project.subjects(eval_name)
    fewshot = project.num_fewshot(eval_name) > 0
    limit = _limit(project, eval_name)
    stamp, code = project.reader.stamp(task, subjects, fewshot=fewshot), code_version(_read, DatasetReader)
    settings = [[subject_name(subject) for subject in subjects], task.SAMPLE_SPLIT, task.FEWSHOT_SPLIT, fewshot]
    own = [] if task.ID_FIELD is None else [task.ID_FIELD]
    return Plan(
        fingerprint=stable_hash([stamp, *settings, code, *own, *limit]),
        made_of={
            "data": stable_hash(stamp),
            "settings": stable_hash([*settings, *own]),
            "code": code,
            **({"limit": stable_hash(limit)} if limit else {}),
        },
        current=sound_current(project.lake, "samples", eval_name),
    )


def _limit(project: Project, eval_name: str) -> list[int]:
    """The limit of an eval, if it reduces the rows that are read of each subject. Empty otherwise."""
    limit = project.eval(eval_name).limit
    in_part = reads_in_part(project.task(eval_name), fewshot=project.num_fewshot(eval_name) > 0)
    return [limit] if limit is not None and in_part else []


def rows_now(project: Project, eval_name: str) -> tuple[list[Sample], str]:
    """The current samples of the dataset, and the version of a snapshot of them. Nothing is written."""
    samples, version = list(_read(project, eval_name)), _Version()
    for sample in samples:
        version.add(sample)
    return samples, version.value()


def _read(project: Project, eval_name: str) -> Iterator[Sample]:
    """Read the samples of the dataset. Raises `DataError` for one that is empty or lacks the task's names, after the last sample."""
    task_class, num_fewshot = project.task(eval_name), project.num_fewshot(eval_name)
    task, limit = task_class(num_fewshot=num_fewshot), next(iter(_limit(project, eval_name)), None)

    def read() -> Iterator[Sample]:
        for subject in project.subjects(eval_name):
            is_empty = True
            rows = project.reader.rows(task, subject, fewshot=num_fewshot > 0, limit=limit)
            for sample in samples_of(rows, subject_name(subject), task_class.ID_FIELD):
                is_empty = is_empty and sample.split != task_class.SAMPLE_SPLIT
                yield sample
            if is_empty:
                raise DataError(
                    f"eval {eval_name}: the split {task_class.SAMPLE_SPLIT!r} of {task_class.DATASET_PATH} "
                    f"(subject {subject_name(subject)!r}) is empty; expected at least one row"
                )

    yield from names_checked(f"eval {eval_name}", task, read())


def names_checked(what: str, task: BaseTask[Any], samples: Iterable[Sample]) -> Iterator[Sample]:
    """Pass on samples, and check that the field of the task's `ID_FIELD` exists.

    Raises:
        DataError: After the last sample, if no row of the evaluated split has it.
    """
    field, is_there, first = task.ID_FIELD, False, None
    for sample in samples:
        if sample.split == task.SAMPLE_SPLIT:
            first, is_there = first or sample, is_there or field in sample.row
        yield sample
    if field is not None and first is not None and not is_there:
        raise DataError(
            f"{what}: no row has the field {field!r} of the task's ID_FIELD; the rows have: {', '.join(first.row)}; name one of them"
        )


class _Version:
    """The version of samples that come one after the other."""

    def __init__(self) -> None:
        self._hash = ListHash()

    def add(self, sample: Sample) -> None:
        """Add the next sample."""
        self._hash.add([sample.sample_id, sample.subject, sample.split, sample.row_index])

    def value(self) -> str:
        """The version of the samples so far."""
        return self._hash.value()


class SnapshotSamples(Mapping[str, Sample]):
    """The samples of a snapshot by their ids. Few are held at once, so they should be asked for in the order of the snapshot."""

    def __init__(self, file: LakeFile) -> None:
        self._file = file
        self._held: dict[str, SampleRow] = {}
        """Rows by sample id."""
        self._rows: Iterator[SampleRow] = iter(())
        self._passes = 0
        self._recent: deque[Sample] = deque(maxlen=2)
        """The last samples that were asked for. One may be asked for again after the next one."""

    def __getitem__(self, name: str) -> Sample:
        found = next((sample for sample in self._recent if sample.sample_id == name), None)
        if found is None:
            found = sample_of(self._row(name))
            self._recent.append(found)
        return found

    def __iter__(self) -> Iterator[str]:
        return (row["sample_id"] for row in iter_rows(self._file.path, ["sample_id"]))

    def __len__(self) -> int:
        return int(self._file.info.counts["rows"])

    def _row(self, name: str) -> SampleRow:
        passes = self._passes
        while name not in self._held:
            if batch := {row["sample_id"]: row for row in islice(self._rows, _BATCH if self._passes < _MOST_PASSES else None)}:
                self._held = batch
                continue
            if self._passes > passes + 1:
                raise KeyError(name)
            self._passes += 1
            self._rows = iter_rows(self._file.path, list(Sample.__dataclass_fields__))
        return self._held[name]


def expected_samples(project: Project, eval_name: str) -> int:
    """The number of samples of an eval's current snapshot that are asked about, unless subjects have fewer than its limit."""
    counts, limit = project.lake.require("samples", "dataset_snapshot", eval_name).info.counts, project.eval(eval_name).limit
    return int(counts["samples"] if limit is None else min(counts["samples"], limit * counts["subjects"]))


def stored_samples(project: Project, eval_name: str) -> Collection[Sample]:
    """The samples of an eval's current snapshot, to be iterated. Of a large one, few are held at once, and each iteration reads it."""
    file = project.lake.require("samples", "dataset_snapshot", eval_name)
    return SnapshotSamples(file).values() if file.info.counts["rows"] > _MOST_HELD else read_samples(project, eval_name)


def read_samples(project: Project, eval_name: str) -> list[Sample]:
    """The samples of an eval's current snapshot."""
    file = project.lake.require("samples", "dataset_snapshot", eval_name)
    return [sample_of(row) for row in read_rows(file.path, list(Sample.__dataclass_fields__))]


def samples_to_score(task: BaseTask[Any], project: Project, eval_name: str) -> Mapping[str, Sample]:
    """The samples of an eval's current snapshot by their ids. A benchmark sees all of them before it scores one; other tasks take few."""
    if isinstance(task, AdapterTask):
        return {sample.sample_id: sample for sample in read_samples(project, eval_name)}
    return SnapshotSamples(project.lake.require("samples", "dataset_snapshot", eval_name))
