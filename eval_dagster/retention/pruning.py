"""Deletes old results of a home: materializations, judgements, reports, catalogs, past nights, and unused answers of models.

`retained` determines which files stay, with reasons. First a catalog without the old files is published. Then files are deleted before the
files that they refer to. So a killed process leaves a complete lake that is only larger than necessary.
"""

import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from eval_dagster.errors import EvalDagsterError, LakeError
from eval_dagster.lake.catalog.archives import archive, archive_path, archived, files_named_by
from eval_dagster.lake.catalog.indexed import IndexedLake
from eval_dagster.lake.catalog.publishing import publish, publish_locked
from eval_dagster.lake.files import Lake, catalog_path, trial_lake
from eval_dagster.lake.format.file_names import parquet_files, time_of
from eval_dagster.project import Project
from eval_dagster.retention.retained import BESIDE, BY_EVAL, BY_MODEL, BY_SUITE, GRACE, Keep, Reason, Retained

CACHE = "response cache"
"""Deleted answers would have to be computed again."""
TRIALS = "trials"
"""Results of `run --limit`; the answers are in the response cache."""
_ORDER = ("metrics", *BY_SUITE, *BESIDE, "scores", "responses", "prompts", *BY_EVAL)
_LATEST_REPORT = "latest.html"


@dataclass(frozen=True, kw_only=True)
class Prunable:
    """A file that can be deleted; or a folder, for a past night or pages of samples."""

    what: str
    """A table of the lake, `response cache`, `trials`, `reports`, `catalogs`, `nights` or `pages`."""
    path: Path
    size: int
    """Bytes."""
    time: datetime
    """The time at which it was written."""


@dataclass(frozen=True, kw_only=True)
class Pruning:
    """The files that can be deleted, and the files that stay."""

    files: Sequence[Prunable]
    """In the order of deletion."""
    kept: Mapping[Reason, Sequence[Prunable]]
    """All other files, by the reason that they stay."""
    notes: Sequence[str]
    """Warnings about undetermined facts, for which files are kept."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Which results are kept."""

    keep: Keep
    catalogs: Keep
    """For the catalogs of past days. A kept catalog keeps the files that it names."""
    removed: bool = False
    """Whether to delete everything of evals, models and suites that are not in evals.yaml."""

    @property
    def keeps_catalogs(self) -> bool:
        """Whether to keep the current state as a catalog."""
        return self.catalogs.age is not None or bool(self.catalogs.count)


def plan(project: Project, policy: Policy, *, now: datetime | None = None) -> Pruning:
    """Determine which files can be deleted. Ages are relative to `now`. Nothing is changed.

    Raises:
        UsageError: The clock of this machine differs from the clock of a shared lake's server, so ages are unknown.
        LakeError: A kept catalog cannot be read, so the files that it needs are unknown.
    """
    project.lake.begin()
    return _plan(project, policy, _configured_versions(project), now or datetime.now(UTC))


def prune(project: Project, policy: Policy, *, now: datetime | None = None) -> Pruning:
    """Delete the files that `plan` finds now; nothing is published meanwhile. Returns the deleted files.

    Raises:
        UsageError: As in `plan`.
        LakeError: As in `plan`; or a file cannot be deleted, and later files stay.
    """
    project.lake.begin()
    versions = _configured_versions(project)
    lake, trials = project.lake, trial_lake(project.lake)
    with lake.lock("catalog"), trials.lock("catalog"):
        if policy.keeps_catalogs:
            archive(catalog_path(lake))
        found = _plan(project, policy, versions, now or datetime.now(UTC))
        going = [each.path for each in found.files]
        publish_locked(lake, archiving=False, without=going)
        if catalog_path(trials).exists():
            publish_locked(trials, archiving=False, without=going)
        for each in found.files:
            _delete(lake, each)
    publish(lake)
    return found


