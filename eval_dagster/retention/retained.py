"""The files of a lake that must stay, with reasons: current and recent ones, their inputs, and baselines."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cached_property
from itertools import product
from pathlib import Path

from eval_dagster.errors import LakeError, UsageError
from eval_dagster.gate.baselines import Baseline
from eval_dagster.gate.standings import Standings
from eval_dagster.lake.catalog.indexed import IndexedLake
from eval_dagster.lake.format.file_names import time_of
from eval_dagster.lake.format.file_reading import read_rows
from eval_dagster.lake.format.file_writing import FileInfo
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
                self._keep_recent(partition)
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

    def _keep_recent(self, partition: Sequence[Path]) -> None:
        is_removed = self._removed and self.is_removed(partition[-1])
        if len(partition) == 1 and not is_removed:
            self._mark(partition, Reason.CURRENT)
            return
        times = [time_of(path) for path in partition]
        if is_removed:
            self._mark(partition if times[-1] >= self._now - GRACE else (), Reason.LAST_DAY)
            return
        self._mark(partition[-self._keep.newest(times, self._now) :], Reason.LAST_DAY)
        self._mark(partition[-self._keep.asked(times, self._now) :], Reason.KEEP)
        self._mark(partition[-1:], Reason.CURRENT)

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
