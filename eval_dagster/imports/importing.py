"""Imports logs of inspect_ai: each log becomes a result of an eval and a model, at the time at which its evaluation began."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from eval_dagster.errors import DataError, LakeError
from eval_dagster.imports.inspect_archive import Archive, Member, required
from eval_dagster.imports.inspect_header import Log, read_log
from eval_dagster.imports.inspect_reading import ReadLog, read_samples
from eval_dagster.imports.reading_processes import Processes
from eval_dagster.lake.catalog.publishing import publish, publish_locked
from eval_dagster.lake.files import LOG_CONTENT, Lake, LakeFile, table_of
from eval_dagster.lake.format.parquet_files import FileInfo, read_head, time_of
from eval_dagster.lake.lineage import Inputs, asked_versions, changed_inputs
from eval_dagster.lake.tables.columns import MetricRow
from eval_dagster.stages.aggregation import metric_rows
from eval_dagster.stages.answer_columns import read_answers
from eval_dagster.stages.answer_figures import with_answer_figures
from eval_dagster.stages.score_columns import read_scores
from eval_dagster.tasks.base import BaseTask
from eval_dagster.tasks.recorded import RecordedMetric, recorded_task
from eval_dagster.versions.hashes import code_version, stable_hash

_EVAL_ID, _TASK, _ARGUMENTS = "inspect_eval_id", "inspect_task", "inspect_arguments"
"""Inputs of a file that name its log, and the log's own name of the task with its arguments."""
_MODEL, _STATUS = "inspect_model", "inspect_status"
"""Inputs of a file with the log's own name of the model, and how the evaluation ended."""
_MOST_MEMBERS = 300_000
"""Members of archives whose places are kept from the first look at a log until it is imported."""
_NEXT = timedelta(microseconds=1)
_WRITERS = 2
"""Tables that are written at the same time."""
_TABLES = ("prompts", "responses", "scores", "metrics")
"""The tables with a file for each log. `metrics` is written last, since it makes the result visible."""


@dataclass(frozen=True, kw_only=True)
class ImportedLog:
    """The outcome of an import of a log."""

    path: Path
    state: Literal["imported", "known", "deleted", "failed"]
    """`known` if it was imported before; `deleted` if `gc` has deleted its result since."""
    log: Log | None = None
    """Null if the file is not a log."""
    answers: int = 0
    errors: int = 0
    """Answers without a value under some metric."""
    problem: str | None = None
    """Why the log could not be imported."""
    warnings: Sequence[str] = ()
    replaced: Sequence[Path] = ()
    """Files of what was imported of the log before, for `publish_imported` to delete."""


@dataclass(frozen=True)
class _State:
    """A file with a log, which other files may have in other states."""

    path: Path
    log: Log
    samples: int
    changed: float
    """When the file was written, in seconds of Unix time."""

    @property
    def order(self) -> tuple[bool, int, int, float]:
        """Sorts the states of a log: an ended one is later, then one with more samples, with more scorers, or written later."""
        return (*_progress(self.log.status, self.samples), len(self.log.scorers), self.changed)

    def differs(self, other: "_State") -> bool:
        """Whether it may not be the same as another one, byte by byte."""
        return self.order[:-1] != other.order[:-1] or self.path.stat().st_size != other.path.stat().st_size


def _progress(status: str, samples: float) -> tuple[bool, int]:
    """Sorts the states of a log by its own content: whether it has ended, its samples and its scores."""
    return status != "started", int(samples)


def import_logs(lake: Lake, paths: Sequence[Path], *, taken: Sequence[str] = ()) -> Iterator[ImportedLog]:
    """Import logs into the lake, the oldest first. A log that fails does not affect the others. The catalog is not published.

    Of several states of one log, such as a copy from before it ended or before it was scored anew, the latest is imported.
    A log that was imported before, and has not grown since, is known. One that has grown replaces what was imported of it, as a result
    of its own: a microsecond later, so that a gate judges it. `publish_imported` deletes what it replaces.

    Args:
        lake: The lake.
        paths: The `.eval` files.
        taken: Names of evals that are evaluated here, so that no log can have them.

    Raises:
        UsageError: A package of the extra `inspect` is not installed.
        LakeError: The lake cannot be written to.
    """
    for name in ("zstandard", "msgspec"):
        required(name)
    logs: dict[str, list[_State]] = {}
    directories: dict[Path, Mapping[str, Member]] = {}
    for path in paths:
        try:
            with path.open("rb") as file:
                archive = Archive(file)
                state = _State(path, replace(read_log(archive), sample_ids=()), len(archive.samples()), path.stat().st_mtime)
                logs.setdefault(state.log.eval_id, []).append(state)
                if len(archive.members) + sum(map(len, directories.values())) <= _MOST_MEMBERS:
                    directories[path] = archive.members
        except (DataError, OSError) as error:
            yield ImportedLog(path=path, state="failed", problem=_problem(path, error))
    newest = [max(states, key=lambda each: each.order) for states in logs.values()]
    for chosen in newest:
        for each in logs[chosen.log.eval_id]:
            if each is not chosen:
                older = (f"left out, since it is a copy of {chosen.path} or an older state of it",)
                yield ImportedLog(path=each.path, state="known", log=each.log, warnings=older if each.differs(chosen) else ())
    lake.begin()
    with lake.lock("import"), Processes() as processes:
        names = _Names(lake, taken)
        for path, log in sorted(((each.path, each.log) for each in newest), key=lambda each: (each[1].time, each[0])):
            try:
                names.take(log)
                yield _import(lake, path, processes, directories.pop(path, None))
            except (DataError, OSError) as error:
                yield ImportedLog(path=path, state="failed", log=log, problem=_problem(path, error))


