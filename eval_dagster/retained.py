"""What of a lake must stay: what is current or recent, what that was made of, and what is compared with."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import product
from pathlib import Path

from eval_dagster.errors import LakeError, UsageError
from eval_dagster.gate.baselines import Baseline
from eval_dagster.gate.points import history, previous_point
from eval_dagster.lake.files import FileInfo, read_head, read_info, read_rows, time_of
from eval_dagster.lake.schemas import SUITE_TABLES
from eval_dagster.project import Project

GRACE = timedelta(days=1)
"""What is younger, or was current until then, stays whatever else is asked for: somebody may be at work with it."""
BY_EVAL = ("samples",)
BY_MODEL = ("prompts", "responses", "scores", "metrics")
BY_SUITE = tuple(SUITE_TABLES)


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
        since = now - max(self.age or GRACE, GRACE)
        recent = sum(until >= since for until in [*times[1:], now]) if times else 0
        return min(len(times), max(recent, self.count or 0))


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
        self.files: set[Path] = set()
        """Those that stay, as far as they are of a partition."""
        for table in (*BY_EVAL, *BY_MODEL, *BY_SUITE):
            for partition in self._lake.partitions(table):
                self.files.update(self._recent(partition))
        self.files.update(self._compared_with())
        self.files.update(self._named_by_judgements())
        self.files.update(list(self._made_of()))
        self.files.update(self._other_parts())

    @cached_property
    def model_versions(self) -> set[str]:
        """The model versions under which a file that stays was answered."""
        infos = (self._info(path) for path in self._kept("responses", "scores", "metrics"))
        return {info.inputs["model"] for info in infos if info is not None and "model" in info.inputs}

    def is_removed(self, path: Path) -> bool:
        """Whether evals.yaml no longer has the eval, the model or the suite of a file."""
        config = self._project.config
        known: Mapping[str, Iterable[str]] = {"eval": config.evals, "model": config.models, "suite": config.suites}
        keys = [part.split("=", 1) for part in path.relative_to(self._lake.root).parts[1:-1]]
        return any(name not in known[key] for key, name in keys)

    def _recent(self, partition: Sequence[Path]) -> Sequence[Path]:
        times = [time_of(path) for path in partition]
        if self._removed and self.is_removed(partition[-1]):
            return partition if times[-1] >= self._now - GRACE else ()
        return partition[-self._keep.newest(times, self._now) :]

    def _compared_with(self) -> Iterator[Path]:
        """The results that those of today are compared with: each one's previous state, and the baselines of suites."""
        config = self._project.config
        for eval_name, model in product(config.evals, config.models):
            try:
                previous = previous_point(history(self._lake, eval_name, model))
            except LakeError:  # where the newest is damaged, nothing tells what it would be compared with
                yield from self._lake.folder("metrics", eval_name, model).glob("[!.]*.parquet")
            else:
                yield from [previous.metrics.path] if previous else []
        for suite in config.suites.values():
            baseline = Baseline.parse(suite.baseline, list(config.models))
            for eval_name, model in product(suite.evals, suite.models):
                with suppress(LakeError):  # there is none, which the gate says
                    yield baseline.find(self._lake, eval_name, model).metrics.path

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

    def _made_of(self) -> Iterator[Path]:
        """What the metrics that stay were computed from, back to the dataset's rows."""
        for path in self._kept("metrics"):
            info = self._info(path)
            if info is None:
                continue
            eval_name, model = path.parent.parent.name.removeprefix("eval="), path.parent.name.removeprefix("model=")
            yield from self._of_version(self._lake.folder("prompts", eval_name, model), info.inputs.get("rendered_prompts"))
            yield from self._of_version(self._lake.folder("samples", eval_name), info.inputs.get("dataset_snapshot"))
            for row in read_head(path, 1, ["scores_file"]):
                scores = self._lake.root / row["scores_file"]
                of_scores = self._info(scores) if scores.exists() else None
                version = None if of_scores is None else of_scores.inputs.get("model_outputs")
                yield from [scores, *self._of_version(self._lake.folder("responses", eval_name, model), version)]

    def _other_parts(self) -> Iterator[Path]:
        """A judgement is a file in each of its tables."""
        for path in self._kept("regressions"):
            yield from (self._lake.root / table / path.parent.name / path.name for table in BY_SUITE)

    def _of_version(self, folder: Path, version: str | None) -> Sequence[Path]:
        """The newest file of a version, which is what is read of it."""
        for path in sorted(folder.glob("[!.]*.parquet"), reverse=True):
            info = self._info(path)
            if info is not None and info.version == version:
                return [path]
        return []

    def _kept(self, *tables: str) -> list[Path]:
        return sorted(path for path in self.files if path.relative_to(self._lake.root).parts[0] in tables)

    def _info(self, path: Path) -> FileInfo | None:
        """What a file says of itself; None where it is damaged."""
        if path not in self._infos:
            try:
                self._infos[path] = read_info(path)
            except LakeError:
                self._infos[path] = None
        return self._infos[path]
