"""Deletes old results of a home: materializations, judgements, reports, catalogs, past nights, and unused answers of models.

First `Retained` determines which files of the lake stay, with reasons: current and recent ones, their inputs, and baselines. Then a catalog
without the old files is published. Then files are deleted before the files that they refer to. So a killed process leaves a complete lake
that is only larger than necessary.
"""

import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from functools import cached_property
from itertools import product
from pathlib import Path

from eval_dagster.errors import EvalDagsterError, LakeError, UsageError
from eval_dagster.gate.standings import Baseline, Standings
from eval_dagster.lake.catalog.archives import archive, archive_path, archived, day_of, files_named_by
from eval_dagster.lake.catalog.publishing import publish, publish_locked
from eval_dagster.lake.catalog.scanning import IndexedLake
from eval_dagster.lake.files import LOG_CONTENT, Lake, catalog_path, trial_lake
from eval_dagster.lake.format.parquet_files import FileInfo, parquet_files, read_rows, time_of
from eval_dagster.lake.tables.schemas import SUITE_TABLES
from eval_dagster.project import Project
from eval_dagster.results.materializations import history, materialization_at, previous_materialization

GRACE = timedelta(days=1)
"""Files that are younger, or were current at some time since then, always stay, because a run may be using them."""
BY_EVAL = ("samples",)
BY_MODEL = ("prompts", "responses", "scores", "metrics")
BY_SUITE = tuple(SUITE_TABLES)
BESIDE = ("confirmations",)
"""Tables by model from which nothing is computed."""
CACHE = "response cache"
"""Deleted answers would have to be computed again."""
TRIALS = "trials"
"""Results of `run --limit`; the answers are in the response cache."""
_ORDER = ("metrics", *BY_SUITE, *BESIDE, "scores", "responses", "prompts", *BY_EVAL)
_LATEST_REPORT = "latest.html"


class Reason(StrEnum):
    """The reason that a file stays. If several reasons hold, the first one is given."""

    CURRENT = "current"
    KEEP = "--keep"
    LAST_DAY = "last day"
    COMPARED = "baseline"
    CATALOG = "catalog"


def strongest(*reasons: Reason) -> Reason:
    """The reason to give if several hold."""
    return min(reasons, key=list(Reason).index)


@dataclass(frozen=True, kw_only=True)
class Keep:
    """The states to keep, by age or number."""

    age: timedelta | None = None
    """Keeps states that were current at some time since then."""
    count: int | None = None
    """Number of the newest states to keep."""

    @classmethod
    def parse(cls, text: str, *, what: str, least: int = 1) -> "Keep":
        """Read `90d` or `10`, a number of at least `least`. `what` names the option in the message.

        Raises:
            UsageError: The text has another form, or the number is smaller.
        """
        found = re.fullmatch(r"([0-9]{1,5})(d?)", text.strip(), re.ASCII)
        if found is None or int(found[1]) < least:
            at_least = f", at least {least}" if least else ""
            raise UsageError(f"found {what} {text!r}; expected an age in days (90d) or how many of the newest are kept (10){at_least}")
        number = int(found[1])
        return cls(age=timedelta(days=number)) if found[2] else cls(count=number)

    def newest(self, times: Sequence[datetime], now: datetime) -> int:
        """Number of the newest states that are kept. `times` are the starts of the states, the oldest first."""
        return max(_current_since(times, now, GRACE), self.asked(times, now))

    def asked(self, times: Sequence[datetime], now: datetime) -> int:
        """Number of states that the user wants to keep; `newest` adds the states of the last day."""
        recent = _current_since(times, now, self.age) if self.age is not None else 0
        return min(len(times), max(recent, self.count or 0))


def _current_since(times: Sequence[datetime], now: datetime, age: timedelta) -> int:
    """Number of states that were current within this age. Each state is current until the next one."""
    return sum(until >= now - age for until in [*times[1:], now]) if times else 0