def _plan(project: Project, policy: Policy, versions: "_Versions", now: datetime) -> Pruning:
    project.lake.pull(everything=True)
    lake = IndexedLake(project.lake)
    # Listed first, to exclude files that are written meanwhile.
    paths = [(table, path) for table in _ORDER for partition in lake.partitions(table) for path in partition]
    listed = [each for table, path in paths for each in _prunable(table, path, time_of(path), lake.size)]
    old_catalogs, kept_catalogs = _catalogs(lake, policy, now)
    named = {lake.root / name for catalog in kept_catalogs for name in _with_other_parts(files_named_by(catalog))}
    retained = Retained(project, lake, policy.keep, removed=policy.removed, now=now)
    found = [
        *((each, None) for each in old_catalogs),
        *_nights(lake, kept_catalogs, now),
        *((each, _reason(each, retained, named, now)) for each in listed),
        *_answers(lake, retained.model_versions, versions, policy.keep, now),
        *_trials(trial_lake(project.lake), policy.keep, now),
        *_reports(project, policy, now),
        *_sample_pages(lake, retained),
        *((each, Reason.KEEP) for path in kept_catalogs if path != catalog_path(lake) for each in _prunable("catalogs", path, now)),
    ]
    return Pruning(
        files=[each for each, reason in found if reason is None],
        kept={kind: files for kind in Reason if (files := [each for each, reason in found if reason is kind])},
        notes=versions.unknown,
    )


def _reason(each: Prunable, retained: Retained, named: Set[Path], now: datetime) -> Reason | None:
    """The reason that a table's file stays. None if it can be deleted."""
    if each.path in retained.reasons:
        return retained.reasons[each.path]
    if each.time >= now - GRACE:
        return Reason.LAST_DAY
    return Reason.CATALOG if each.path in named else None


def _with_other_parts(names: Iterable[str]) -> Iterator[str]:
    """The names with the other parts of judgements. A judgement has a file of the same name in each of its tables."""
    for name in names:
        table, _, rest = name.partition("/")
        yield from (f"{each}/{rest}" for each in (BY_SUITE if table in BY_SUITE else (table,)))


def _size(path: Path) -> int:
    return path.stat().st_size


def _prunable(what: str, path: Path, time: datetime, size: Callable[[Path], int] = _size) -> Iterator[Prunable]:
    try:
        yield Prunable(what=what, path=path, size=size(path), time=time)
    except FileNotFoundError:  # gone since it was listed
        return


def _catalogs(lake: Lake, policy: Policy, now: datetime) -> tuple[list[Prunable], list[Path]]:
    """Past days' catalogs to delete, and catalogs to keep, including the last state of a past day that is not archived yet."""
    paths = archived(lake)
    ends = {path: end for path in paths if (end := _end_of_day(path.stem)) is not None}
    waiting = [catalog_path(lake)] if policy.keeps_catalogs and archive_path(catalog_path(lake)) else []
    keep = policy.catalogs
    recent = sum(keep.age is not None and end >= now - keep.age for end in ends.values())
    going = list(ends)[: max(len(ends) - max(recent, (keep.count or 0) - len(waiting)), 0)]
    old = [each for path in going for each in _prunable("catalogs", path, ends[path])]
    return old, [*(path for path in paths if path not in going), *waiting]


def _nights(lake: Lake, kept: Iterable[Path], now: datetime) -> Iterator[tuple[Prunable, Reason | None]]:
    """The folders of past nights that were queried on this machine. Each stays while the list that it was made from is kept."""
    days = {path.stem for path in kept}
    for folder in sorted((lake.home / "nights").glob("*/")):
        if _end_of_day(folder.name) is not None:
            time = datetime.fromtimestamp(folder.stat().st_mtime, UTC)
            reason = Reason.KEEP if folder.name in days else Reason.LAST_DAY if time >= now - GRACE else None
            yield from ((each, reason) for each in _prunable("nights", folder, time, _size_of_all))


def _size_of_all(folder: Path) -> int:
    return sum(_size(path) for path in folder.rglob("*") if path.is_file())


def _end_of_day(text: str) -> datetime | None:
    """The end of a day. None if the file has another name, given by a user."""
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC) + timedelta(days=1)
    except ValueError:
        return None


@dataclass(frozen=True, kw_only=True)
class _Versions:
    """The versions of the models of evals.yaml."""

    known: frozenset[str]
    unknown: Sequence[str]
    """The models with unknown versions, with reasons."""


def _configured_versions(project: Project) -> _Versions:
    known: set[str] = set()
    unknown: list[str] = []
    for name in project.config.models:
        try:
            known.add(project.handle(name).version())
        except (EvalDagsterError, OSError) as error:
            unknown.append(f"the version of the model {name} cannot be told, so that no answer is deleted: {error}")
    return _Versions(known=frozenset(known), unknown=unknown)