def publish_imported(lake: Lake, found: Sequence[ImportedLog]) -> list[str]:
    """Publish imported logs, and then delete the files that they replace. Returns the messages of `publish`.

    Raises:
        LakeError: No catalog can be made from the files.
    """
    replaced = [path for each in found for path in each.replaced]
    if replaced:
        with lake.lock("catalog"):
            publish_locked(lake, archiving=not lake.is_trial, without=replaced)
            for path in replaced:
                lake.delete(path)
    return publish(lake)


def _problem(path: Path, error: Exception) -> str:
    return f"found {path}, {error}" if isinstance(error, DataError) else f"{path} cannot be read: {error}"


class _Names:
    """The tasks and models that names of evals and models stand for in the lake."""

    def __init__(self, lake: Lake, taken: Sequence[str]) -> None:
        """Read the newest result of each eval and model. `taken` are evals that no log can have."""
        self._taken = taken
        self._tasks: dict[str, str | None] = {}
        self._models: dict[str, str] = {}
        for path in lake.newest_files("metrics"):
            with suppress(LakeError):  # a damaged file is reported when the catalog is published
                inputs = lake.info(path).inputs
                name, model = (folder.name.partition("=")[2] for folder in (path.parent.parent, path.parent))
                self._tasks[name] = _asked_task(inputs[_TASK], inputs.get(_ARGUMENTS)) if _TASK in inputs else None
                if _MODEL in inputs:
                    self._models[model] = inputs[_MODEL]

    def take(self, log: Log) -> None:
        """Note what the names of a log stand for. Raises `DataError` if one stands for something else here."""
        if log.eval in self._taken:
            raise DataError(
                f"a log of the task {log.task}; evals.yaml has an eval {log.eval!r} that is evaluated here. Rename it in evals.yaml, "
                "since results of both would be one history"
            )
        task = _asked_task(log.task, log.arguments)
        if (known := self._tasks.get(log.eval, task)) != task:
            other = f"of the task {known}" if known else "that were computed here"
            raise DataError(f"a log of the task {task}; the eval {log.eval} has results {other} already")
        if (other := self._models.get(log.model, log.model_name)) != log.model_name:
            raise DataError(f"a log of the model {log.model_name}; the model {log.model} has results of the model {other} already")
        self._tasks[log.eval], self._models[log.model] = task, log.model_name


def _asked_task(task: str, arguments: str | None) -> str:
    return task if arguments in (None, "{}") else f"{task} with {arguments}"


def _import(lake: Lake, path: Path, processes: Processes, directory: Mapping[str, Member] | None) -> ImportedLog:
    with path.open("rb") as file, ExitStack() as stack:
        archive = Archive(file, directory)
        log = read_log(archive)
        members = archive.samples()
        content = [log.eval_id, log.status, [[each.name, each.size, each.crc] for each in members]]
        fingerprint, content_hash = stable_hash([content, code_version(read_samples)]), stable_hash(content)
        before = _files_of(lake, log)
        if {"scores", "metrics"} <= {table for table, _, info in before if info.fingerprint == fingerprint}:
            older = [old for _, old, info in before if info.fingerprint != fingerprint]  # of an import that ended before it deleted them
            return ImportedLog(path=path, state="known", log=log, replaced=older)
        if not any(table == "metrics" for table, _, _ in before) and content_hash in _deleted_logs(lake):
            return ImportedLog(path=path, state="deleted", log=log)
        had = [_progress(info.inputs[_STATUS], info.counts["samples"]) for table, _, info in before if table == "metrics"]
        if had and _progress(log.status, len(members)) < max(had):
            return ImportedLog(path=path, state="known", log=log, warnings=("left out, since a later state of it was imported before",))
        if not members:
            raise DataError(f"a log without a sample (status {log.status}); expected one at least")
        read = read_samples(path, archive, log, processes, lake.home, stack)
        if not read.answers:
            raise DataError(f"a log of which no sample can be read: {read.unread[0]}")
        if not read.metrics:
            raise DataError("a log without a scorer, so that there is nothing to show of it; score it by `inspect score` first")
        older = [old for _, old, _ in before]  # of an import that ended early, or when the log was shorter
        try:
            _Writer(lake, read, fingerprint, content_hash, older).write(processes)
        except OSError as error:
            raise LakeError(f"the lake {lake.root} cannot be written: {error}") from error
    return ImportedLog(
        path=path, state="imported", log=log, answers=read.answers, errors=read.errors, warnings=_warnings(read), replaced=older
    )


