"""Where the results of a suite stand: the state that each is compared with, the anchor of its drift, and what it is still red for.

All of it follows from the suite's judgements and acceptances, the newest first. A judgement of a failed evaluation, of too many errors or
of a trial on few samples says nothing about the state before it, so it is passed over, and nothing is forgotten.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from eval_dagster.errors import LakeError
from eval_dagster.gate.acceptances import read_acceptances
from eval_dagster.gate.levels import LONGEST
from eval_dagster.gate.records import Acceptance, Regression
from eval_dagster.gate.results import read_judgement
from eval_dagster.lake.files import FileInfo, Lake, time_of
from eval_dagster.paired_suites import Verdict

Key = tuple[str, str]
"""Eval and model."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What the past of a suite says about an eval and a model. Times are those at which states were materialized."""

    baseline_at: datetime | None = None
    """The newest state that passed or was accepted; null where none did."""
    anchors: Mapping[str, datetime] = field(default_factory=dict)
    """What the drift of each metric is judged against; where a metric is not there it is the baseline."""
    judged_at: datetime | None = None
    """The newest state that passed or regressed."""
    red: Mapping[str, Regression] = field(default_factory=dict)
    """What the newest judged state regressed in, by metric; nothing where it passed or was accepted."""

    is_known: bool = False
    """Whether the suite has judged the two, if only as errors or failures."""

    def anchor_at(self, metric: str) -> datetime | None:
        """The state that the drift of a metric is judged against."""
        return self.anchors.get(metric, self.baseline_at)


@dataclass(frozen=True, kw_only=True)
class Standings:
    """Of all results of a suite."""

    by_result: Mapping[Key, Standing]
    tested_at: datetime | None
    """When a judgement last tested a new result; null where that is longer ago than matters."""


def read_standings(lake: Lake, suite: str, keys: Collection[Key], *, now: datetime) -> Standings:
    """Read where the results of a suite stand. Damaged files are left out, as they are in the catalog."""
    searches = {key: _Search(accepted) for key, accepted in _newest_acceptances(lake, suite, keys).items()}
    tested_at: datetime | None = None
    for judged_at, info, rows in _judgements(lake, suite):
        if tested_at is None and _is_tested(info, rows):
            tested_at = judged_at
        for key, search in searches.items():
            if not search.is_done:
                search.look(judged_at, [row for row in rows if (row.eval, row.model) == key])
        is_timed = tested_at is not None or judged_at < now - timedelta(days=LONGEST)
        if is_timed and all(search.is_done for search in searches.values()):
            break
    return Standings(by_result={key: search.standing() for key, search in searches.items()}, tested_at=tested_at)


class _Search:
    """Goes back through the judgements of an eval and a model until one passed, or a state was accepted."""

    def __init__(self, acceptance: Acceptance | None) -> None:
        self.is_done = False
        self._acceptance = acceptance
        self._red: dict[str, Regression] = {}
        self._judged_at: datetime | None = None
        self._baseline_at: datetime | None = None
        self._anchors: dict[str, datetime] = {}
        self._is_known = False

    def look(self, judged_at: datetime, rows: Sequence[Regression]) -> None:
        """Take the rows of a judgement, which is older than all before."""
        self._is_known = self._is_known or any(row.is_passed is not None for row in rows)
        if self._acceptance is not None and self._acceptance.accepted_at >= judged_at:
            self._accept(self._acceptance)
        elif (state := _passed_state(rows)) is not None:
            self.is_done, self._baseline_at = True, state
            self._judged_at = self._judged_at or state
            self._anchors = {row.metric: row.anchor_materialized_at for row in rows if row.metric and row.anchor_materialized_at}
        elif red := {row.metric: row for row in rows if row.metric and row.verdict is Verdict.REGRESSED and not row.is_partial}:
            first = next(iter(red.values()))
            # Where no state passed, the oldest red one was compared with the last good one.
            self._baseline_at = first.baseline_materialized_at
            if self._judged_at is None:
                self._judged_at, self._red = first.materialized_at, red

    def standing(self) -> Standing:
        """What was found."""
        if not self.is_done and self._acceptance is not None:
            self._accept(self._acceptance)
        return Standing(
            baseline_at=self._baseline_at, anchors=self._anchors, judged_at=self._judged_at, red=self._red, is_known=self._is_known
        )

    def _accept(self, acceptance: Acceptance) -> None:
        self.is_done, self._baseline_at = True, acceptance.materialized_at
        self._judged_at = self._judged_at or acceptance.materialized_at


def _passed_state(rows: Sequence[Regression]) -> datetime | None:
    """The state that a judgement let pass; null where it did not, or judged none."""
    if not rows or rows[0].is_passed is False:
        return None
    was_compared = all(row.verdict in (Verdict.NO_CHANGE_SEEN, Verdict.IMPROVED) and not row.is_partial for row in rows)
    return rows[0].materialized_at if rows[0].is_passed or was_compared else None


def _is_tested(info: FileInfo, rows: Sequence[Regression]) -> bool:
    """Whether a judgement spent a part of what false alarms are allowed; one of an earlier version did with each comparison."""
    return info.counts["level"] > 0 if "level" in info.counts else any(row.p_value is not None for row in rows)


def _newest_acceptances(lake: Lake, suite: str, keys: Collection[Key]) -> dict[Key, Acceptance | None]:
    found: dict[Key, Acceptance | None] = dict.fromkeys(keys)
    for acceptance in read_acceptances(lake, suite):
        if (acceptance.eval, acceptance.model) in found:
            found[acceptance.eval, acceptance.model] = acceptance
    return found


def _judgements(lake: Lake, suite: str) -> Iterator[tuple[datetime, FileInfo, Sequence[Regression]]]:
    """When each judgement was made, and its rows, the newest first."""
    for path in sorted(lake.folder("regressions", suite).glob("[!.]*.parquet"), reverse=True):
        try:
            info, rows = read_judgement(path)
        except LakeError:
            continue
        yield time_of(path), info, rows