class Retained:
    """The files of a project's lake that stay."""

    def __init__(self, project: Project, lake: IndexedLake, keep: Keep, *, removed: bool, now: datetime) -> None:
        """Determine the files that stay. With `removed`, files of evals, models and suites that are not in evals.yaml do not stay."""
        self._project, self._keep, self._removed, self._now = project, keep, removed, now
        self._lake = lake
        self._infos: dict[Path, FileInfo | None] = {}
        self.reasons: dict[Path, Reason] = {}
        """The files of partitions that stay -> the reason."""
        for table in (*BY_EVAL, *BY_MODEL, *BY_SUITE, *BESIDE):
            for partition in self._lake.partitions(table):
                is_removed = self._removed and self.is_removed(partition[-1])
                times = [time_of(path) for path in partition]
                if is_removed:
                    self._mark(partition if times[-1] >= self._now - GRACE else (), Reason.LAST_DAY)
                    continue
                if len(partition) > 1:
                    self._mark(partition[-self._keep.newest(times, self._now) :], Reason.LAST_DAY)
                    self._mark(partition[-self._keep.asked(times, self._now) :], Reason.KEEP)
                self._mark(partition[-1:], Reason.CURRENT)
        self._mark(self._compared_with(), Reason.COMPARED)
        self._mark(self._named_by_judgements(), Reason.COMPARED)
        for path in self._kept("metrics"):
            self._mark(self._made_of(path), self.reasons[path])
        for path in self._kept("regressions"):  # a judgement has a file in each table
            self._mark((self._lake.root / table / path.parent.name / path.name for table in BY_SUITE), self.reasons[path])

    @cached_property
    def model_versions(self) -> dict[str, Reason]:
        """The model versions of the files that stay -> the reason that the file stays."""
        versions: dict[str, Reason] = {}
        for path in self._kept("responses", "scores", "metrics"):
            info = self._info(path)
            if info is not None and "model" in info.inputs:
                version, reason = info.inputs["model"], self.reasons[path]
                versions[version] = strongest(reason, versions.get(version, reason))
        return versions

    def is_removed(self, path: Path) -> bool:
        """Whether the eval, the model or the suite of a file is not in evals.yaml."""
        config = self._project.config
        known: Mapping[str, Iterable[str]] = {"eval": config.evals, "model": config.models, "suite": config.suites}
        keys = [part.split("=", 1) for part in path.relative_to(self._lake.root).parts[1:-1]]
        return any(name not in known[key] for key, name in keys)

    def _mark(self, paths: Iterable[Path], reason: Reason) -> None:
        for path in paths:
            self.reasons[path] = strongest(reason, self.reasons.get(path, reason))

    def _compared_with(self) -> Iterator[Path]:
        """The states that current results are compared with: previous states, and baselines of suites with their judgements."""
        config = self._project.config
        for eval_name, model in product(config.evals, config.models):
            if len(self._lake.files(self._lake.folder("metrics", eval_name, model))) < 2:
                continue
            try:
                previous = previous_materialization(history(self._lake, eval_name, model))
            except LakeError:  # if the newest is damaged, the previous state is unknown
                yield from self._lake.files(self._lake.folder("metrics", eval_name, model))
            else:
                yield from [previous.metrics.path] if previous else []
        for name, suite in config.suites.items():
            baseline = Baseline.parse(suite.baseline, list(config.models))
            standings = Standings(self._lake, name)
            yield from standings.tested(self._now)[1]
            for key in product(suite.evals, suite.models):
                if not baseline.last_passed:
                    with suppress(LakeError):  # the baseline is missing; the gate reports it
                        found = baseline.find(self._lake, *key)
                        yield from [found.metrics.path] if found else []
                times: set[datetime | None] = set()
                # A first result does not name its metrics, so it counts for any metric.
                for metric in standings.metrics(key) or [""]:
                    standing = standings.of(key, metric)
                    yield from standing.files
                    red = standing.red.materialized_at if standing.red else None
                    times |= {standing.baseline_at, standing.judged_at, standing.anchor_at, red}
                with suppress(LakeError):
                    known = (materialization_at(history(self._lake, *key), time) for time in times)
                    yield from (point.metrics.path for point in known if point)

    def _named_by_judgements(self) -> Iterator[Path]:
        """The results named by the remaining judgements."""
        columns = ("eval", "materialized_at", "baseline_materialized_at")
        named: set[tuple[str, datetime]] = set()
        for path in self._kept("regressions"):
            with suppress(LakeError):
                for row in read_rows(path, columns):
                    named |= {(row["eval"], time.astimezone(UTC)) for time in (row[columns[1]], row[columns[2]]) if time is not None}
        for partition in self._lake.partitions("metrics"):
            eval_name = partition[0].parent.parent.name.removeprefix("eval=")
            if not (self._removed and self.is_removed(partition[0])):
                yield from (path for path in partition if (eval_name, time_of(path)) in named)

    def _made_of(self, path: Path) -> Iterator[Path]:
        """The files behind metrics, back to the rows of the dataset."""
        info = self._info(path)
        if info is None:
            return
        yield from self._of_version(self._lake.beside(path, "prompts"), info.inputs.get("rendered_prompts"))
        yield from self._of_version(self._lake.beside(path, "samples"), info.inputs.get("dataset_snapshot"))
        scores_file = self._lake.scores_file(path)
        if scores_file is not None:
            scores = self._lake.root / scores_file
            of_scores = self._info(scores)
            version = None if of_scores is None else of_scores.inputs.get("model_outputs")
            yield from [scores, *self._of_version(self._lake.beside(path, "responses"), version)]

    def _of_version(self, files: Sequence[Path], version: str | None) -> Sequence[Path]:
        """The newest file of a version, which is the one that readers use."""
        for path in reversed(files):
            info = self._info(path)
            if info is not None and info.version == version:
                return [path]
        return []

    def _kept(self, *tables: str) -> list[Path]:
        partitions = (partition for table in tables for partition in self._lake.partitions(table))
        return [path for partition in partitions for path in partition if path in self.reasons]

    def _info(self, path: Path) -> FileInfo | None:
        """The information in a file's footer. None if the file is damaged."""
        if path not in self._infos:
            try:
                self._infos[path] = self._lake.info(path)
            except LakeError:
                self._infos[path] = None
        return self._infos[path]


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
    with lake.lock("import"), lake.lock("catalog"), trials.lock("catalog"):  # files of an import are old before they are complete
        if policy.keeps_catalogs:
            archive(catalog_path(lake))
        found = _plan(project, policy, versions, now or datetime.now(UTC))
        going = [each.path for each in found.files]
        publish_locked(lake, archiving=False, without=going)
        if catalog_path(trials).exists():
            publish_locked(trials, archiving=False, without=going)
        _note_logs(lake, found.files)
        for each in found.files:
            _delete(lake, each)
    publish(lake)
    return found