def _warnings(read: ReadLog) -> list[str]:
    log, found = read.log, []
    if log.status != "success":
        why = f": {' '.join(log.error.split())[:200]}" if log.error else ""
        of = f" of {log.asked}" if log.asked is not None else ""
        found.append(f"its evaluation has the status {log.status}{why}; the result has the {read.answers}{of} answers that were written")
    if read.unread:
        found.append(f"{len(read.unread)} samples cannot be read and are left out: {read.unread[0]}")
    return found


def _deleted_logs(lake: Lake) -> set[str]:
    with suppress(FileNotFoundError):
        return set(lake.deleted_logs.read_text(encoding="utf-8").split())
    return set()


def _files_of(lake: Lake, log: Log) -> list[tuple[str, Path, FileInfo]]:
    """The files that were imported of a log, with their tables."""
    found = []
    for table in _TABLES:
        for path in lake.files(lake.folder(table, log.eval, log.model)):
            with suppress(LakeError):  # a damaged file is reported when the catalog is published
                info = lake.info(path)
                if info.inputs.get(_EVAL_ID) == log.eval_id:
                    found.append((table, path, info))
    return found


def _free(time: datetime, times: Collection[datetime]) -> datetime:
    """The first time that no other result has, from this one on."""
    while time in times:
        time += _NEXT
    return time


def _written(time: datetime) -> str:
    return time.isoformat(timespec="microseconds")


