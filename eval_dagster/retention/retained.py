"""What of a lake must stay, and why: what is current or recent, what that was made of, and what is compared with."""

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
from eval_dagster.gate.materializations import history, point_at, previous_point
from eval_dagster.gate.standings import read_standings
from eval_dagster.lake.files import FileInfo, parquet_files, read_head, read_info, read_rows, time_of
from eval_dagster.lake.schemas import SUITE_TABLES
from eval_dagster.project import Project

GRACE = timedelta(days=1)
"""What is younger, or was current until then, stays whatever else is asked for: somebody may be at work with it."""
BY_EVAL = ("samples",)
BY_MODEL = ("prompts", "responses", "scores", "metrics")
BY_SUITE = tuple(SUITE_TABLES)


class Reason(StrEnum):
    """Why a file stays. Where several hold, the first of these is given."""

    CURRENT = "current"
    KEEP = "--keep"
    LAST_DAY = "last day"
    COMPARED = "baseline"
    CATALOG = "catalog"


def strongest(*reasons: Reason) -> Reason:
    """The one that is given where several hold."""
    return min(reasons, key=list(Reason).index)


@dataclass(frozen=True, kw_only=True)
class Keep:
    """How much of the past is kept: an age, or a number."""

    age: timedelta | None = None
    """What was current at some time since then."""
    count: int | None = None
    """So many of the newest."""

    @classmethod
    def parse(cls, text: str, *, what: str, least: int = 1) -> "Keep":
        """Read `90d` or `10`.

        Args:
            text: What the user wrote.
            what: The option, for the message.
            least: The smallest number that makes sense.

        Raises:
            UsageError: It is neither, or less.
        """
        found = re.fullmatch(r"([0-9]{1,5})(d?)", text.strip(), re.ASCII)
        if found is None or int(found[1]) < least:
            at_least = f", at least {least}" if least else ""
            raise UsageError(f"found {what} {text!r}; expected an age in days (90d) or how many of the newest are kept (10){at_least}")
        number = int(found[1])
        return cls(age=timedelta(days=number)) if found[2] else cls(count=number)

    def newest(self, times: Sequence[datetime], now: datetime) -> int:
        """How many of a thing's states are kept, the newest of them, where each is current until the next.

        Args:
            times: Since when each was current, the oldest first.
            now: The time that an age is counted from.
        """
        return max(_current_since(times, now, GRACE), self.asked(times, now))

    def asked(self, times: Sequence[datetime], now: datetime) -> int:
        """How many of these are kept because the user asked for them; `newest` adds those of the last day."""
        recent = _current_since(times, now, self.age) if self.age is not None else 0
        return min(len(times), max(recent, self.count or 0))


def _current_since(times: Sequence[datetime], now: datetime, age: timedelta) -> int:
    """How many states were current at some time since then, where each is current until the next."""
    return sum(until >= now - age for until in [*times[1:], now]) if times else 0