def _note_logs(lake: Lake, files: Sequence[Prunable]) -> None:
    """Note the logs whose results are about to be deleted, since another import would bring them back."""
    logs: list[str] = []
    for each in files:
        if each.what == "metrics":
            with suppress(LakeError):
                logs += [content for name, content in lake.info(each.path).inputs.items() if name == LOG_CONTENT]
    if logs:
        with lake.deleted_logs.open("a", encoding="utf-8") as file:
            file.writelines(f"{each}\n" for each in logs)


def _plan(project: Project, policy: Policy, versions: "_Versions", now: datetime) -> Pruning:
    project.lake.pull(everything=True)
    lake = IndexedLake(project.lake)
    # Listed first, to exclude files that are written meanwhile.
    paths = [(table, path) for table in _ORDER for partition in lake.partitions(table) for path in partition]
    listed = [each for table, path in paths for each in _prunable(table, path, time_of(path), lake.size)]
    # Past days' catalogs, and the last state of a past day that is not archived yet.
    ends = {path: _end_of_day(path.stem) for path in archived(lake)}
    dated = {path: end for path, end in ends.items() if end is not None}
    waiting = [catalog_path(lake)] if policy.keeps_catalogs and archive_path(catalog_path(lake)) else []
    recent = sum(policy.catalogs.age is not None and end >= now - policy.catalogs.age for end in dated.values())
    first = len(dated) - max(recent, (policy.catalogs.count or 0) - len(waiting))
    since = _first_day(listed, policy.catalogs, now)
    going = [path for number, (path, end) in enumerate(dated.items()) if number < first or (since is not None and end.date() <= since)]
    kept_catalogs = [*(path for path in ends if path not in going), *waiting]
    named: set[Path] = set()
    for catalog in kept_catalogs:
        for name in files_named_by(catalog):
            table, _, rest = name.partition("/")
            # A judgement has a file of the same name in each of its tables.
            named |= {lake.root / each / rest for each in (BY_SUITE if table in BY_SUITE else (table,))}
    retained = Retained(project, lake, policy.keep, removed=policy.removed, now=now)
    of_tables: list[tuple[Prunable, Reason | None]] = []
    for each in listed:
        reason = Reason.LAST_DAY if each.time >= now - GRACE else Reason.CATALOG if each.path in named else None
        of_tables.append((each, retained.reasons.get(each.path, reason)))
    queried: list[tuple[Prunable, Reason | None]] = []  # past nights; each stays while the list that it was made from is kept
    for folder in sorted((lake.home / "nights").glob("*/")):
        if _end_of_day(folder.name) is not None:
            time = datetime.fromtimestamp(folder.stat().st_mtime, UTC)
            is_kept = any(path.stem == folder.name for path in kept_catalogs)
            reason = Reason.KEEP if is_kept else Reason.LAST_DAY if time >= now - GRACE else None
            queried += [(each, reason) for each in _prunable("nights", folder, time, _size_of_all)]
    pages: list[tuple[Prunable, Reason | None]] = []  # of each result's samples; they go with the last metrics of its eval and model
    for folder in sorted((lake.home / "pages").glob("*/*/")):
        metrics = lake.files(lake.folder("metrics", folder.parent.name, folder.name))
        time = datetime.fromtimestamp(folder.stat().st_mtime, UTC)
        reason = Reason.CURRENT if any(path in retained.reasons for path in metrics) else None
        pages += [(each, reason) for each in _prunable("pages", folder, time, _size_of_all)]
    found = [
        *((each, None) for path in going for each in _prunable("catalogs", path, dated[path])),
        *queried,
        *of_tables,
        *_answers(lake, retained.model_versions, versions, policy.keep, now),
        *_trials(trial_lake(project.lake), policy.keep, now),
        *_reports(project, policy, now),
        *pages,
        *((each, Reason.KEEP) for path in kept_catalogs if path != catalog_path(lake) for each in _prunable("catalogs", path, now)),
    ]
    return Pruning(
        files=[each for each, reason in found if reason is None],
        kept={kind: files for kind in Reason if (files := [each for each, reason in found if reason is kind])},
        notes=versions.unknown,
    )


def _size(path: Path) -> int:
    return path.stat().st_size


def _prunable(what: str, path: Path, time: datetime, size: Callable[[Path], int] = _size) -> Iterator[Prunable]:
    try:
        yield Prunable(what=what, path=path, size=size(path), time=time)
    except FileNotFoundError:  # gone since it was listed
        return


def _size_of_all(folder: Path) -> int:
    return sum(_size(path) for path in folder.rglob("*") if path.is_file())


def _end_of_day(text: str) -> datetime | None:
    """The end of a day. None if the file has another name, given by a user."""
    day = day_of(text)
    return None if day is None else datetime.combine(day + timedelta(days=1), datetime.min.time(), UTC)


def _first_day(listed: Sequence[Prunable], catalogs: Keep, now: datetime) -> date | None:
    """The first day whose catalog is kept by number; None without one. Days are counted, since most of the older ones have no catalog."""
    days = sorted({each.time.date() for each in listed if each.time.date() < now.date()})
    return days[-catalogs.count] if catalogs.count and len(days) > catalogs.count else None


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