class _Writer:
    """Writes the tables of a log."""

    def __init__(self, lake: Lake, read: ReadLog, fingerprint: str, content: str, older: Sequence[Path]) -> None:
        """Take a log, and the files that were made of it before: its result gets a later time than they have."""
        self._lake, self._read, self._fingerprint = lake, read, fingerprint
        log = read.log
        self._log = log
        times = {time_of(path) for path in lake.files(lake.folder("metrics", log.eval, log.model))}
        self._time = _free(max([log.time, *(time_of(path) + _NEXT for path in older)]), times)
        self._inputs = {
            "dataset_snapshot": read.versions["samples"],
            LOG_CONTENT: content,
            _EVAL_ID: log.eval_id,
            _TASK: log.task,
            _ARGUMENTS: log.arguments,
            _MODEL: log.model_name,
            _STATUS: log.status,
        }

    def write(self, processes: Processes) -> None:
        """Write all tables. Some are written at the same time; `metrics` is the last one."""
        read, log, versions = self._read, self._log, self._read.versions
        counts = {"samples": read.answers, "errors": read.errors}
        with ThreadPoolExecutor(_WRITERS) as writers:
            if (snapshot := self._snapshot()) is not None:
                found = read.tables["samples"].rows(dataset_version=versions["samples"])
                snapshot_written = writers.submit(self._lake.write, "samples", found, eval_name=log.eval, info=snapshot)
            prompts_written = writers.submit(self._write, "prompts", self._info(versions["prompts"], {"prompts": read.answers}))
            self._inputs |= {"rendered_prompts": versions["prompts"], "model": log.model_version, "model_content": log.model_content}
            info = self._info(versions["responses"], {"requests": read.answers, "errors": read.errors, **read.totals})
            outputs_written = writers.submit(self._write, "responses", info)
            self._inputs |= {"model_outputs": versions["responses"], "metrics": stable_hash(dict(log.metric_versions))}
            info = self._info(versions["scores"], {**counts, "scores": read.scores, "retryable_errors": 0})
            scores_written = writers.submit(self._write, "scores", info)
            self._inputs["sample_scores"] = versions["scores"]
            prompts = prompts_written.result()
            asked = processes.call(asked_versions, prompts.path)
            outputs, scores = outputs_written.result(), scores_written.result()
            if snapshot is not None:
                snapshot_written.result()
        rows = _metric_rows(recorded_task(_metrics(read)), prompts, outputs, scores)
        shared = self._shared(scores, *asked())
        content = stable_hash([[row["metric"], row["value"], row["stderr"], row["n"], row["n_errors"]] for row in rows])
        info = self._info(content, {**counts, "metrics": len(rows)})
        made = table_of("metrics", [{**row, **shared} for row in rows])
        self._lake.write("metrics", made, eval_name=log.eval, model=log.model, info=info)

    def _snapshot(self) -> FileInfo | None:
        """The information of the log's samples; null if the newest ones of its eval are the same."""
        version, known = self._read.versions["samples"], self._lake.history("samples", self._log.eval)
        current = [file.info for file in known if time_of(file.path) <= self._time]
        if current and current[-1].version == version:
            return None
        time = _free(self._time, {time_of(file.path) for file in known})  # other models may be asked at the same time
        counts = {"rows": self._read.samples, "samples": self._read.samples, "subjects": 1}
        return replace(self._info(version, counts), inputs={"dataset": self._log.dataset}, materialized_at=_written(time))

    def _write(self, table: str, info: FileInfo) -> LakeFile:
        constants = {"prompt_version": info.version} if table == "prompts" else {}
        rows = self._read.tables[table].rows(**constants)
        return self._lake.write(table, rows, eval_name=self._log.eval, model=self._log.model, info=info)

    def _info(self, version: str, counts: Mapping[str, float]) -> FileInfo:
        return FileInfo(
            fingerprint=self._fingerprint,
            version=version,
            run_id=f"import-{self._log.eval_id}",
            materialized_at=_written(self._time),
            inputs=dict(self._inputs),
            counts=counts,
            made_of={"log": self._fingerprint},
        )

    def _shared(self, scores: LakeFile, samples_version: str, questions_version: str) -> dict[str, object]:
        """The columns of `metrics` that are the same in all rows."""
        inputs = self._inputs
        previous, changed = self._changed(scores)
        return {
            "eval": self._log.eval,
            "model": self._log.model,
            "dagster_run_id": f"import-{self._log.eval_id}",
            "materialized_at": self._time,
            "dataset_version": inputs["dataset_snapshot"],
            "prompt_version": inputs["rendered_prompts"],
            "model_version": inputs["model"],
            "model_content_version": inputs["model_content"],
            "scores_file": str(scores.path.relative_to(self._lake.root)),
            "changed_since": previous,
            "changed_inputs": changed,
            "samples_version": samples_version,
            "questions_version": questions_version,
        }

    def _changed(self, scores: LakeFile) -> tuple[datetime | None, list[str] | None]:
        """The time of the log before, and the differences of its inputs. Null without one, or if they cannot be read."""
        log, lake = self._log, self._lake
        earlier = [path for path in lake.files(lake.folder("metrics", log.eval, log.model)) if time_of(path) < self._time]
        try:
            if not earlier:
                return None, None
            of_last = lake.file(read_head(earlier[-1], 1, ["scores_file"])[0]["scores_file"])
            now, before = (
                Inputs(lake=lake, eval_name=log.eval, model=log.model, versions=versions, scores=path)
                for versions, path in ((self._inputs, scores.path), (lake.info(earlier[-1]).inputs, of_last))
            )
            return time_of(earlier[-1]), list(changed_inputs(now, before))
        except (LakeError, KeyError):
            return None, None


def _metrics(read: ReadLog) -> list[RecordedMetric]:
    """The metrics of a log, the headline first: one a scorer."""
    log = read.log
    of_scorers: dict[str, list[str]] = {}
    for metric, scorer in read.metrics.items():
        of_scorers.setdefault(scorer, []).append(metric)
    first = read.metrics.get(log.headline or "")
    found = []
    for scorer in sorted(of_scorers, key=lambda each: each != first):
        name, metrics = scorer.replace("/", "."), of_scorers[scorer]
        headline = log.headline if log.headline in metrics else metrics[0]
        found.append(
            RecordedMetric(
                name=name,
                is_share=read.marks.get(scorer, False),
                version=log.metric_versions.get(scorer) or stable_hash(scorer),
                headline=None if name in metrics else headline,
            )
        )
    return found


def _metric_rows(task: type[BaseTask[Any]], prompts: LakeFile, outputs: LakeFile, scores: LakeFile) -> list[MetricRow]:
    """The rows of `metrics` of a log, by this project's own statistics."""
    scored = read_scores(scores.path)
    answers = read_answers(task, prompts.path, outputs.path, scores.path, scored)
    return with_answer_figures(task, metric_rows(task, scored), scored, answers)