class Retained:
    """The files of a project's lake that stay."""

    def __init__(self, project: Project, keep: Keep, *, removed: bool, now: datetime) -> None:
        """Mark them.

        Args:
            project: Whose lake is looked at.
            keep: How much of the past stays.
            removed: Whether partitions of evals, models and suites that evals.yaml no longer has go as a whole.
            now: The time that ages are counted from.
        """
        self._project, self._keep, self._removed, self._now = project, keep, removed, now
        self._lake = project.lake
        self._infos: dict[Path, FileInfo | None] = {}
        self.reasons: dict[Path, Reason] = {}
        """The files that stay, as far as they are of a partition, and why each does."""
        for table in (*BY_EVAL, *BY_MODEL, *BY_SUITE):
            for partition in self._lake.partitions(table):
                self._keep_recent(partition)
        self._mark(self._compared_with(), Reason.COMPARED)
        self._mark(self._named_by_judgements(), Reason.COMPARED)
        for path in self._kept("metrics"):
            self._mark(self._made_of(path), self.reasons[path])
        for path in self._kept("regressions"):  # a judgement is a file in each of its tables
            self._mark((self._lake.root / table / path.parent.name / path.name for table in BY_SUITE), self.reasons[path])

    @cached_property
    def model_versions(self) -> dict[str, Reason]:
        """The model versions under which a file that stays was answered, and why that file stays."""
        versions: dict[str, Reason] = {}
        for path in self._kept("responses", "scores", "metrics"):
            info = self._info(path)
            if info is not None and "model" in info.inputs:
                version, reason = info.inputs["model"], self.reasons[path]
                versions[version] = strongest(reason, versions.get(version, reason))
        return versions

    def is_removed(self, path: Path) -> bool:
        """Whether evals.yaml no longer has the eval, the model or the suite of a file."""
        config = self._project.config
        known: Mapping[str, Iterable[str]] = {"eval": config.evals, "model": config.models, "suite": config.suites}
        keys = [part.split("=", 1) for part in path.relative_to(self._lake.root).parts[1:-1]]
        return any(name not in known[key] for key, name in keys)

    def _mark(self, paths: Iterable[Path], reason: Reason) -> None:
        for path in paths:
            self.reasons[path] = strongest(reason, self.reasons.get(path, reason))

    def _keep_recent(self, partition: Sequence[Path]) -> None:
        times = [time_of(path) for path in partition]
        if self._removed and self.is_removed(partition[-1]):
            self._mark(partition if times[-1] >= self._now - GRACE else (), Reason.LAST_DAY)
            return
        self._mark(partition[-self._keep.newest(times, self._now) :], Reason.LAST_DAY)
        self._mark(partition[-self._keep.asked(times, self._now) :], Reason.KEEP)
        self._mark(partition[-1:], Reason.CURRENT)

    def _compared_with(self) -> Iterator[Path]:
        """What today's results are compared with: each one's previous state, the baselines of suites, and the judgements that say so."""
        config = self._project.config
        for eval_name, model in product(config.evals, config.models):
            try:
                previous = previous_point(history(self._lake, eval_name, model))
            except LakeError:  # where the newest is damaged, nothing tells what it would be compared with
                yield from parquet_files(self._lake.folder("metrics", eval_name, model))
            else:
                yield from [previous.metrics.path] if previous else []
        for name, suite in config.suites.items():
            baseline = Baseline.parse(suite.baseline, list(config.models))
            standings = read_standings(self._lake, name, list(product(suite.evals, suite.models)), now=self._now)
            yield from standings.files
            for (eval_name, model), standing in standings.by_result.items():
                with suppress(LakeError):  # no baseline; the gate reports it
                    found = baseline.find(self._lake, eval_name, model, standing)
                    yield from [found.metrics.path] if found else []
                with suppress(LakeError):
                    points = history(self._lake, eval_name, model)
                    red = (row.materialized_at for row in standing.red.values())
                    times = (standing.baseline_at, standing.judged_at, *standing.anchors.values(), *red)
                    known = (point_at(points, time) for time in times)
                    yield from (point.metrics.path for point in known if point)

    def _named_by_judgements(self) -> Iterator[Path]:
        """The results that judgements speak of which stay."""
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
        """What metrics were computed from, back to the dataset's rows."""
        info = self._info(path)
        if info is None:
            return
        eval_name, model = path.parent.parent.name.removeprefix("eval="), path.parent.name.removeprefix("model=")
        yield from self._of_version(self._lake.folder("prompts", eval_name, model), info.inputs.get("rendered_prompts"))
        yield from self._of_version(self._lake.folder("samples", eval_name), info.inputs.get("dataset_snapshot"))
        for row in read_head(path, 1, ["scores_file"]):
            scores = self._lake.root / row["scores_file"]
            of_scores = self._info(scores) if scores.exists() else None
            version = None if of_scores is None else of_scores.inputs.get("model_outputs")
            yield from [scores, *self._of_version(self._lake.folder("responses", eval_name, model), version)]

    def _of_version(self, folder: Path, version: str | None) -> Sequence[Path]:
        """The newest file of a version, which is what is read of it."""
        for path in reversed(parquet_files(folder)):
            info = self._info(path)
            if info is not None and info.version == version:
                return [path]
        return []

    def _kept(self, *tables: str) -> list[Path]:
        return sorted(path for path in self.reasons if path.relative_to(self._lake.root).parts[0] in tables)

    def _info(self, path: Path) -> FileInfo | None:
        """The information in a file's footer; None where the file is damaged."""
        if path not in self._infos:
            try:
                self._infos[path] = read_info(path)
            except LakeError:
                self._infos[path] = None
        return self._infos[path]