def _answers(
    lake: Lake, used: Mapping[str, Reason], versions: _Versions, keep: Keep, now: datetime
) -> Iterator[tuple[Prunable, Reason | None]]:
    """The answers of each model version. Deletable if no model of evals.yaml has the version and no remaining result uses it."""
    for folder in sorted((lake.root / "response_cache").glob("model_version=*")):
        paths, version = parquet_files(folder), folder.name.removeprefix("model_version=")
        if not paths:
            continue
        age = now - time_of(paths[-1])
        reasons = (
            (Reason.CURRENT, version in versions.known or bool(versions.unknown)),
            (used.get(version), version in used),
            (Reason.KEEP, keep.age is not None and age <= keep.age),
            (Reason.LAST_DAY, age <= GRACE),
        )
        reason = next((reason for reason, holds in reasons if holds), None)
        for path in paths:
            yield from ((each, reason) for each in _prunable(CACHE, path, time_of(path)))


def _trials(lake: Lake, keep: Keep, now: datetime) -> Iterator[tuple[Prunable, Reason | None]]:
    """The results of trials by eval. All results of an eval stay while one of them is recent enough to be kept."""
    by_eval: dict[str, list[Path]] = defaultdict(list)
    for table in (*BY_MODEL, *BY_EVAL):
        for path in (lake.root / table).glob("eval=*/**/[!.]*.parquet"):
            by_eval[path.relative_to(lake.root / table).parts[0]].append(path)
    for paths in by_eval.values():
        age = now - max(map(time_of, paths))
        is_kept = keep.age is not None and age <= keep.age
        reason = Reason.KEEP if is_kept else Reason.LAST_DAY if age <= GRACE else None
        yield from ((each, reason) for path in sorted(paths) for each in _prunable(TRIALS, path, time_of(path)))


def _reports(project: Project, policy: Policy, now: datetime) -> Iterator[tuple[Prunable, Reason | None]]:
    for folder in sorted((project.home / "reports").glob("*/")):
        is_removed = policy.removed and folder.name not in project.config.suites
        found = [(datetime.fromtimestamp(path.stat().st_mtime, UTC), path) for path in folder.glob("[!.]*.html")]
        pages = sorted((time, path) for time, path in found if is_removed or path.name != _LATEST_REPORT)
        times = [time for time, _ in pages]
        is_going = is_removed and times and times[-1] < now - GRACE
        newest, asked = (0, 0) if is_going else (policy.keep.newest(times, now), 0 if is_removed else policy.keep.asked(times, now))
        for number, (time, path) in enumerate(reversed(pages)):
            reason = Reason.KEEP if number < asked else Reason.LAST_DAY if number < newest else None
            yield from ((each, reason) for each in _prunable("reports", path, time))
            if (samples := path.with_suffix("")).is_dir():  # the pages of the red results
                yield from ((each, reason) for each in _prunable("reports", samples, time, _size_of_all))
        latest = [(time, path) for time, path in found if (time, path) not in pages]
        yield from ((each, Reason.CURRENT) for time, path in latest for each in _prunable("reports", path, time))


def _sample_pages(lake: IndexedLake, retained: Retained) -> Iterator[tuple[Prunable, Reason | None]]:
    """The page of each result's samples. It is deleted with the last metrics of its eval and model."""
    for folder in sorted((lake.home / "pages").glob("*/*/")):
        metrics = lake.files(lake.folder("metrics", folder.parent.name, folder.name))
        time = datetime.fromtimestamp(folder.stat().st_mtime, UTC)
        reason = Reason.CURRENT if any(path in retained.reasons for path in metrics) else None
        yield from ((each, reason) for each in _prunable("pages", folder, time, _size_of_all))


def _delete(lake: Lake, each: Prunable) -> None:
    # A run that merges answers under this lock must not miss any file.
    merging = lake.lock(f"merge-{each.path.parent.name.removeprefix('model_version=')}") if each.what == CACHE else nullcontext()
    try:
        with merging:
            if each.path.is_dir():
                shutil.rmtree(each.path)
            else:
                lake.delete(each.path)
    except OSError as error:
        raise LakeError(f"{each.path} cannot be deleted ({error.strerror}); what comes after it is still there, run gc again") from error
